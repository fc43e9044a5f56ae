"""Slices of shares on their way: who holds what, what is asked for, what comes."""

import struct
from dataclasses import dataclass
from typing import ClassVar, final

from .form import Octets, Plain

_READY = struct.Struct("<16s32s")
_PEER = struct.Struct("<H")
_PLACE = struct.Struct("<HI")


@final
@dataclass(frozen=True)
class Holding(Plain):
    """Which of a dealer's slices a client has on its disk: bit n of `held` stands for slice n."""

    dealer: int
    held: int

    KIND: ClassVar[int] = 2
    FORM = _PEER
    REST = "bits"


@final
@dataclass(frozen=True)
class Ready(Plain):
    """A client holds every share of this sharing. It shows the coin that its contribution to the terms is bound to."""

    sharing_id: bytes
    coin: bytes

    KIND: ClassVar[int] = 3
    FORM = _READY


@final
@dataclass(frozen=True, eq=False)
class Slice(Plain):
    """A dealer's slice, sealed for the receiver `peer`."""

    peer: int
    number: int
    sealed: Octets

    KIND: ClassVar[int] = 4
    FORM = _PLACE
    REST = "bytes"


@final
@dataclass(frozen=True)
class Ack(Plain):
    """A slice of the dealer `peer` is on this client's disk: the coordinator may forget it."""

    peer: int
    number: int

    KIND: ClassVar[int] = 5
    FORM = _PLACE


@final
@dataclass(frozen=True)
class Reject(Plain):
    """A slice did not open here: that dealer did not seal it for this client and this place."""

    peer: int
    number: int
    reason: str

    KIND: ClassVar[int] = 6
    FORM = _PLACE
    REST = "text"


@final
@dataclass(frozen=True)
class Request(Plain):
    """The coordinator asks a dealer for one slice for the receiver `peer`."""

    peer: int
    number: int

    KIND: ClassVar[int] = 18
    FORM = _PLACE


@final
@dataclass(frozen=True, eq=False)
class Relayed(Plain):
    """A slice of the dealer `peer`, on its way to its receiver."""

    peer: int
    number: int
    sealed: Octets

    KIND: ClassVar[int] = 19
    FORM = _PLACE
    REST = "bytes"
