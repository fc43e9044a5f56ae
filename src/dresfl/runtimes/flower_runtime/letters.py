"""The letters that Flower carries, byte by byte. Integers are little-endian and unsigned.

    Request, from the coordinator, the same for everybody it goes to
    version u8 = 1 | kind u8 | number 16 (random) | length of terms u32 | terms | body | signature 64

    Reply, from a client
    version u8 = 1 | kind u8 | client u16 | refused u8 (0, 1) | body, or text if refused | signature 64

    kind        body of the request                     body of the reply
    1 Hello     the coordinator's agreement, JSON       rows u32 | contribution 32 | held nonce 32 (zeros: none)
    2 Keep      slices, by dealer; none: only look      count u32 | missing places | for each slice that was refused:
                                                        place | length u16 | text
    3 Deal      places, by receiver                     slices, by receiver
    4 Answer    a Task message                          an Answer message
    5 Done      a Task message: the final weights       nothing

    place   peer u16 | slice u32
    slice   place | length u32 | sealed bytes

Terms are as in party/terms.py, and empty in a Hello. The coordinator signs "flower request": the roster's digest, then
everything before the signature. A client signs "flower reply": the roster's digest, the SHA-256 of the whole request,
then everything before the signature; so that a reply fits one request, and nobody can pass it for another's.
"""

import hashlib
import secrets
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import final

from dresfl.errors import MessageError
from dresfl.federation import Introduction, Terms
from dresfl.sealing import Identity, Roster

VERSION = 1
TEXT_BYTES = 1000
_REQUEST = struct.Struct("<BB16sI")
_REPLY = struct.Struct("<BBHB")
_PLACE = struct.Struct("<HI")
_SLICE = struct.Struct("<HII")
_COUNT = struct.Struct("<I")
_TEXT = struct.Struct("<H")
_HELLO = struct.Struct("<I32s32s")
_SIGNATURE = 64

Place = tuple[int, int]  # peer and slice
Parcel = tuple[int, int, bytes]  # peer, slice, sealed


@final
class Kind(IntEnum):
    """What is asked of a client."""

    HELLO = 1
    KEEP = 2
    DEAL = 3
    ANSWER = 4
    DONE = 5


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise MessageError(f"letters of kind {number} are not known here") from None


def _split(data: bytes, head: struct.Struct, what: str) -> tuple[bytes, bytes]:
    """A letter without its signature, and the signature, after a look at length and version."""
    if len(data) < head.size + _SIGNATURE:
        raise MessageError(f"a {what} of {len(data)} bytes is too short")
    if data[0] != VERSION:
        raise MessageError(f"version {data[0]} is not spoken here", f"use a dresfl that speaks version {VERSION}")
    return data[:-_SIGNATURE], data[-_SIGNATURE:]


@final
@dataclass(frozen=True)
class Request:
    """What the coordinator wants."""

    kind: Kind
    terms: Terms | None
    body: bytes
    number: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    def encode(self, coordinator: Identity, roster: Roster) -> bytes:
        terms = b"" if self.terms is None else self.terms.encode()
        letter = _REQUEST.pack(VERSION, self.kind, self.number, len(terms)) + terms + self.body
        return letter + coordinator.sign("flower request", bytes.fromhex(roster.digest) + letter)

    @classmethod
    def decode(cls, data: bytes, roster: Roster) -> "Request":
        """Check the coordinator's signature before anything else is looked at."""
        letter, signature = _split(data, _REQUEST, "request")
        roster.server.check_signature("flower request", bytes.fromhex(roster.digest) + letter, signature)
        _, kind, number, length = _REQUEST.unpack_from(letter)
        rest = letter[_REQUEST.size :]
        if length > len(rest):
            raise MessageError(f"a request says that {length} bytes of terms follow, but has {len(rest)}")
        terms = Terms.decode(rest[:length]) if length else None
        return cls(_kind(kind), terms, rest[length:], number)

    @property
    def agreed_terms(self) -> Terms:
        """The terms, which every request but a Hello has."""
        if self.terms is None:
            raise MessageError("a request came without the terms of its run")
        return self.terms


