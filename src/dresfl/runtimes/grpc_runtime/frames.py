"""The frames between the coordinator and a site, byte by byte. Integers are little-endian and unsigned.

    kind u8 | body, where the body is, by kind

    Session, from the site
     1 Hello    version u8 | agreement 32 | rows u32 | contribution 32 | held nonce 32 (zeros: none) | challenge 16
     2 Ready    sharing 16                                  this site holds every share
     3 Reply    round u32 | an Answer message; or, with the number of rounds and nothing else: Done was heard

    Session, from the coordinator
    16 Begin    signature 64 | run nonce 16 | nonce 32 | own bytes 16 | N u16 | N · (rows u32, contribution 32)
    17 Weights  a Task message
    18 Delta    round u32 | base round u32 | width u8 (1, 2, 4) | sha256 32 | zlib of P signed differences
    19 Done     a Task message: the final weights, with the number of rounds as its round
    20 Wait     text: what the coordinator is waiting for

    Deal and Collect (the relay); peer: the receiver on Deal, the dealer on Collect
    32 Open     sharing 16                                  the first frame of either stream, from the site
    33 Request  peer u16 | slice u32                        Deal, from the coordinator
    34 Slice    peer u16 | slice u32 | sealed bytes         Deal from the site, Collect from the coordinator
    35 Holding  peer u16 | a bit for each slice, low first  Collect, from the site, one for each dealer
    36 Ack      peer u16 | slice u32                        Collect, from the site: kept on its disk
    37 Reject   peer u16 | slice u32 | text                 Collect, from the site: it did not open

A frame of another kind, length or version than expected is refused with MessageError before anything of it is used.
"""

import struct
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, final, overload

from dresfl.errors import MessageError
from dresfl.federation import Introduction, Terms

VERSION = 1
TEXT_BYTES = 1000  # of a text in a frame
_HOLDING_BYTES = 2**16  # 524,288 slices of one dealer: half a terabyte

_HELLO = struct.Struct("<B32sI32s32s16s")
_SIGNATURE = struct.Struct("<64s")
_ROUND = struct.Struct("<I")
_DELTA = struct.Struct("<IIB32s")
_PEER = struct.Struct("<H")
_PLACE = struct.Struct("<HI")


def _fixed(data: memoryview, form: struct.Struct, name: str) -> tuple[tuple[Any, ...], memoryview]:
    """The fixed fields at the start of a body, and what follows them."""
    if len(data) < form.size:
        raise MessageError(f"a {name} of {len(data)} bytes is too short")
    return form.unpack_from(data), data[form.size :]


def _whole(data: memoryview, form: struct.Struct, name: str) -> tuple[Any, ...]:
    """The fixed fields of a body that has nothing else."""
    if len(data) != form.size:
        raise MessageError(f"a {name} has {form.size} bytes, not {len(data)}")
    return form.unpack(data)


def _text(data: memoryview) -> str:
    if len(data) > TEXT_BYTES:
        raise MessageError(f"a text of {len(data)} bytes is too long")
    return bytes(data).decode("utf-8", "replace")


def _cut(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:TEXT_BYTES]


@final
@dataclass(frozen=True)
class Hello:
    """A site introduces itself. Who it is comes from its certificate, never from here."""

    agreement: bytes
    rows: int
    contribution: bytes
    held_nonce: bytes
    challenge: bytes

    KIND: ClassVar[int] = 1

    @property
    def introduction(self) -> Introduction:
        """What it says for the terms. Refused if that cannot be."""
        return Introduction(self.rows, self.contribution, self.held_nonce)

    def encode(self) -> bytes:
        fields = (self.agreement, self.rows, self.contribution, self.held_nonce, self.challenge)
        return bytes([self.KIND]) + _HELLO.pack(VERSION, *fields)

    @classmethod
    def decode(cls, body: memoryview) -> "Hello":
        if len(body) and body[0] != VERSION:
            raise MessageError(f"version {body[0]} is not spoken here", f"use a dresfl that speaks version {VERSION}")
        _, *fields = _whole(body, _HELLO, "Hello")
        return cls(*fields)


