"""The relay's view of a sharing: how many slices there are, and how large one may be."""

from dataclasses import dataclass
from typing import final

from dresfl.party import most_parcel_bytes, num_slices
from dresfl.protocol import Session


@final
@dataclass(frozen=True)
class Slices:
    """The slices of one sharing, as `dresfl.party` cuts and seals them."""

    session: Session

    @property
    def most_bytes(self) -> int:
        """The largest sealed slice."""
        return most_parcel_bytes(self.session)

    def count(self, dealer: int) -> int:
        """How many slices a dealer makes for each receiver."""
        return num_slices(self.session, dealer)
