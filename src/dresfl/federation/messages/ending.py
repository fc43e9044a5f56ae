"""Of both modes: a client that will not answer, one that has the model, and an alarm."""

import struct
from dataclasses import dataclass
from typing import ClassVar, final

from .form import Plain

ANY_ROUND = 2**32 - 1  # in a Declined: this client answers no round any more; no run has so many rounds

_ROUND = struct.Struct("<I")
_NOTHING = struct.Struct("<")


@final
@dataclass(frozen=True)
class Informed(Plain):
    """A client has kept the final weights."""

    rounds: int

    KIND: ClassVar[int] = 8
    FORM = _ROUND


@final
@dataclass(frozen=True)
class Declined(Plain):
    """A client will not answer a round, or, with ANY_ROUND, no round at all until it comes back."""

    round_number: int
    reason: str

    KIND: ClassVar[int] = 9
    FORM = _ROUND
    REST = "text"


@final
@dataclass(frozen=True)
class Alarm(Plain):
    """The coordinator has found that something was falsified. The run is over for good, without a model."""

    reason: str

    KIND: ClassVar[int] = 29
    FORM = _NOTHING
    REST = "text"
