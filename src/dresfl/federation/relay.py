"""The relay: who lacks which slice, what was asked for, what waits on the coordinator's disk, what is under way.

The coordinator pulls. It asks each dealer, a few slices at a time, for what receivers have said they lack; keeps what
comes on its disk; sends it to its receiver, a few at a time; and forgets it when the receiver has it on its own disk.
So an interrupted transfer continues where it was, memory is bounded by the windows, and the disk by each receiver's
part of it. What a receiver holds is known from itself alone, anew with every connection.

Which slices of a dealer a receiver lacks is one integer with a bit for each slice, as in a Holding: half a million
slices take 64 KiB. Each event looks only at the dealers and receivers that it concerns.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from dresfl.errors import MessageError
from dresfl.protocol import Session, num_slices

from .actions import Action, DropSlice, Send, SendSlice, StoreSlice
from .messages import Request
from .sealed_slices import full_sealed_bytes, sealed_bytes

_MOST_REJECTS = 3  # of one slice: then its dealer is not asked again on this connection
_MOST_REJECTED = 1000  # slices by one receiver on one connection: then the connection ends

Place = tuple[int, int]  # a peer and the number of a slice


@final
@dataclass(frozen=True)
class Windows:
    """How much may be under way at once. One slice always may, whatever its size."""

    asked_bytes: int = 2 * 2**20  # asked of one dealer and not dealt yet
    sent_bytes: int = 16 * 2**20  # sent to one receiver and not on its disk yet
    stored_bytes: int = 4 * 2**30  # on the coordinator's disk, all receivers together


def _lowest(bits: int) -> int:
    """The number of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


