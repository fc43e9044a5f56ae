"""Who lacks which slice, and what waits for whom: the coordinator's side of the relay, in messages of a few megabytes.

What a receiver lacks is known from itself alone. The coordinator asks dealers for it, holds what comes in memory, each
receiver within its part of it, and hands it on. Nothing is acknowledged: the receiver's next account says what it has.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import final

from dresfl.errors import MessageError
from dresfl.federation import parcel_bytes
from dresfl.protocol import Session, num_slices

from .letters import Parcel, Place

MESSAGE_BYTES = 4 * 2**20
_MOST_REJECTS = 3  # of one slice: then its dealer is not asked again in this run


@final
class Relay:
    """What is lacking, asked for and waiting."""

    def __init__(self, session: Session, memory: int) -> None:
        clients = range(session.num_clients)
        self._session = session
        self._quota = max(MESSAGE_BYTES, memory // len(clients))  # bytes for each receiver
        self._lacking: list[set[Place] | None] = [None for _ in clients]  # [receiver]: dealer and slice; None: unknown
        self._asked: list[set[Place]] = [set() for _ in clients]  # [dealer]: receiver and slice
        self._waiting: list[dict[Place, bytes]] = [{} for _ in clients]  # [receiver]: dealer and slice
        self._rejects: defaultdict[tuple[int, Place], int] = defaultdict(int)

    # -- receivers -------------------------------------------------------------------------------------------

    def lacks_everything(self, receiver: int) -> None:
        """A receiver has no share of this sharing yet: so much is known without asking."""
        clients = [dealer for dealer in range(self._session.num_clients) if dealer != receiver]
        self.declare(receiver, [(d, number) for d in clients for number in range(num_slices(self._session, d))])

    def declare(self, receiver: int, missing: Iterable[Place]) -> None:
        """A receiver's own account of what it lacks."""
        places = set(missing)
        for dealer, number in places:
            if not 0 <= dealer < self._session.num_clients or number >= num_slices(self._session, dealer):
                raise MessageError(f"client {receiver} lacks slice {number} of client {dealer}, which does not exist")
        self._lacking[receiver] = places
        for place in [place for place in self._waiting[receiver] if place not in places]:
            del self._waiting[receiver][place]

    def lacking(self, receiver: int) -> set[Place]:
        """What a receiver lacks, as far as is known."""
        return self._lacking[receiver] or set()

    def forget(self, receiver: int) -> None:
        """What a receiver holds is not known any more."""
        self._lacking[receiver] = None

    def knows(self, receiver: int) -> bool:
        return self._lacking[receiver] is not None

    def ready(self, receiver: int) -> bool:
        """Whether a receiver has said that it lacks nothing."""
        return self._lacking[receiver] == set()

    def due(self, receiver: int) -> list[Parcel]:
        """What to hand to a receiver now: as much as one message takes, or, if no more is coming, what there is."""
        coming = any(place[0] == receiver for asked in self._asked for place in asked)
        parcels: list[Parcel] = []
        size = 0
        for (dealer, number), sealed in self._waiting[receiver].items():
            if parcels and size + len(sealed) > MESSAGE_BYTES:
                return parcels
            parcels.append((dealer, number, sealed))
            size += len(sealed)
        return [] if coming else parcels

    def rejected(self, receiver: int, dealer: int, number: int) -> bool:
        """A slice did not open at its receiver: away with it. False if its dealer is not asked for it again."""
        self._waiting[receiver].pop((dealer, number), None)
        self._rejects[receiver, (dealer, number)] += 1
        return self._rejects[receiver, (dealer, number)] <= _MOST_REJECTS

    # -- dealers ---------------------------------------------------------------------------------------------

    def ask(self, dealer: int) -> list[Place]:
        """What to ask a dealer for now: receivers and slices, as much as one message takes.

        Low numbers first, for several receivers at once, so that it expands its masks once; and each dealer begins
        with the receiver after itself, so that all receivers get their parts alike.
        """
        clients = self._session.num_clients
        wanted = [
            (number, (receiver - dealer) % clients)
            for receiver in range(clients)
            for owner, number in self._lacking[receiver] or ()
            if owner == dealer and receiver != dealer and self._wanted(receiver, (dealer, number))
        ]
        room = {receiver: self._quota - self._taken(receiver) for receiver in range(clients)}
        places: list[Place] = []
        size = 0
        for number, distance in sorted(wanted):
            receiver, parcel = (dealer + distance) % clients, parcel_bytes(self._session, dealer, number)
            if places and size + parcel > MESSAGE_BYTES:
                break
            if parcel <= room[receiver]:
                places.append((receiver, number))
                size += parcel
                room[receiver] -= parcel
        self._asked[dealer].update(places)
        return places

    def _wanted(self, receiver: int, place: Place) -> bool:
        dealer, number = place
        there = place in self._waiting[receiver] or (receiver, number) in self._asked[dealer]
        return not there and self._rejects[receiver, place] <= _MOST_REJECTS

    def _taken(self, receiver: int) -> int:
        """Bytes of this receiver's part of the memory in use, or about to be."""
        coming = sum(
            parcel_bytes(self._session, dealer, number)
            for dealer, asked in enumerate(self._asked)
            for to, number in asked
            if to == receiver
        )
        return coming + sum(map(len, self._waiting[receiver].values()))

    def dealt(self, dealer: int, parcels: Iterable[Parcel]) -> None:
        """Take what a dealer sent: only what it was asked for, and only of the right size."""
        for receiver, number, sealed in parcels:
            if (receiver, number) not in self._asked[dealer]:
                raise MessageError(f"slice {number} for client {receiver} came from client {dealer} unasked")
            if len(sealed) != parcel_bytes(self._session, dealer, number):
                raise MessageError(f"a slice of {len(sealed)} bytes came from client {dealer}")
            self._asked[dealer].discard((receiver, number))
            self._waiting[receiver][dealer, number] = sealed

    def unask(self, dealer: int) -> None:
        """A dealer was not heard of, or is done: what it was asked for and did not send is lacking again."""
        self._asked[dealer].clear()
