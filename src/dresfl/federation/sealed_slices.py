"""Slices of shares, sealed for the way: a dealer makes them, a receiver opens and keeps them.

An envelope holds a Share. That of a dealer's last slice also holds the dealer's set-up values for the receiver.
"""

from collections.abc import Iterable, Sequence
from typing import final

from dresfl.errors import MessageError
from dresfl.protocol import (
    Client,
    Session,
    Share,
    ShareTable,
    most_set_up_bytes,
    num_slices,
    row_bytes,
    set_up_bytes,
    slice_range,
    slice_rows,
)
from dresfl.sealing import OVERHEAD, Identity, Roster, SealContext, open_sealed, seal

_SHARE_HEADER = 30  # bytes of a Share message before its residues
_GROUP = 32  # receivers whose shares of a slice are encoded together
_KEPT_BYTES = 2**26  # of encoded shares that wait to be dealt; of one group there may be more


def sealed_bytes(session: Session, dealer: int, number: int) -> int:
    """The size of one sealed slice."""
    last = number == num_slices(session, dealer) - 1
    set_up = set_up_bytes(session, dealer) if last else 0
    return _sealed_bytes(session, len(slice_range(session, dealer, number))) + set_up


def full_sealed_bytes(session: Session) -> int:
    """The size of every sealed slice but a dealer's last."""
    return _sealed_bytes(session, slice_rows(session))


def most_sealed_bytes(session: Session) -> int:
    """The size of the largest sealed slice that there can be, whatever the row counts."""
    return full_sealed_bytes(session) + most_set_up_bytes(session)


def _sealed_bytes(session: Session, rows: int) -> int:
    return rows * row_bytes(session) + _SHARE_HEADER + OVERHEAD


def missing_slices(session: Session, dealer: int, table: ShareTable) -> list[int]:
    """The numbers of a dealer's slices that a table lacks, ascending. The last one has the set-up values, too."""
    size = slice_rows(session)
    rows = table.missing(dealer)
    lacking = {number for missing in rows for number in range(missing.start // size, -(-missing.stop // size))}
    if table.set_up(dealer) is None:
        lacking.add(num_slices(session, dealer) - 1)
    return sorted(lacking)


@final
class SealedSlices:
    """One client's side of a sharing: its slices for others, and those of others for it.

    Dealing and keeping do not touch each other: each may have a thread of its own.
    """

    def __init__(self, client: Client, table: ShareTable, identity: Identity, roster: Roster) -> None:
        """table: the one that the client keeps its shares in."""
        self._client, self._table, self._identity, self._roster = client, table, identity, roster
        self._session = client.session
        self._number = -1  # of the slice that was asked for last
        self._groups: set[int] = set()  # those whose shares of this slice were encoded already
        self._encoded: dict[int, bytes] = {}  # receiver -> what its envelope of this slice holds

    def deal(self, receiver: int, number: int) -> bytes:
        """A sealed slice. The shares of a group of receivers are encoded with it and kept, since they are wanted next.

        Receivers join in any order, so several groups may be in work at once. Each share is kept until it is dealt; if
        one is asked for again, it is encoded alone.
        """
        self._check_receiver(receiver)
        group = receiver // _GROUP
        if number != self._number:
            self._number, self._groups, self._encoded = number, set(), {}
        if receiver not in self._encoded:
            if sum(map(len, self._encoded.values())) > _KEPT_BYTES:
                self._groups, self._encoded = set(), {}
            members = range(self._session.num_clients)[group * _GROUP : (group + 1) * _GROUP]
            together = [i for i in members if i != self._client.index] if group not in self._groups else [receiver]
            self._encoded.update(self._shares(together, number))
            self._groups.add(group)
        return self._sealed(receiver, number, self._encoded.pop(receiver))

    def _check_receiver(self, receiver: int) -> None:
        if not 0 <= receiver < self._session.num_clients or receiver == self._client.index:
            raise MessageError(f"the coordinator asks for a slice for client {receiver}, which there cannot be")

    def _shares(self, receivers: Sequence[int], number: int) -> Iterable[tuple[int, bytes]]:
        """What the envelopes of one slice hold, with their receivers. Refuses a slice that does not exist."""
        rows = slice_range(self._session, self._client.index, number)
        last = number == num_slices(self._session, self._client.index) - 1
        set_up = self._client.deal_set_up(receivers) if last else [b""] * len(receivers)
        for share, rest in zip(self._client.deal_to(receivers, rows.start, len(rows)), set_up, strict=True):
            yield share.receiver, share.encode(self._session) + rest

    def _sealed(self, receiver: int, number: int, share: bytes) -> bytes:
        context = self._context(self._client.index, receiver, number)
        return seal(self._identity, self._roster.members[receiver], context, share)

    def keep_own(self) -> None:
        """This client's own share of its own rows goes nowhere: it is dealt and kept here."""
        own = self._client.index
        for number in missing_slices(self._session, own, self._table):
            rows = slice_range(self._session, own, number)
            self._client.receive(self._client.deal(own, rows.start, len(rows)))
            if number == num_slices(self._session, own) - 1:
                self._client.receive_set_up(own, self._client.deal_set_up([own])[0])

    def keep(self, dealer: int, number: int, sealed: bytes | memoryview) -> None:
        """Open a slice and keep it; MessageError if it is not what that dealer sealed for this client and place."""
        if not 0 <= dealer < self._session.num_clients:
            raise MessageError(f"client {dealer} does not exist among {self._session.num_clients}")
        rows = slice_range(self._session, dealer, number)
        context = self._context(dealer, self._client.index, number)
        opened = open_sealed(self._identity, self._roster.members[dealer], context, sealed)
        last = number == num_slices(self._session, dealer) - 1
        end = len(opened) - (set_up_bytes(self._session, dealer) if last else 0)
        if end < 0:
            raise MessageError("the envelope of a last slice has no set-up values")
        share = Share.decode(memoryview(opened)[:end], self._session)
        if (share.dealer, share.first_row, share.residues.shape[1]) != (dealer, rows.start, len(rows)):
            raise MessageError("the envelope holds another slice than it says")
        if last:
            self._client.receive_set_up(dealer, opened[end:])
        self._client.receive(share)

    def _context(self, dealer: int, receiver: int, number: int) -> SealContext:
        return SealContext(self._session.sharing_id, dealer, receiver, number, num_slices(self._session, dealer))
