"""Who lacks which slice: the coordinator's side of the relay, without any I/O but the spool.

The coordinator pulls. It asks each dealer, a few slices at a time, for what receivers have said they lack; keeps what
comes on disk; hands it to its receiver, a few at a time; and forgets it when the receiver has it on its own disk. So an
interrupted transfer continues where it was, memory is bounded by the windows, and the disk by the receivers' quotas.
What a receiver holds is known from itself alone, anew with every connection.
"""

import asyncio
from collections import defaultdict
from typing import final

from dresfl.errors import MessageError
from dresfl.federation import most_parcel_bytes
from dresfl.protocol import Session, num_slices

from .spool import Spool

_ASKED = 2  # slices under way from a dealer
_SENT = 16  # slices sent to a receiver that it has not put on its disk yet
_MOST_REJECTS = 3  # of one slice: then the dealer is not asked again on this connection


@final
class Relay:
    """What is lacking, asked for, spooled and under way."""

    def __init__(self, session: Session, spool: Spool, spool_bytes: int) -> None:
        clients = range(session.num_clients)
        self._session, self._spool = session, spool
        self._most_bytes = most_parcel_bytes(session)
        # No receiver can fill the spool for the others: each has its part of it.
        self._quota = max(_SENT, spool_bytes // (len(clients) * self._most_bytes))
        self._lacking: list[list[set[int]]] = [[set() for _ in clients] for _ in clients]  # [dealer][receiver]
        self._asked: list[set[tuple[int, int]]] = [set() for _ in clients]  # [dealer]: receiver, slice
        self._waiting: list[dict[tuple[int, int], bool]] = [
            {} for _ in clients
        ]  # [receiver]: (dealer, slice) -> under way
        self._coming = [0] * len(clients)  # [receiver]: slices asked for on its behalf
        self._declared: list[set[int]] = [set() for _ in clients]  # [receiver]: dealers whose slices it has listed
        self._rejects: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        self._dealer_streams, self._receiver_streams = [0] * len(clients), [0] * len(clients)
        self.dealer_wakes = [asyncio.Event() for _ in clients]
        self.receiver_wakes = [asyncio.Event() for _ in clients]
        self.relayed_bytes = 0
        for receiver in clients:
            for place in spool.waiting(receiver):
                self._waiting[receiver][place] = False

    # -- receivers -------------------------------------------------------------------------------------------

    def declare(self, receiver: int, dealer: int, held: frozenset[int]) -> None:
        """A receiver says which slices of a dealer it has: all others are lacking."""
        self._check(dealer)
        if any(number >= num_slices(self._session, dealer) for number in held):
            raise MessageError(f"client {receiver} says it holds slices that client {dealer} does not have")
        waiting = self._waiting[receiver]
        for place in [place for place in waiting if place[0] == dealer]:
            if place[1] in held:
                self._forget(receiver, *place)
            else:
                waiting[place] = False  # what was under way on an earlier connection is sent again
        present = held | {n for d, n in waiting if d == dealer} | {n for r, n in self._asked[dealer] if r == receiver}
        self._lacking[dealer][receiver] = set(range(num_slices(self._session, dealer))) - present
        self._declared[receiver].add(dealer)
        self.dealer_wakes[dealer].set()
        self.receiver_wakes[receiver].set()

    def next_for_receiver(self, receiver: int) -> tuple[int, int] | None:
        """A spooled slice to send now: dealer and number; it is under way from here on."""
        waiting = self._waiting[receiver]
        if sum(waiting.values()) >= _SENT or len(self._declared[receiver]) < len(self._waiting):
            return None
        place = min((place for place, sent in waiting.items() if not sent), key=lambda p: p[::-1], default=None)
        if place is not None:
            waiting[place] = True
        return place

    def acknowledge(self, receiver: int, dealer: int, number: int) -> None:
        """The receiver has it."""
        self._check(dealer)
        self._forget(receiver, dealer, number)
        self._lacking[dealer][receiver].discard(number)
        self._wake_dealers()
        self.receiver_wakes[receiver].set()

    def reject(self, receiver: int, dealer: int, number: int) -> bool:
        """It did not open there: ask its dealer again. False if that was tried too often."""
        self._check(dealer)
        if (dealer, number) not in self._waiting[receiver]:
            raise MessageError(f"client {receiver} rejects slice {number} of client {dealer}, which it was not sent")
        self._forget(receiver, dealer, number)
        self._rejects[receiver, dealer, number] += 1
        again = self._rejects[receiver, dealer, number] <= _MOST_REJECTS
        if again:
            self._lacking[dealer][receiver].add(number)
        self._wake_dealers()
        self.receiver_wakes[receiver].set()
        return again

    def lost(self, receiver: int, dealer: int, number: int) -> None:
        """The spool has lost a slice: ask for it again."""
        self._forget(receiver, dealer, number)
        self._lacking[dealer][receiver].add(number)
        self.dealer_wakes[dealer].set()

    def _forget(self, receiver: int, dealer: int, number: int) -> None:
        self._waiting[receiver].pop((dealer, number), None)
        self._spool.drop(receiver, dealer, number)

    # -- dealers ---------------------------------------------------------------------------------------------

    def next_for_dealer(self, dealer: int) -> tuple[int, int] | None:
        """A slice to ask for now: receiver and number, low numbers first, so that a dealer expands its masks once."""
        if len(self._asked[dealer]) >= _ASKED:
            return None
        lowest = min(
            (
                (min(numbers), receiver)
                for receiver, numbers in enumerate(self._lacking[dealer])
                if numbers and len(self._waiting[receiver]) + self._coming[receiver] < self._quota
            ),
            default=None,
        )
        if lowest is None:
            return None
        number, receiver = lowest
        self._lacking[dealer][receiver].discard(number)
        self._asked[dealer].add((receiver, number))
        self._coming[receiver] += 1
        return receiver, number

    def expect(self, dealer: int, receiver: int, number: int, size: int) -> None:
        """Check a slice that a dealer sends: it must have been asked for, and fit."""
        if (receiver, number) not in self._asked[dealer]:
            raise MessageError(f"slice {number} for client {receiver} came from client {dealer} unasked")
        if size > self._most_bytes:
            raise MessageError(f"a slice of {size} bytes came, {self._most_bytes} are the most")

    def store(self, dealer: int, receiver: int, number: int, sealed: bytes) -> None:
        """Put an expected slice on disk. This one call blocks: run it in a thread."""
        self._spool.put(receiver, dealer, number, sealed)

    def stored(self, dealer: int, receiver: int, number: int, size: int) -> None:
        """The slice is on disk: it waits for its receiver."""
        if (receiver, number) in self._asked[dealer]:  # not if the dealer has come back meanwhile
            self._asked[dealer].discard((receiver, number))
            self._coming[receiver] -= 1
        self._lacking[dealer][receiver].discard(number)
        self._waiting[receiver][dealer, number] = False
        self.relayed_bytes += size
        self.dealer_wakes[dealer].set()
        self.receiver_wakes[receiver].set()

    def load(self, receiver: int, dealer: int, number: int) -> bytes | None:
        """A waiting slice from the disk. This call blocks: run it in a thread."""
        return self._spool.get(receiver, dealer, number)

    # -- streams that come and go ----------------------------------------------------------------------------
    #
    # A client that comes back may do so before its older stream has noticed its end. Only the newest one counts.

    def dealer_came(self, dealer: int) -> int:
        """A dealer's new stream: what the older one was asked for is lacking again. Returns the stream's number."""
        self._dealer_streams[dealer] += 1
        self._unask(dealer)
        return self._dealer_streams[dealer]

    def dealer_left(self, dealer: int, stream: int) -> None:
        """A dealer's stream ended."""
        if stream == self._dealer_streams[dealer]:
            self._unask(dealer)

    def _unask(self, dealer: int) -> None:
        for receiver, number in self._asked[dealer]:
            self._lacking[dealer][receiver].add(number)
            self._coming[receiver] -= 1
        self._asked[dealer].clear()

    def receiver_came(self, receiver: int) -> int:
        """A receiver's new stream: what was under way is sent again. Returns the stream's number."""
        self._receiver_streams[receiver] += 1
        self._unsend(receiver)
        return self._receiver_streams[receiver]

    def receiver_left(self, receiver: int, stream: int) -> None:
        """A receiver's stream ended."""
        if stream == self._receiver_streams[receiver]:
            self._unsend(receiver)

    def _unsend(self, receiver: int) -> None:
        self._declared[receiver].clear()
        for place in self._waiting[receiver]:
            self._waiting[receiver][place] = False

    @property
    def spooled_bytes(self) -> int:
        return self._spool.bytes_waiting

    def _check(self, dealer: int) -> None:
        if not 0 <= dealer < len(self._lacking):
            raise MessageError(f"client {dealer} does not exist among {len(self._lacking)}")

    def _wake_dealers(self) -> None:
        for event in self.dealer_wakes:
            event.set()