@final
class Relay:
    """The slices of one sharing on their way from their dealers to their receivers."""

    def __init__(self, session: Session, windows: Windows, stored: Iterable[tuple[int, int, int]] = ()) -> None:
        """stored: receiver, dealer and number of slices that an earlier start has left on the disk."""
        clients = range(session.num_clients)
        self._windows, self._num_clients = windows, len(clients)
        self._counts = [num_slices(session, dealer) for dealer in clients]
        self._full_size = full_sealed_bytes(session)  # of all but a dealer's last
        self._last_size = [sealed_bytes(session, dealer, self._counts[dealer] - 1) for dealer in clients]
        # No receiver can fill the disk for the others: each has its part of it.
        self._part = max(windows.sent_bytes, windows.stored_bytes // len(clients))
        # A slice is in one of these at most: lacking, asked for, waiting.
        self._lacking = [[0] * len(clients) for _ in clients]  # [dealer][receiver]: a bit for each slice
        self._asked: list[set[Place]] = [set() for _ in clients]  # [dealer]: receiver, number
        self._waiting: list[dict[Place, bool]] = [{} for _ in clients]  # [receiver]: dealer, number -> under way
        self._asked_bytes = [0] * len(clients)  # [dealer]
        self._sent_bytes = [0] * len(clients)  # [receiver]
        self._taken = [0] * len(clients)  # [receiver]: bytes of its part that are stored or asked for
        # Each dealer's queue has the lowest slice that a receiver lacks, once for each receiver with room for it.
        self._queues: list[list[Place]] = [[] for _ in clients]  # [dealer]: a heap of number, receiver
        self._queued: list[set[int]] = [set() for _ in clients]  # [dealer]: receivers in its queue
        self._without_room: list[set[int]] = [set() for _ in clients]  # [receiver]: dealers with slices for it
        self._unsent: list[list[Place]] = [[] for _ in clients]  # [receiver]: a heap of number, dealer
        self._declared: list[set[int]] = [set() for _ in clients]  # [receiver]: dealers whose slices it has listed
        self._rejects: list[Counter[Place]] = [Counter() for _ in clients]  # [receiver]: dealer, number
        self._connected: set[int] = set()
        self._dealers_due: set[int] = set()  # who may have to be asked for something
        self._receivers_due: set[int] = set()  # who may have to be sent something
        self.relayed_bytes = self.stored_bytes = 0  # taken from dealers; on the coordinator's disk
        for receiver, dealer, number in stored:
            if receiver in clients and dealer in clients and number < self._counts[dealer]:
                self._taken[receiver] += self._size(dealer, number)
                self._store(receiver, dealer, number)

    def _size(self, dealer: int, number: int) -> int:
        return self._last_size[dealer] if number == self._counts[dealer] - 1 else self._full_size

    # -- clients that come and go ----------------------------------------------------------------------------

    def client_came(self, client: int) -> None:
        """A client has joined: it deals from now on, and says what it holds."""
        self.client_left(client)
        self._connected.add(client)
        self._dealers_due.add(client)
        self._receivers_due.add(client)
        self._rejects[client].clear()
        for rejects in self._rejects:
            for place in [place for place in rejects if place[0] == client]:
                del rejects[place]

    def client_left(self, client: int) -> None:
        """A client has gone: what was under way from it or to it has to be asked for, or sent, again."""
        self._connected.discard(client)
        asked, self._asked[client], self._asked_bytes[client] = self._asked[client], set(), 0
        for receiver, number in asked:
            self._want(client, receiver, 1 << number)
            self._give_room(receiver, self._size(client, number))
        self._declared[client].clear()
        self._sent_bytes[client] = 0
        for place in self._waiting[client]:
            self._waiting[client][place] = False
        self._unsent[client] = sorted((number, dealer) for dealer, number in self._waiting[client])

    # -- receivers -------------------------------------------------------------------------------------------

    def declare(self, receiver: int, dealer: int, held: int) -> list[Action]:
        """A receiver says which slices of a dealer it has: all others are lacking. It says so once a connection."""
        if not 0 <= dealer < self._num_clients:
            raise MessageError(f"client {dealer} does not exist among {self._num_clients}")
        count = self._counts[dealer]
        if held.bit_length() > count:
            raise MessageError(f"client {receiver} says it holds slices that client {dealer} does not have")
        if dealer == receiver and held.bit_count() < count:
            raise MessageError(f"client {receiver} lacks slices of its own, which nobody else can deal")
        if dealer in self._declared[receiver]:
            raise MessageError(f"client {receiver} lists what it holds of client {dealer} for a second time")
        self._declared[receiver].add(dealer)
        self._receivers_due.add(receiver)
        dropped: list[Action] = []
        on_the_way = 0
        for place in [place for place in self._waiting[receiver] if place[0] == dealer]:
            if held >> place[1] & 1:
                dropped += self._forget(receiver, *place)
            else:
                on_the_way |= 1 << place[1]
        for to, number in self._asked[dealer]:
            if to == receiver:
                on_the_way |= 1 << number
        self._lacking[dealer][receiver] = 0
        self._want(dealer, receiver, ((1 << count) - 1) & ~held & ~on_the_way)
        return dropped

    def acknowledge(self, receiver: int, dealer: int, number: int) -> list[Action]:
        """The receiver has a slice on its disk."""
        self._check_sent(receiver, dealer, number)
        return self._forget(receiver, dealer, number)

    def reject(self, receiver: int, dealer: int, number: int) -> tuple[list[Action], bool]:
        """A slice did not open at its receiver. Also says whether its dealer is asked again."""
        self._check_sent(receiver, dealer, number)
        rejects = self._rejects[receiver]
        if len(rejects) >= _MOST_REJECTED:
            raise MessageError(f"client {receiver} has rejected {_MOST_REJECTED} slices on one connection")
        rejects[dealer, number] += 1
        again = rejects[dealer, number] <= _MOST_REJECTS
        if again:
            self._want(dealer, receiver, 1 << number)
        return self._forget(receiver, dealer, number), again

    def lost(self, receiver: int, dealer: int, number: int) -> list[Action]:
        """The coordinator's disk has lost a slice: it is asked for again, if its receiver still waits for it."""
        if (dealer, number) in self._waiting[receiver]:
            self._want(dealer, receiver, 1 << number)
        return self._forget(receiver, dealer, number)

    def _check_sent(self, receiver: int, dealer: int, number: int) -> None:
        if not self._waiting[receiver].get((dealer, number)):
            raise MessageError(f"client {receiver} speaks of slice {number} of client {dealer}, which it was not sent")

    def _want(self, dealer: int, receiver: int, slices: int) -> None:
        """A receiver lacks these slices of a dealer, a bit for each, besides those that it lacks already."""
        self._lacking[dealer][receiver] |= slices
        if slices and receiver not in self._queued[dealer]:
            self._queued[dealer].add(receiver)
            heapq.heappush(self._queues[dealer], (_lowest(self._lacking[dealer][receiver]), receiver))
            self._dealers_due.add(dealer)

    def _give_room(self, receiver: int, size: int) -> None:
        """So many bytes of a receiver's part are free again: those who had no room for it may be asked."""
        self._taken[receiver] -= size
        dealers, self._without_room[receiver] = self._without_room[receiver], set()
        for dealer in dealers:
            self._want(dealer, receiver, self._lacking[dealer][receiver])

    def _forget(self, receiver: int, dealer: int, number: int) -> list[Action]:
        under_way, size = self._waiting[receiver].pop((dealer, number), None), self._size(dealer, number)
        if under_way is None:
            return []
        self.stored_bytes -= size
        if under_way:
            self._sent_bytes[receiver] -= size
            self._receivers_due.add(receiver)
        self._give_room(receiver, size)
        return [DropSlice(receiver, dealer, number)]

    # -- dealers ---------------------------------------------------------------------------------------------

    def dealt(self, dealer: int, receiver: int, number: int, sealed: bytes | memoryview) -> list[Action]:
        """Take a slice from its dealer: it must have been asked for, and have its size."""
        if (receiver, number) not in self._asked[dealer]:
            raise MessageError(f"slice {number} for client {receiver} came from client {dealer} unasked")
        size = self._size(dealer, number)
        if len(sealed) != size:
            raise MessageError(f"a slice of {len(sealed)} bytes came, {size} were expected")
        self._asked[dealer].discard((receiver, number))
        self._asked_bytes[dealer] -= size
        self._dealers_due.add(dealer)
        self._store(receiver, dealer, number)
        self.relayed_bytes += size
        return [StoreSlice(receiver, dealer, number, sealed)]

    def _store(self, receiver: int, dealer: int, number: int) -> None:
        self._waiting[receiver][dealer, number] = False
        self.stored_bytes += self._size(dealer, number)
        heapq.heappush(self._unsent[receiver], (number, dealer))
        self._receivers_due.add(receiver)

    # -- what is due -----------------------------------------------------------------------------------------

    def due(self) -> list[Action]:
        """What to ask dealers for and to send to receivers now."""
        actions: list[Action] = []
        dealers, self._dealers_due = self._dealers_due & self._connected, set()
        for dealer in sorted(dealers):
            actions += self._requests(dealer)
        receivers, self._receivers_due = self._receivers_due & self._connected, set()
        for receiver in sorted(receivers):
            actions += self._deliveries(receiver)
        return actions

    def _requests(self, dealer: int) -> list[Action]:
        """Low numbers first, for all receivers, so that a dealer expands the masks of a slice once."""
        actions: list[Action] = []
        queue, queued, lacking = self._queues[dealer], self._queued[dealer], self._lacking[dealer]
        while queue:
            number, receiver = queue[0]
            if not lacking[receiver] >> number & 1 or _lowest(lacking[receiver]) < number:
                self._requeue(dealer, receiver)  # what it lacks has changed since
                continue
            size = self._size(dealer, number)
            if self._asked_bytes[dealer] and self._asked_bytes[dealer] + size > self._windows.asked_bytes:
                break
            if self._taken[receiver] and self._taken[receiver] + size > self._part:
                heapq.heappop(queue)
                queued.discard(receiver)
                self._without_room[receiver].add(dealer)
                continue
            lacking[receiver] ^= 1 << number
            self._requeue(dealer, receiver)
            self._asked[dealer].add((receiver, number))
            self._asked_bytes[dealer] += size
            self._taken[receiver] += size
            actions.append(Send(dealer, Request(receiver, number)))
        return actions

    def _requeue(self, dealer: int, receiver: int) -> None:
        """Put the first receiver of a dealer's queue where the next slice that it lacks belongs."""
        if self._lacking[dealer][receiver]:
            heapq.heapreplace(self._queues[dealer], (_lowest(self._lacking[dealer][receiver]), receiver))
        else:
            heapq.heappop(self._queues[dealer])
            self._queued[dealer].discard(receiver)

    def _deliveries(self, receiver: int) -> list[Action]:
        """Low numbers first; nothing before the receiver has said of every dealer what it holds."""
        if len(self._declared[receiver]) < self._num_clients:
            return []
        actions: list[Action] = []
        unsent, waiting = self._unsent[receiver], self._waiting[receiver]
        while unsent:
            number, dealer = unsent[0]
            if waiting.get((dealer, number)) is not False:  # forgotten since, or sent already
                heapq.heappop(unsent)
                continue
            size = self._size(dealer, number)
            if self._sent_bytes[receiver] and self._sent_bytes[receiver] + size > self._windows.sent_bytes:
                break
            heapq.heappop(unsent)
            waiting[dealer, number] = True
            self._sent_bytes[receiver] += size
            actions.append(SendSlice(receiver, dealer, number))
        return actions
