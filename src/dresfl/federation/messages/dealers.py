"""The check of the dealers: coins, what each client finds, what came of it."""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self, final

from dresfl.errors import MessageError
from dresfl.protocol import Verdict

from .form import Message, Octets, head_of

_COUNT = struct.Struct("<H")
_SIGNATURE = struct.Struct("<64s")
_ENTRY = struct.Struct("<HI")
_COIN = 32  # bytes
_HASH = 16


@final
@dataclass(frozen=True, eq=False)
class Checked(Message):
    """What a client publishes for the check: hashes of the seeds that it holds, and its values, still packed."""

    hashes: tuple[bytes, ...]
    values: Octets

    KIND: ClassVar[int] = 10

    def body(self) -> tuple[Octets, ...]:
        return _COUNT.pack(len(self.hashes)), *self.hashes, self.values

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (count,), rest = head_of(_COUNT, body, "Checked")
        if len(rest) < count * _HASH:
            raise MessageError(f"a Checked message of {len(body)} bytes is too short for {count} hashes")
        hashes = tuple(bytes(rest[_HASH * i : _HASH * (i + 1)]) for i in range(count))
        return cls(hashes, rest[_HASH * count :])


@final
@dataclass(frozen=True)
class Check(Message):
    """Everybody's coins: every client checks what it was dealt with them."""

    coins: tuple[bytes, ...]

    KIND: ClassVar[int] = 23

    def body(self) -> tuple[Octets, ...]:
        return self.coins

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        if len(body) % _COIN:
            raise MessageError(f"a Check message of {len(body)} bytes does not hold whole coins")
        return cls(tuple(bytes(body[i : i + _COIN]) for i in range(0, len(body), _COIN)))


@final
@dataclass(frozen=True)
class Judged(Message):
    """What came of the check."""

    verdict: Verdict

    KIND: ClassVar[int] = 24

    def body(self) -> tuple[Octets, ...]:
        lists = self.verdict.excluded, self.verdict.deviating
        return tuple(struct.pack(f"<H{len(clients)}H", len(clients), *clients) for clients in lists)

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (count,), rest = head_of(_COUNT, body, "Judged")
        excluded, rest = head_of(struct.Struct(f"<{count}H"), rest, "Judged")
        (count,), rest = head_of(_COUNT, rest, "Judged")
        deviating, rest = head_of(struct.Struct(f"<{count}H"), rest, "Judged")
        if len(rest) or any(list(part) != sorted(set(part)) for part in (excluded, deviating)):
            raise MessageError("a Judged message must list clients in ascending order, and nothing else")
        return cls(Verdict(excluded, deviating))


@final
@dataclass(frozen=True, eq=False)
class Attested(Message):
    """A Checked of the hidden mode, signed, since every client judges the dealers for itself."""

    signature: bytes
    checked: Checked

    KIND: ClassVar[int] = 11

    def body(self) -> tuple[Octets, ...]:
        return self.signature, *self.checked.body()

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (signature,), rest = head_of(_SIGNATURE, body, "Attested")
        return cls(signature, Checked.from_body(rest))


@final
@dataclass(frozen=True, eq=False)
class Attestations(Message):
    """What all clients attested: the coins that they did it for, and client by client, ascending, what they found."""

    coins: tuple[bytes, ...]
    attested: tuple[tuple[int, Attested], ...]

    KIND: ClassVar[int] = 25

    def body(self) -> tuple[Octets, ...]:
        parts: list[Octets] = [_COUNT.pack(len(self.coins)), *self.coins, _COUNT.pack(len(self.attested))]
        for client, attested in self.attested:
            body = attested.body()
            parts += [_ENTRY.pack(client, sum(map(len, body))), *body]
        return tuple(parts)

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (count,), rest = head_of(_COUNT, body, "Attestations")
        if len(rest) < count * _COIN:
            raise MessageError(f"an Attestations message of {len(body)} bytes is too short for {count} coins")
        coins = tuple(bytes(rest[_COIN * i : _COIN * (i + 1)]) for i in range(count))
        (count,), rest = head_of(_COUNT, rest[_COIN * count :], "Attestations")
        found: list[tuple[int, Attested]] = []
        for _ in range(count):
            (client, size), rest = head_of(_ENTRY, rest, "Attestations")
            if size > len(rest) or (found and client <= found[-1][0]):
                raise MessageError("an Attestations message must have each client's part once, in order, and whole")
            found.append((client, Attested.from_body(rest[:size])))
            rest = rest[size:]
        if len(rest):
            raise MessageError(f"an Attestations message has {len(rest)} bytes too many")
        return cls(coins, tuple(found))
