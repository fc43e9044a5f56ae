"""The rounds of the open mode."""

import struct
from dataclasses import dataclass
from typing import ClassVar, final

from .form import Octets, Plain

_ROUND = struct.Struct("<I")
_DELTA = struct.Struct("<IIB32s")
_NOTHING = struct.Struct("<")


@final
@dataclass(frozen=True, eq=False)
class Answered(Plain):
    """A client's Answer, still encoded: the opening checks it."""

    round_number: int
    answer: Octets

    KIND: ClassVar[int] = 7
    FORM = _ROUND
    REST = "bytes"


@final
@dataclass(frozen=True, eq=False)
class Weights(Plain):
    """A round's weights in full, as a Task that is still encoded."""

    task: Octets

    KIND: ClassVar[int] = 20
    FORM = _NOTHING
    REST = "bytes"
    newest_only: ClassVar[bool] = True


@final
@dataclass(frozen=True, eq=False)
class Delta(Plain):
    """The weights of a round, as differences from the ones sent before on the same connection."""

    round_number: int
    base_round: int
    width: int
    digest: bytes
    packed: Octets

    KIND: ClassVar[int] = 21
    FORM = _DELTA
    REST = "bytes"


@final
@dataclass(frozen=True, eq=False)
class Done(Plain):
    """The final weights, as a Task that is still encoded."""

    task: Octets

    KIND: ClassVar[int] = 22
    FORM = _NOTHING
    REST = "bytes"