@final
@dataclass(frozen=True)
class Reply:
    """What a client says to one request."""

    kind: Kind
    client: int
    body: bytes
    refused: bool = False

    @classmethod
    def refusal(cls, kind: Kind, client: int, reason: str) -> "Reply":
        return cls(kind, client, reason.encode("utf-8", "replace")[:TEXT_BYTES], refused=True)

    def encode(self, identity: Identity, roster: Roster, request: bytes) -> bytes:
        letter = _REPLY.pack(VERSION, self.kind, self.client, self.refused) + self.body
        return letter + identity.sign("flower reply", _bound(roster, request) + letter)

    @classmethod
    def decode(cls, data: bytes, roster: Roster, request: bytes, most_bytes: int) -> "Reply":
        """A client's reply to `request`; who sent it is known by its signature."""
        if len(data) > most_bytes:
            raise MessageError(f"a reply of {len(data)} bytes came, {most_bytes} are the most")
        letter, signature = _split(data, _REPLY, "reply")
        _, kind, client, refused = _REPLY.unpack_from(letter)
        if client >= len(roster.members):
            raise MessageError(f"client {client} does not exist among {len(roster.members)}")
        roster.members[client].check_signature("flower reply", _bound(roster, request) + letter, signature)
        if refused not in (0, 1):
            raise MessageError(f"a reply is neither refused nor not: {refused}")
        return cls(_kind(kind), client, letter[_REPLY.size :], bool(refused))

    @property
    def text(self) -> str:
        """Why it was refused."""
        return self.body[:TEXT_BYTES].decode("utf-8", "replace")


def _bound(roster: Roster, request: bytes) -> bytes:
    return bytes.fromhex(roster.digest) + hashlib.sha256(request).digest()


# -- bodies ----------------------------------------------------------------------------------------------------


def encode_hello(client: Introduction) -> bytes:
    return _HELLO.pack(client.rows, client.contribution, client.held_nonce)


def decode_hello(body: bytes) -> Introduction:
    if len(body) != _HELLO.size:
        raise MessageError(f"a Hello has {_HELLO.size} bytes, not {len(body)}")
    return Introduction(*_HELLO.unpack(body))


def encode_places(places: Iterable[Place]) -> bytes:
    return b"".join(_PLACE.pack(*place) for place in places)


def decode_places(body: bytes) -> list[Place]:
    """Peers and slice numbers.

    >>> decode_places(encode_places([(1, 2), (3, 4)])) == [(1, 2), (3, 4)]
    True
    """
    if len(body) % _PLACE.size:
        raise MessageError(f"{len(body)} bytes are not a list of places")
    return list(_PLACE.iter_unpack(body))


def encode_parcels(parcels: Iterable[Parcel]) -> bytes:
    return b"".join(_SLICE.pack(peer, number, len(sealed)) + sealed for peer, number, sealed in parcels)


def decode_parcels(body: bytes) -> list[Parcel]:
    """Sealed slices, one after the other."""
    parcels: list[Parcel] = []
    at = 0
    while at < len(body):
        if len(body) - at < _SLICE.size:
            raise MessageError("a list of slices ends within one")
        peer, number, length = _SLICE.unpack_from(body, at)
        at += _SLICE.size
        if length > len(body) - at:
            raise MessageError(f"a slice of {length} bytes is cut short")
        parcels.append((peer, number, body[at : at + length]))
        at += length
    return parcels


def encode_kept(missing: Sequence[Place], rejected: Sequence[tuple[int, int, str]]) -> bytes:
    parts = [_COUNT.pack(len(missing)), encode_places(missing)]
    for peer, number, reason in rejected:
        text = reason.encode("utf-8", "replace")[:TEXT_BYTES]
        parts += [_PLACE.pack(peer, number), _TEXT.pack(len(text)), text]
    return b"".join(parts)


def decode_kept(body: bytes) -> tuple[list[Place], list[tuple[int, int, str]]]:
    """What a client lacks, and what it refused, with the reason."""
    if len(body) < _COUNT.size:
        raise MessageError("an account of slices is too short")
    (count,) = _COUNT.unpack_from(body)
    at = _COUNT.size + count * _PLACE.size
    if at > len(body):
        raise MessageError(f"an account of {count} missing slices is too short")
    missing = decode_places(body[_COUNT.size : at])
    rejected: list[tuple[int, int, str]] = []
    while at < len(body):
        if len(body) - at < _PLACE.size + _TEXT.size:
            raise MessageError("an account of slices ends within one")
        peer, number = _PLACE.unpack_from(body, at)
        (length,) = _TEXT.unpack_from(body, at + _PLACE.size)
        at += _PLACE.size + _TEXT.size
        if length > min(TEXT_BYTES, len(body) - at):
            raise MessageError("the reason for a refused slice is cut short")
        rejected.append((peer, number, body[at : at + length].decode("utf-8", "replace")))
        at += length
    return missing, rejected
