"""A sum over clients: what each deals, who has signed which set of dealers, what receivers added, and the totals."""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self, final

from dresfl.errors import MessageError

from .form import Message, Octets, Plain, head_of

_SUM = struct.Struct("<16s")
_COUNT = struct.Struct("<H")
_PART = struct.Struct("<HI")
_SIGNED = struct.Struct("<H64s")
_SIGNATURE = struct.Struct("<64s")
_TOTAL = struct.Struct("<q")


def _pack_clients(clients: tuple[int, ...]) -> bytes:
    return struct.pack(f"<H{len(clients)}H", len(clients), *clients)


def _clients(body: memoryview, name: str) -> tuple[tuple[int, ...], memoryview]:
    """A list of clients, ascending, and what follows it."""
    (count,), rest = head_of(_COUNT, body, name)
    found, rest = head_of(struct.Struct(f"<{count}H"), rest, name)
    if list(found) != sorted(set(found)):
        raise MessageError(f"a {name} message must list clients in ascending order")
    return found, rest


def _pack_parts(parts: tuple[tuple[int, Octets], ...]) -> tuple[Octets, ...]:
    packed: list[Octets] = [_COUNT.pack(len(parts))]
    for client, sealed in parts:
        packed += [_PART.pack(client, len(sealed)), sealed]
    return tuple(packed)


def _parts(body: memoryview, name: str) -> tuple[tuple[int, Octets], ...]:
    """Sealed parts, by client, ascending; nothing follows them."""
    (count,), rest = head_of(_COUNT, body, name)
    found: list[tuple[int, Octets]] = []
    for _ in range(count):
        (client, size), rest = head_of(_PART, rest, name)
        if size > len(rest) or (found and client <= found[-1][0]):
            raise MessageError(f"a {name} message must have each client's part once, in order, and whole")
        found.append((client, rest[:size]))
        rest = rest[size:]
    if len(rest):
        raise MessageError(f"a {name} message has {len(rest)} bytes too many")
    return tuple(found)


@final
@dataclass(frozen=True, eq=False)
class Counted(Message):
    """A client has shared its vector: a sealed share for every client, itself among them."""

    sum_id: bytes
    sealed: tuple[tuple[int, Octets], ...]  # receiver, share

    KIND: ClassVar[int] = 32

    def body(self) -> tuple[Octets, ...]:
        return self.sum_id, *_pack_parts(self.sealed)

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (sum_id,), rest = head_of(_SUM, body, "Counted")
        return cls(sum_id, _parts(rest, "Counted"))


@final
@dataclass(frozen=True)
class SetSigned(Message):
    """A client holds a share of each of these dealers, and has signed this set. It signs no other."""

    sum_id: bytes
    signature: bytes
    dealers: tuple[int, ...]

    KIND: ClassVar[int] = 33

    def body(self) -> tuple[Octets, ...]:
        return self.sum_id, self.signature, _pack_clients(self.dealers)

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (sum_id,), rest = head_of(_SUM, body, "SetSigned")
        (signature,), rest = head_of(_SIGNATURE, rest, "SetSigned")
        dealers, rest = _clients(rest, "SetSigned")
        if len(rest):
            raise MessageError(f"a SetSigned message has {len(rest)} bytes too many")
        return cls(sum_id, signature, dealers)


@final
@dataclass(frozen=True, eq=False)
class Added(Plain):
    """What a receiver added: residues, still packed."""

    sum_id: bytes
    residues: Octets

    KIND: ClassVar[int] = 34
    FORM = _SUM
    REST = "bytes"


@final
@dataclass(frozen=True, eq=False)
class DealersOf(Message):
    """The set of dealers that is to be summed, and their shares for this receiver."""

    sum_id: bytes
    dealers: tuple[int, ...]
    sealed: tuple[tuple[int, Octets], ...]  # dealer, share

    KIND: ClassVar[int] = 40

    def body(self) -> tuple[Octets, ...]:
        return self.sum_id, _pack_clients(self.dealers), *_pack_parts(self.sealed)

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (sum_id,), rest = head_of(_SUM, body, "DealersOf")
        dealers, rest = _clients(rest, "DealersOf")
        return cls(sum_id, dealers, _parts(rest, "DealersOf"))


@final
@dataclass(frozen=True, eq=False)
class Release(Message):
    """So many clients have signed this set: receivers may show what they added. The shares come along once more."""

    sum_id: bytes
    dealers: tuple[int, ...]
    signatures: tuple[tuple[int, bytes], ...]  # client, signature
    sealed: tuple[tuple[int, Octets], ...]  # dealer, share

    KIND: ClassVar[int] = 41

    def body(self) -> tuple[Octets, ...]:
        signed = b"".join(_SIGNED.pack(*entry) for entry in self.signatures)
        head = self.sum_id, _pack_clients(self.dealers), _COUNT.pack(len(self.signatures)), signed
        return *head, *_pack_parts(self.sealed)

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (sum_id,), rest = head_of(_SUM, body, "Release")
        dealers, rest = _clients(rest, "Release")
        (count,), rest = head_of(_COUNT, rest, "Release")
        size = count * _SIGNED.size
        if len(rest) < size:
            raise MessageError(f"a Release message of {len(body)} bytes is too short for {count} signatures")
        signatures = tuple(_SIGNED.iter_unpack(rest[:size]))
        clients = [client for client, _ in signatures]
        if clients != sorted(set(clients)):
            raise MessageError("a Release message must list clients in ascending order")
        return cls(sum_id, dealers, signatures, _parts(rest[size:], "Release"))


@final
@dataclass(frozen=True)
class TotalsOf(Message):
    """What came of a sum. No dealers: nothing, since too few took part or agreed."""

    sum_id: bytes
    dealers: tuple[int, ...]
    values: tuple[int, ...]

    KIND: ClassVar[int] = 42

    def body(self) -> tuple[Octets, ...]:
        return self.sum_id, _pack_clients(self.dealers), b"".join(map(_TOTAL.pack, self.values))

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (sum_id,), rest = head_of(_SUM, body, "TotalsOf")
        dealers, rest = _clients(rest, "TotalsOf")
        if len(rest) % _TOTAL.size:
            raise MessageError(f"a TotalsOf message of {len(body)} bytes does not hold whole numbers")
        return cls(sum_id, dealers, tuple(value for (value,) in _TOTAL.iter_unpack(rest)))