@final
@dataclass(frozen=True)
class Ready:
    """A site holds every share of this sharing and can answer tasks."""

    sharing_id: bytes

    KIND: ClassVar[int] = 2

    def encode(self) -> bytes:
        return bytes([self.KIND]) + self.sharing_id

    @classmethod
    def decode(cls, body: memoryview) -> "Ready":
        if len(body) != 16:
            raise MessageError(f"a Ready has 16 bytes, not {len(body)}")
        return cls(bytes(body))


@final
@dataclass(frozen=True, eq=False)
class Reply:
    """A site's Answer, still encoded: the protocol checks it."""

    round_number: int
    answer: bytes

    KIND: ClassVar[int] = 3

    def encode(self) -> bytes:
        return b"".join((bytes([self.KIND]), _ROUND.pack(self.round_number), self.answer))

    @classmethod
    def decode(cls, body: memoryview) -> "Reply":
        (round_number,), rest = _fixed(body, _ROUND, "Reply")
        return cls(round_number, bytes(rest))


@final
@dataclass(frozen=True)
class Begin:
    """What makes a session of the agreement: the terms, signed for one site's challenge."""

    signature: bytes
    terms: Terms  # as they came: not checked yet

    KIND: ClassVar[int] = 16

    def body(self) -> bytes:
        """What is signed, beside the challenge: all but the signature."""
        return self.terms.encode()

    def encode(self) -> bytes:
        return bytes([self.KIND]) + self.signature + self.body()

    @classmethod
    def decode(cls, body: memoryview) -> "Begin":
        (signature,), rest = _fixed(body, _SIGNATURE, "Begin")
        return cls(signature, Terms.decode(bytes(rest)))


@final
@dataclass(frozen=True, eq=False)
class Weights:
    """A Task in full, still encoded."""

    task: bytes

    KIND: ClassVar[int] = 17

    def encode(self) -> bytes:
        return bytes([self.KIND]) + self.task

    @classmethod
    def decode(cls, body: memoryview) -> "Weights":
        return cls(bytes(body))


@final
@dataclass(frozen=True, eq=False)
class Delta:
    """A Task as differences from the one sent before on the same stream."""

    round_number: int
    base_round: int
    width: int
    digest: bytes
    packed: bytes

    KIND: ClassVar[int] = 18

    def encode(self) -> bytes:
        head = _DELTA.pack(self.round_number, self.base_round, self.width, self.digest)
        return bytes([self.KIND]) + head + self.packed

    @classmethod
    def decode(cls, body: memoryview) -> "Delta":
        (round_number, base_round, width, digest), rest = _fixed(body, _DELTA, "Delta")
        return cls(round_number, base_round, width, digest, bytes(rest))


@final
@dataclass(frozen=True, eq=False)
class Done:
    """The run is complete: the final weights as a Task."""

    task: bytes

    KIND: ClassVar[int] = 19

    def encode(self) -> bytes:
        return bytes([self.KIND]) + self.task

    @classmethod
    def decode(cls, body: memoryview) -> "Done":
        return cls(bytes(body))


@final
@dataclass(frozen=True)
class Wait:
    """Why nothing happens yet."""

    text: str

    KIND: ClassVar[int] = 20

    def encode(self) -> bytes:
        return bytes([self.KIND]) + _cut(self.text)

    @classmethod
    def decode(cls, body: memoryview) -> "Wait":
        return cls(_text(body))


@final
@dataclass(frozen=True)
class Open:
    """The sharing that a relay stream serves."""

    sharing_id: bytes

    KIND: ClassVar[int] = 32

    def encode(self) -> bytes:
        return bytes([self.KIND]) + self.sharing_id

    @classmethod
    def decode(cls, body: memoryview) -> "Open":
        if len(body) != 16:
            raise MessageError(f"an Open has 16 bytes, not {len(body)}")
        return cls(bytes(body))


