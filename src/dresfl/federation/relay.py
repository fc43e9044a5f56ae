"""The relay: who lacks which slice, what was asked for, what waits on the coordinator's disk, what is under way.

The coordinator pulls. It asks each dealer, a few slices at a time, for what receivers have said they lack; keeps what
comes on its disk; sends it to its receiver, a few at a time; and forgets it when the receiver has it on its own disk.
So an interrupted transfer continues where it was, memory is bounded by the windows, and the disk by each receiver's
part of it. What a receiver holds is known from itself alone, anew with every connection.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from dresfl.errors import MessageError
from dresfl.protocol import Session, num_slices

from .actions import Action, DropSlice, Send, SendSlice, StoreSlice
from .messages import Request
from .sealed_slices import sealed_bytes

_MOST_REJECTS = 3  # of one slice: then its dealer is not asked again on this connection

Place = tuple[int, int]  # a peer and the number of a slice


@final
@dataclass(frozen=True)
class Windows:
    """How much may be under way at once. One slice always may, whatever its size."""

    asked_bytes: int = 2 * 2**20  # asked of one dealer and not dealt yet
    sent_bytes: int = 16 * 2**20  # sent to one receiver and not on its disk yet
    stored_bytes: int = 4 * 2**30  # on the coordinator's disk, all receivers together


@final
class Relay:
    """The slices of one sharing on their way from their dealers to their receivers."""

    def __init__(self, session: Session, windows: Windows, stored: Iterable[tuple[int, int, int]] = ()) -> None:
        """stored: receiver, dealer and number of slices that an earlier start has left on the disk."""
        clients = range(session.num_clients)
        self._session, self._windows = session, windows
        self._size = functools.cache(functools.partial(sealed_bytes, session))  # of a dealer and a number
        # No receiver can fill the disk for the others: each has its part of it.
        self._part = max(windows.sent_bytes, windows.stored_bytes // len(clients))
        self._lacking: list[list[set[int]]] = [[set() for _ in clients] for _ in clients]  # [dealer][receiver]
        self._asked: list[set[Place]] = [set() for _ in clients]  # [dealer]: receiver, number
        self._waiting: list[dict[Place, bool]] = [{} for _ in clients]  # [receiver]: dealer, number -> under way
        self._taken = [0] * len(clients)  # [receiver]: bytes of its part that are stored or asked for
        self._declared: list[set[int]] = [set() for _ in clients]  # [receiver]: dealers whose slices it has listed
        self._rejects: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        self._connected: set[int] = set()
        self._idle_dealers: set[int] = set()  # nothing to ask them for, as far as was seen
        self.relayed_bytes = 0
        for receiver, dealer, number in stored:
            if receiver in clients and dealer in clients and number < num_slices(session, dealer):
                self._waiting[receiver][dealer, number] = False
                self._taken[receiver] += self._size(dealer, number)

    @property
    def stored_bytes(self) -> int:
        """Bytes of slices on the coordinator's disk."""
        return sum(self._size(*place) for waiting in self._waiting for place in tuple(waiting))

    # -- clients that come and go ----------------------------------------------------------------------------

    def client_came(self, client: int) -> None:
        """A client has joined: it deals from now on, and says what it holds."""
        self.client_left(client)
        self._connected.add(client)
        for place in [place for place in self._rejects if client in place[:2]]:
            del self._rejects[place]

    def client_left(self, client: int) -> None:
        """A client has gone: what was under way from it or to it has to be asked for, or sent, again."""
        self._connected.discard(client)
        for receiver, number in self._asked[client]:
            self._lacking[client][receiver].add(number)
            self._taken[receiver] -= self._size(client, number)
        self._asked[client].clear()
        self._idle_dealers.clear()  # there is room again
        self._declared[client].clear()
        for place in self._waiting[client]:
            self._waiting[client][place] = False

    # -- receivers -------------------------------------------------------------------------------------------

    def declare(self, receiver: int, dealer: int, held: int) -> list[Action]:
        """A receiver says which slices of a dealer it has: all others are lacking."""
        count = num_slices(self._session, self._checked(dealer))
        if held.bit_length() > count:
            raise MessageError(f"client {receiver} says it holds slices that client {dealer} does not have")
        if dealer == receiver and held.bit_count() < count:
            raise MessageError(f"client {receiver} lacks slices of its own, which nobody else can deal")
        dropped: list[Action] = []
        for place in [place for place in self._waiting[receiver] if place[0] == dealer and held >> place[1] & 1]:
            dropped += self._forget(receiver, *place)
        asked = {number for to, number in self._asked[dealer] if to == receiver}
        stored = {number for owner, number in self._waiting[receiver] if owner == dealer}
        lacking = {number for number in range(count) if not held >> number & 1} - asked - stored
        self._lacking[dealer][receiver] = lacking
        self._declared[receiver].add(dealer)
        if lacking:
            self._idle_dealers.discard(dealer)
        return dropped

    def acknowledge(self, receiver: int, dealer: int, number: int) -> list[Action]:
        """The receiver has a slice on its disk."""
        self._check_sent(receiver, dealer, number)
        return self._forget(receiver, dealer, number)

    def reject(self, receiver: int, dealer: int, number: int) -> tuple[list[Action], bool]:
        """A slice did not open at its receiver. Also says whether its dealer is asked again."""
        self._check_sent(receiver, dealer, number)
        self._rejects[receiver, dealer, number] += 1
        again = self._rejects[receiver, dealer, number] <= _MOST_REJECTS
        if again:
            self._lacking[dealer][receiver].add(number)
        return self._forget(receiver, dealer, number), again

    def lost(self, receiver: int, dealer: int, number: int) -> list[Action]:
        """The coordinator's disk has lost a slice: it is asked for again, if its receiver still waits for it."""
        if (dealer, number) in self._waiting[receiver]:
            self._lacking[dealer][receiver].add(number)
        return self._forget(receiver, dealer, number)

    def _check_sent(self, receiver: int, dealer: int, number: int) -> None:
        if not self._waiting[receiver].get((dealer, number)):
            raise MessageError(f"client {receiver} speaks of slice {number} of client {dealer}, which it was not sent")

    def _forget(self, receiver: int, dealer: int, number: int) -> list[Action]:
        if (dealer, number) not in self._waiting[receiver]:
            return []
        del self._waiting[receiver][dealer, number]
        self._taken[receiver] -= self._size(dealer, number)
        self._idle_dealers.clear()  # there is room again
        return [DropSlice(receiver, dealer, number)]

    # -- dealers ---------------------------------------------------------------------------------------------

    def dealt(self, dealer: int, receiver: int, number: int, sealed: bytes | memoryview) -> list[Action]:
        """Take a slice from its dealer: it must have been asked for, and have its size."""
        if (receiver, number) not in self._asked[dealer]:
            raise MessageError(f"slice {number} for client {receiver} came from client {dealer} unasked")
        if len(sealed) != self._size(dealer, number):
            raise MessageError(f"a slice of {len(sealed)} bytes came, {self._size(dealer, number)} were expected")
        self._asked[dealer].discard((receiver, number))
        self._waiting[receiver][dealer, number] = False
        self._idle_dealers.discard(dealer)
        self.relayed_bytes += len(sealed)
        return [StoreSlice(receiver, dealer, number, sealed)]

    def _checked(self, dealer: int) -> int:
        if not 0 <= dealer < self._session.num_clients:
            raise MessageError(f"client {dealer} does not exist among {self._session.num_clients}")
        return dealer

    # -- what is due -----------------------------------------------------------------------------------------

    def due(self) -> list[Action]:
        """What to ask dealers for and to send to receivers now."""
        actions: list[Action] = []
        for dealer in sorted(self._connected - self._idle_dealers):
            actions += self._requests(dealer)
        for receiver in sorted(self._connected):
            actions += self._deliveries(receiver)
        return actions

    def _requests(self, dealer: int) -> list[Action]:
        """Low numbers first, for all receivers, so that a dealer expands the masks of a slice once."""
        actions: list[Action] = []
        asked = sum(self._size(dealer, number) for _, number in self._asked[dealer])
        if asked and asked + self._size(dealer, 0) > self._windows.asked_bytes:
            return []  # before anything is sorted: this is the usual case
        lacking = self._lacking[dealer]
        wanted = sorted((number, receiver) for receiver, numbers in enumerate(lacking) for number in numbers)
        for number, receiver in wanted:
            size = self._size(dealer, number)
            if asked and asked + size > self._windows.asked_bytes:
                return actions
            if self._taken[receiver] and self._taken[receiver] + size > self._part:
                continue
            lacking[receiver].discard(number)
            self._asked[dealer].add((receiver, number))
            self._taken[receiver] += size
            asked += size
            actions.append(Send(dealer, Request(receiver, number)))
        self._idle_dealers.add(dealer)
        return actions

    def _deliveries(self, receiver: int) -> list[Action]:
        waiting = self._waiting[receiver]
        if not waiting or len(self._declared[receiver]) < self._session.num_clients:
            return []
        actions: list[Action] = []
        under_way = sum(self._size(*place) for place, sent in waiting.items() if sent)
        for place in sorted((place for place, sent in waiting.items() if not sent), key=lambda place: place[::-1]):
            size = self._size(*place)
            if under_way and under_way + size > self._windows.sent_bytes:
                break
            waiting[place] = True
            under_way += size
            actions.append(SendSlice(receiver, *place))
        return actions
