"""How a client and the coordinator meet: Hello, Wait, Begin."""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self, final

from dresfl.errors import MessageError

from ..terms import Introduction, Terms
from .form import Message, Octets, Plain, head_of

VERSION = 5
AGREEMENT_BYTES = 2**16  # the longest agreement in a Hello
NO_INSTANCE = bytes(8)

_HELLO = struct.Struct("<BI64s32s16s8s")
_SIGNATURE = struct.Struct("<64s")
_NOTHING = struct.Struct("<")


@final
@dataclass(frozen=True)
class Hello(Message):
    """A client introduces itself. Who it is comes from its certificate or signature, never from here."""

    introduction: Introduction
    challenge: bytes
    agreement: bytes
    instance: bytes = NO_INSTANCE  # chosen at random by each process of a client; zeros: it does not say

    KIND: ClassVar[int] = 1

    def body(self) -> tuple[Octets, ...]:
        own = self.introduction
        head = _HELLO.pack(VERSION, own.rows, own.contribution, own.held_nonce, self.challenge, self.instance)
        return head, self.agreement

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        if len(body) and body[0] != VERSION:
            raise MessageError(
                f"the client speaks version {body[0]} of the protocol, this coordinator version {VERSION}",
                "use the same release of dresfl everywhere",
            )
        (_, rows, contribution, held, challenge, instance), agreement = head_of(_HELLO, body, "Hello")
        if len(agreement) > AGREEMENT_BYTES:
            raise MessageError(f"an agreement of {len(agreement)} bytes is too long")
        return cls(Introduction(rows, contribution, held), challenge, bytes(agreement), instance)


@final
@dataclass(frozen=True)
class Wait(Plain):
    """Why nothing happens yet."""

    text: str

    KIND: ClassVar[int] = 16
    FORM = _NOTHING
    REST = "text"


@final
@dataclass(frozen=True)
class Begin(Message):
    """The terms of the run, signed for one client's challenge. They are as they came: not checked yet."""

    signature: bytes
    terms: Terms

    KIND: ClassVar[int] = 17

    def body(self) -> tuple[Octets, ...]:
        return self.signature, self.terms.encode()

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        (signature,), rest = head_of(_SIGNATURE, body, "Begin")
        return cls(signature, Terms.decode(bytes(rest)))
