"""The bundles that Flower carries, byte by byte. Integers are little-endian and unsigned.

    Request, from the coordinator
    version u8 = 2 | number 16 (random) | length of terms u32 | terms | messages | signature 64

    Reply, from a client
    version u8 = 2 | client u16 | refused u8 (0, 1) | messages, or text if refused | signature 64

    messages    for each: length u32 | a message as in federation/messages.py

A request without terms and messages asks the client to connect: it replies with a Hello. One without terms whose first
message is a Begin lets the client join. All others have the terms of the run (federation/terms.py), since each bundle
may meet a new process of the client.

The coordinator signs "flower request": the roster's digest, then everything before the signature. A client signs
"flower reply": the roster's digest, the SHA-256 of the whole request, then everything before the signature. So a reply
fits one request, and nobody can pass it for another client's.
"""

import hashlib
import secrets
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from dresfl.errors import MessageError
from dresfl.federation import Terms
from dresfl.sealing import Identity, Roster

VERSION = 2
TEXT_BYTES = 1000
_REQUEST = struct.Struct("<B16sI")
_REPLY = struct.Struct("<BHB")
_LENGTH = struct.Struct("<I")
_SIGNATURE = 64


@final
@dataclass(frozen=True)
class Request:
    """What the coordinator sends to one client, or alike to several."""

    messages: tuple[bytes, ...] = ()
    terms: Terms | None = None
    number: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    def encode(self, coordinator: Identity, roster: Roster) -> bytes:
        terms = b"" if self.terms is None else self.terms.encode()
        bundle = _REQUEST.pack(VERSION, self.number, len(terms)) + terms + _packed(self.messages)
        return bundle + coordinator.sign("flower request", bytes.fromhex(roster.digest) + bundle)

    @classmethod
    def decode(cls, data: bytes, roster: Roster) -> "Request":
        """Check the coordinator's signature before anything else is looked at."""
        bundle, signature = _unsigned(data, _REQUEST, "request")
        roster.server.check_signature("flower request", bytes.fromhex(roster.digest) + bundle, signature)
        _, number, length = _REQUEST.unpack_from(bundle)
        rest = bundle[_REQUEST.size :]
        if length > len(rest):
            raise MessageError(f"a request says that {length} bytes of terms follow, but has {len(rest)}")
        return cls(_unpacked(rest[length:]), Terms.decode(rest[:length]) if length else None, number)


@final
@dataclass(frozen=True)
class Reply:
    """What a client says to one request: messages, or why it will not have it."""

    client: int
    messages: tuple[bytes, ...] = ()
    refusal: str | None = None

    def encode(self, identity: Identity, roster: Roster, request: bytes) -> bytes:
        text = (self.refusal or "").encode("utf-8", "replace")[:TEXT_BYTES]
        body = _packed(self.messages) if self.refusal is None else text
        bundle = _REPLY.pack(VERSION, self.client, self.refusal is not None) + body
        return bundle + identity.sign("flower reply", _bound(roster, request) + bundle)

    @classmethod
    def decode(cls, data: bytes, roster: Roster, request: bytes, most_bytes: int) -> "Reply":
        """A client's reply to `request`; who sent it is known by its signature."""
        if len(data) > most_bytes:
            raise MessageError(f"a reply of {len(data)} bytes came, {most_bytes} are the most")
        bundle, signature = _unsigned(data, _REPLY, "reply")
        _, client, refused = _REPLY.unpack_from(bundle)
        if client >= len(roster.members):
            raise MessageError(f"client {client} does not exist among {len(roster.members)}")
        roster.members[client].check_signature("flower reply", _bound(roster, request) + bundle, signature)
        body = bundle[_REPLY.size :]
        if refused == 0:
            return cls(client, _unpacked(body))
        if refused == 1 and len(body) <= TEXT_BYTES:
            return cls(client, refusal=body.decode("utf-8", "replace"))
        raise MessageError(f"a reply of {len(body)} bytes is neither a list of messages nor a refusal ({refused})")


def _bound(roster: Roster, request: bytes) -> bytes:
    return bytes.fromhex(roster.digest) + hashlib.sha256(request).digest()


def _unsigned(data: bytes, head: struct.Struct, what: str) -> tuple[bytes, bytes]:
    """A bundle without its signature, and the signature, after a look at version and length."""
    if data and data[0] != VERSION:
        raise MessageError(
            f"a {what} of version {data[0]} came, this release uses version {VERSION}",
            "use the same release of dresfl everywhere",
        )
    if len(data) < head.size + _SIGNATURE:
        raise MessageError(f"a {what} of {len(data)} bytes is too short")
    return data[:-_SIGNATURE], data[-_SIGNATURE:]


def _packed(messages: Iterable[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(message)) + message for message in messages)


def _unpacked(data: bytes) -> tuple[bytes, ...]:
    messages: list[bytes] = []
    at = 0
    while at < len(data):
        if len(data) - at < _LENGTH.size:
            raise MessageError("a bundle ends within the length of a message")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > len(data) - at:
            raise MessageError(f"a bundle ends within a message of {length} bytes")
        messages.append(data[at : at + length])
        at += length
    return tuple(messages)