@final
@dataclass(frozen=True)
class Request:
    """The coordinator asks a dealer for one slice for one receiver."""

    peer: int
    number: int

    KIND: ClassVar[int] = 33

    def encode(self) -> bytes:
        return bytes([self.KIND]) + _PLACE.pack(self.peer, self.number)

    @classmethod
    def decode(cls, body: memoryview) -> "Request":
        return cls(*_whole(body, _PLACE, "Request"))


@final
@dataclass(frozen=True, eq=False)
class Slice:
    """One sealed slice. The coordinator sees only its size and its place."""

    peer: int
    number: int
    sealed: bytes

    KIND: ClassVar[int] = 34

    def encode(self) -> bytes:
        return b"".join((bytes([self.KIND]), _PLACE.pack(self.peer, self.number), self.sealed))

    @classmethod
    def decode(cls, body: memoryview) -> "Slice":
        (peer, number), rest = _fixed(body, _PLACE, "Slice")
        return cls(peer, number, bytes(rest))


@final
@dataclass(frozen=True)
class Holding:
    """Which of a dealer's slices a receiver has on its disk."""

    peer: int
    held: frozenset[int]

    KIND: ClassVar[int] = 35

    def encode(self) -> bytes:
        bits = sum(1 << number for number in self.held)
        return bytes([self.KIND]) + _PEER.pack(self.peer) + bits.to_bytes(-(-bits.bit_length() // 8), "little")

    @classmethod
    def decode(cls, body: memoryview) -> "Holding":
        (peer,), rest = _fixed(body, _PEER, "Holding")
        if len(rest) > _HOLDING_BYTES:
            raise MessageError(f"a Holding of {len(rest)} bytes is too long")
        held = (8 * i + j for i, byte in enumerate(rest) if byte for j in range(8) if byte >> j & 1)
        return cls(peer, frozenset(held))


@final
@dataclass(frozen=True)
class Ack:
    """A receiver has a slice on its disk; the coordinator may forget it."""

    peer: int
    number: int

    KIND: ClassVar[int] = 36

    def encode(self) -> bytes:
        return bytes([self.KIND]) + _PLACE.pack(self.peer, self.number)

    @classmethod
    def decode(cls, body: memoryview) -> "Ack":
        return cls(*_whole(body, _PLACE, "Ack"))


@final
@dataclass(frozen=True)
class Reject:
    """A slice did not open at its receiver: it was not sealed for it, here, by that dealer."""

    peer: int
    number: int
    reason: str

    KIND: ClassVar[int] = 37

    def encode(self) -> bytes:
        return bytes([self.KIND]) + _PLACE.pack(self.peer, self.number) + _cut(self.reason)

    @classmethod
    def decode(cls, body: memoryview) -> "Reject":
        (peer, number), rest = _fixed(body, _PLACE, "Reject")
        return cls(peer, number, _text(rest))


_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")


@overload
def decode(data: bytes, first: type[_A], /) -> _A: ...
@overload
def decode(data: bytes, first: type[_A], second: type[_B], /) -> _A | _B: ...
@overload
def decode(data: bytes, first: type[_A], second: type[_B], third: type[_C], /) -> _A | _B | _C: ...
def decode(data: bytes, /, *kinds: Any) -> Any:
    """A frame of one of the kinds that may come now.

    >>> decode(Ready(bytes(16)).encode(), Ready, Reply) == Ready(bytes(16))
    True
    """
    if not data:
        raise MessageError("an empty frame came")
    for kind in kinds:
        if data[0] == kind.KIND:
            return kind.decode(memoryview(data)[1:])
    wanted = " or ".join(kind.__name__ for kind in kinds)
    raise MessageError(f"a frame of kind {data[0]} came where {wanted} was expected")
