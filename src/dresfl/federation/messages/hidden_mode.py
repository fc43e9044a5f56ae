"""The rounds of the hidden mode: hop after hop, and how a client comes back that was away."""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self, final

from dresfl.errors import MessageError
from dresfl.protocol.hidden.ledger import Position

from .form import Message, Octets, Plain, head_of

_NOTHING = struct.Struct("<")
_STANDING = struct.Struct("<IH32sB64s")
_COUNT = struct.Struct("<H")
_HOP = struct.Struct("<IH")
_POSITION = struct.Struct("<IH32s")
_CONFIRMED = struct.Struct("<IH32s64s")
_CONFIRMATIONS = struct.Struct("<IH32sHI")
_ENTRY = struct.Struct("<H64s")
_HOLDS_CHECK, _BEHIND = 1, 2  # flags


@final
@dataclass(frozen=True, eq=False)
class HopAnswered(Plain):
    """A client's answer to a hop, still encoded: the opening checks it."""

    answer: Octets

    KIND: ClassVar[int] = 12
    FORM = _NOTHING
    REST = "bytes"


@final
@dataclass(frozen=True)
class Standing(Plain):
    """Where a client stands, when it joins the rounds or comes back, or if it was sent what it cannot use.

    With it comes its signature of the run: no client answers before many have signed the same one.
    """

    round_number: int
    hop: int
    chain: bytes
    flags: int
    signature: bytes

    KIND: ClassVar[int] = 13
    FORM = _STANDING

    def __post_init__(self) -> None:
        if self.flags > _HOLDS_CHECK | _BEHIND:
            raise MessageError(f"a Standing message with the flags {self.flags} came")

    @classmethod
    def at(cls, position: Position, signature: bytes, *, holds_check: bool, behind: bool) -> Self:
        """holds_check: it can answer the next hop. behind: an earlier process of it was further."""
        flags = _HOLDS_CHECK * holds_check + _BEHIND * behind
        return cls(*position.order, position.chain, flags, signature)

    @property
    def position(self) -> Position:
        return Position(self.round_number, self.hop, self.chain)

    @property
    def holds_check(self) -> bool:
        return bool(self.flags & _HOLDS_CHECK)

    @property
    def behind(self) -> bool:
        return bool(self.flags & _BEHIND)


@final
@dataclass(frozen=True, eq=False)
class Confirmed(Plain):
    """Check C: a client's check value of the hop before this position, for all clients and for nobody else."""

    round_number: int
    hop: int
    chain: bytes
    signature: bytes
    sealed: Octets

    KIND: ClassVar[int] = 14
    FORM = _CONFIRMED
    REST = "bytes"

    @property
    def position(self) -> Position:
        return Position(self.round_number, self.hop, self.chain)


@final
@dataclass(frozen=True)
class Started(Message):
    """The clients that have signed the run, and their signatures, ascending."""

    signatures: tuple[tuple[int, bytes], ...]

    KIND: ClassVar[int] = 30

    def body(self) -> tuple[Octets, ...]:
        return _COUNT.pack(len(self.signatures)), *(_ENTRY.pack(*signed) for signed in self.signatures)

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (count,), rest = head_of(_COUNT, body, "Started")
        if len(rest) != count * _ENTRY.size:
            raise MessageError(f"a Started message of {count} clients has {len(body)} bytes")
        signatures = tuple(_ENTRY.iter_unpack(rest))
        clients = [client for client, _ in signatures]
        if clients != sorted(set(clients)):
            raise MessageError("a Started message must list clients in ascending order")
        return cls(signatures)


@final
@dataclass(frozen=True, eq=False)
class Opened(Plain):
    """What a hop has published."""

    round_number: int
    hop: int
    published: Octets

    KIND: ClassVar[int] = 26
    FORM = _HOP
    REST = "bytes"


@final
@dataclass(frozen=True, eq=False)
class Resume(Plain):
    """Where the run stands, for a client that joins it, with what it has missed; empty: it is there already."""

    round_number: int
    hop: int
    chain: bytes
    history: Octets

    KIND: ClassVar[int] = 27
    FORM = _POSITION
    REST = "bytes"

    @property
    def position(self) -> Position:
        return Position(self.round_number, self.hop, self.chain)


@final
@dataclass(frozen=True, eq=False)
class Confirmations(Message):
    """Check C: the check values of many clients, as they were sent, client by client, ascending."""

    position: Position
    values: tuple[tuple[int, bytes, Octets], ...]  # client, signature, sealed; the sealed ones have one length

    KIND: ClassVar[int] = 28

    def body(self) -> tuple[Octets, ...]:
        size = len(self.values[0][2]) if self.values else 0
        position = self.position
        parts: list[Octets] = [_CONFIRMATIONS.pack(*position.order, position.chain, len(self.values), size)]
        for client, signature, sealed in self.values:
            parts += [_ENTRY.pack(client, signature), sealed]
        return tuple(parts)

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (number, hop, chain, count, size), rest = head_of(_CONFIRMATIONS, body, "Confirmations")
        if len(rest) != count * (_ENTRY.size + size) or (size and not count):
            raise MessageError(f"a Confirmations message of {count} clients has {len(body)} bytes")
        values = []
        for _ in range(count):
            client, signature = _ENTRY.unpack_from(rest)
            values.append((client, signature, rest[_ENTRY.size : _ENTRY.size + size]))
            rest = rest[_ENTRY.size + size :]
        clients = [client for client, _, _ in values]
        if clients != sorted(set(clients)):
            raise MessageError("a Confirmations message must list clients in ascending order")
        return cls(Position(number, hop, chain), tuple(values))
