"""Slices of shares, sealed for the way: a dealer makes them, a receiver opens and keeps them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import final

from dresfl.errors import MessageError
from dresfl.protocol import Client, Session, Share
from dresfl.sealing import OVERHEAD, Identity, Roster, SealContext, open_sealed, seal

from .slices import num_slices, row_bytes, slice_range
from .table import DiskTable

_SHARE_HEADER = 30  # of a Share message, before its residues


def parcel_bytes(session: Session, dealer: int, number: int) -> int:
    """The size of one sealed slice."""
    return len(slice_range(session, dealer, number)) * row_bytes(session) + _SHARE_HEADER + OVERHEAD


@final
class Parcels:
    """One client's side of a sharing: its slices for others, and those of others for it."""

    def __init__(self, client: Client, table: DiskTable, identity: Identity, roster: Roster) -> None:
        """table: the one that the client keeps its shares in."""
        self._client, self._table, self._identity, self._roster = client, table, identity, roster
        self._session = client.session

    def deal(self, places: Sequence[tuple[int, int]]) -> list[tuple[int, int, bytes]]:
        """Sealed slices for (receiver, number) each. All receivers of a number at once: its masks are expanded once."""
        receivers: defaultdict[int, list[int]] = defaultdict(list)
        for receiver, number in places:
            if not 0 <= receiver < self._session.num_clients or receiver == self._client.index:
                raise MessageError(f"the coordinator asks for a slice for client {receiver}")
            receivers[number].append(receiver)
        dealt: list[tuple[int, int, bytes]] = []
        for number, wanted in receivers.items():
            rows = slice_range(self._session, self._client.index, number)
            for share in self._client.deal_to(wanted, rows.start, len(rows)):
                context = self._context(self._client.index, share.receiver, number)
                member = self._roster.members[share.receiver]
                sealed = seal(self._identity, member, context, share.encode(self._session))
                dealt.append((share.receiver, number, sealed))
        return dealt

    def keep_own(self) -> None:
        """This client's own share of its own rows goes nowhere: it is dealt and kept here."""
        own = self._client.index
        for number in self._table.missing_slices(own):
            rows = slice_range(self._session, own, number)
            self._client.receive(self._client.deal(own, rows.start, len(rows)))

    def keep(self, dealer: int, number: int, sealed: bytes) -> None:
        """Open a slice and keep it; MessageError if it is not what that dealer sealed for this client and place."""
        if not 0 <= dealer < self._session.num_clients:
            raise MessageError(f"client {dealer} does not exist among {self._session.num_clients}")
        rows = slice_range(self._session, dealer, number)
        context = self._context(dealer, self._client.index, number)
        opened = open_sealed(self._identity, self._roster.members[dealer], context, sealed)
        share = Share.decode(opened, self._session)
        if (share.dealer, share.first_row, share.residues.shape[1]) != (dealer, rows.start, len(rows)):
            raise MessageError("the envelope holds another slice than it says")
        self._client.receive(share)

    def _context(self, dealer: int, receiver: int, number: int) -> SealContext:
        return SealContext(self._session.sharing_id, dealer, receiver, number, num_slices(self._session, dealer))
