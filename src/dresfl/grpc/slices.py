"""The relay's view of a sharing: its slices, the envelopes around them, and how large anything may be."""

from dataclasses import dataclass
from typing import final

from dresfl.party import num_slices, row_bytes, slice_rows
from dresfl.protocol import Session
from dresfl.sealing import OVERHEAD, SealContext

_SHARE_HEADER = 30  # of a Share message, before its residues


@final
@dataclass(frozen=True)
class Slices:
    """The slices of one sharing, as `dresfl.party` cuts them."""

    session: Session

    @property
    def most_bytes(self) -> int:
        """The largest sealed slice."""
        return slice_rows(self.session) * row_bytes(self.session) + _SHARE_HEADER + OVERHEAD

    def count(self, dealer: int) -> int:
        """How many slices a dealer makes for each receiver."""
        return num_slices(self.session, dealer)

    def context(self, dealer: int, receiver: int, number: int) -> SealContext:
        """What a slice's envelope is bound to."""
        return SealContext(self.session.sharing_id, dealer, receiver, number, self.count(dealer))
