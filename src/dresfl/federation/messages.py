"""The messages between the coordinator and a client, byte by byte. Integers are little-endian and unsigned.

    kind u8 | body, where the body is, by kind

    From a client
     1 Hello     version u8 | rows u32 | contribution 64 | held nonce 32 (zeros: none) | challenge 16 | instance 8 |
                 agreement, JSON
     2 Holding   dealer u16 | a bit for each slice, low first      one for each dealer: what is on this client's disk
     3 Ready     sharing 16 | coin 32                              this client holds every share
     4 Slice     receiver u16 | slice u32 | sealed bytes           a slice that was asked for
     5 Ack       dealer u16 | slice u32                            this slice is on this client's disk
     6 Reject    dealer u16 | slice u32 | text                     this slice did not open
     7 Answered  round u32 | an Answer                             the value of an opening at this client's point
     8 Informed  rounds u32                                        this client has kept the final weights
     9 Declined  round u32 | text                                  this client will not answer that round
    10 Checked   n u16 | n hashes of seeds, 16 each | residues     this client's check values, dealer by dealer

    From the coordinator
    16 Wait      text                                              what the coordinator waits for
    17 Begin     signature 64 | terms                              what makes a session of the agreement
    18 Request   receiver u16 | slice u32                          deal this slice for that receiver
    19 Relayed   dealer u16 | slice u32 | sealed bytes             a slice that another client dealt
    20 Weights   a Task                                            the round's weights
    21 Delta     round u32 | base round u32 | width u8 (1, 2, 4) | sha256 32 | zlib of P signed differences
    22 Done      a Task                                            the final weights; its round is the number of rounds
    23 Check     N coins, 32 each; zeros: not there                check the dealers' shares with these coins
    24 Judged    n u16 | n dealers u16 | n u16 | n clients u16     dealers that are excluded, clients that deviate

Shares, Tasks and Answers are the protocol's own (`dresfl.protocol`). A message of another kind, length or version than
may come is refused with MessageError before anything of it is used.
"""

import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, final

from dresfl.errors import MessageError
from dresfl.protocol import Answer, Verdict, check_bytes

from .agreement import MOST_SLICES, Agreement, sample_session
from .sealed_slices import most_sealed_bytes
from .terms import Introduction, Terms

VERSION = 4
TEXT_BYTES = 1000  # the longest text in a message
ANY_ROUND = 2**32 - 1  # in a Declined: this client answers no round any more; no run has so many rounds
AGREEMENT_BYTES = 2**16  # the longest agreement in a Hello
HOLDING_BYTES = MOST_SLICES // 8
NO_INSTANCE = bytes(8)
HEAD_BYTES = 128  # no message has more before its payload: a Hello has 126

Octets = bytes | memoryview  # a part of a message that came stays where it is

_HELLO = struct.Struct("<BI64s32s16s8s")
_SIGNATURE = struct.Struct("<64s")
_READY = struct.Struct("<16s32s")
_COUNT = struct.Struct("<H")
_COIN = 32  # bytes
_HASH = 16
_ROUND = struct.Struct("<I")
_DELTA = struct.Struct("<IIB32s")
_PEER = struct.Struct("<H")
_PLACE = struct.Struct("<HI")
_NOTHING = struct.Struct("<")


def _head(form: struct.Struct, body: memoryview, name: str) -> tuple[tuple[Any, ...], memoryview]:
    """The fixed fields at the start of a body, and what follows them, in the memory of the message."""
    if len(body) < form.size:
        raise MessageError(f"a {name} message of {len(body)} bytes is too short")
    return form.unpack_from(body), body[form.size :]


class Message(ABC):
    """One message. A connection that is slow is sent only the latest of those that are `newest_only`."""

    KIND: ClassVar[int]
    newest_only: ClassVar[bool] = False

    @abstractmethod
    def body(self) -> tuple[Octets, ...]:
        """The bytes after the kind, in parts: so a large payload is copied once, where they are joined."""

    @classmethod
    @abstractmethod
    def from_body(cls, body: memoryview) -> Self:
        """The message with this body; MessageError if there is none."""

    def parts(self) -> tuple[Octets, ...]:
        """The whole message, in parts."""
        return bytes([self.KIND]), *self.body()

    def encode(self) -> bytes:
        return b"".join(self.parts())


class _Plain(Message):
    """A message of fixed fields and, if `REST` says so, one field more that takes all bytes that are left."""

    FORM: ClassVar[struct.Struct]
    REST: ClassVar[Literal["nothing", "bytes", "text", "bits"]] = "nothing"
    __match_args__: ClassVar[tuple[str, ...]]  # a dataclass has the names of its fields here

    def body(self) -> tuple[Octets, ...]:
        values = [getattr(self, name) for name in self.__match_args__]
        if self.REST == "nothing":
            return (self.FORM.pack(*values),)
        *fixed, rest = values
        if self.REST == "text":
            rest = rest.encode("utf-8", "replace")[:TEXT_BYTES]
        elif self.REST == "bits":
            rest = rest.to_bytes(-(-rest.bit_length() // 8), "little")
        return self.FORM.pack(*fixed), rest

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        fixed, rest = _head(cls.FORM, body, cls.__name__)
        most = {"nothing": 0, "text": TEXT_BYTES, "bits": HOLDING_BYTES}.get(cls.REST, len(rest))
        if len(rest) > most:
            raise MessageError(f"a {cls.__name__} message of {len(body)} bytes is too long")
        values: list[Any] = [*fixed]
        if cls.REST == "bytes":
            values.append(rest)
        elif cls.REST == "text":
            text = bytes(rest).decode("utf-8", "replace")  # for logs and errors: nothing that a terminal would obey
            values.append("".join(letter if letter.isprintable() else "?" for letter in text))
        elif cls.REST == "bits":
            values.append(int.from_bytes(rest, "little"))
        return cls(*values)


# -- from a client ---------------------------------------------------------------------------------------------


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
        (_, rows, contribution, held, challenge, instance), agreement = _head(_HELLO, body, "Hello")
        if len(agreement) > AGREEMENT_BYTES:
            raise MessageError(f"an agreement of {len(agreement)} bytes is too long")
        return cls(Introduction(rows, contribution, held), challenge, bytes(agreement), instance)


@final
@dataclass(frozen=True)
class Holding(_Plain):
    """Which of a dealer's slices a client has on its disk: bit n of `held` stands for slice n."""

    dealer: int
    held: int

    KIND: ClassVar[int] = 2
    FORM = _PEER
    REST = "bits"


@final
@dataclass(frozen=True)
class Ready(_Plain):
    """A client holds every share of this sharing. It shows the coin that its contribution to the terms is bound to."""

    sharing_id: bytes
    coin: bytes

    KIND: ClassVar[int] = 3
    FORM = _READY


@final
@dataclass(frozen=True, eq=False)
class Slice(_Plain):
    """A dealer's slice, sealed for the receiver `peer`."""

    peer: int
    number: int
    sealed: Octets

    KIND: ClassVar[int] = 4
    FORM = _PLACE
    REST = "bytes"


@final
@dataclass(frozen=True)
class Ack(_Plain):
    """A slice of the dealer `peer` is on this client's disk: the coordinator may forget it."""

    peer: int
    number: int

    KIND: ClassVar[int] = 5
    FORM = _PLACE


@final
@dataclass(frozen=True)
class Reject(_Plain):
    """A slice did not open here: that dealer did not seal it for this client and this place."""

    peer: int
    number: int
    reason: str

    KIND: ClassVar[int] = 6
    FORM = _PLACE
    REST = "text"


@final
@dataclass(frozen=True, eq=False)
class Answered(_Plain):
    """A client's Answer, still encoded: the opening checks it."""

    round_number: int
    answer: Octets

    KIND: ClassVar[int] = 7
    FORM = _ROUND
    REST = "bytes"


@final
@dataclass(frozen=True)
class Informed(_Plain):
    """A client has kept the final weights."""

    rounds: int

    KIND: ClassVar[int] = 8
    FORM = _ROUND


@final
@dataclass(frozen=True)
class Declined(_Plain):
    """A client will not answer a round, or, with ANY_ROUND, no round at all until it comes back."""

    round_number: int
    reason: str

    KIND: ClassVar[int] = 9
    FORM = _ROUND
    REST = "text"


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
        (count,), rest = _head(_COUNT, body, "Checked")
        if len(rest) < count * _HASH:
            raise MessageError(f"a Checked message of {len(body)} bytes is too short for {count} hashes")
        hashes = tuple(bytes(rest[_HASH * i : _HASH * (i + 1)]) for i in range(count))
        return cls(hashes, rest[_HASH * count :])


# -- from the coordinator --------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Wait(_Plain):
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
        (signature,), rest = _head(_SIGNATURE, body, "Begin")
        return cls(signature, Terms.decode(bytes(rest)))


@final
@dataclass(frozen=True)
class Request(_Plain):
    """The coordinator asks a dealer for one slice for the receiver `peer`."""

    peer: int
    number: int

    KIND: ClassVar[int] = 18
    FORM = _PLACE


@final
@dataclass(frozen=True, eq=False)
class Relayed(_Plain):
    """A slice of the dealer `peer`, on its way to its receiver."""

    peer: int
    number: int
    sealed: Octets

    KIND: ClassVar[int] = 19
    FORM = _PLACE
    REST = "bytes"


@final
@dataclass(frozen=True, eq=False)
class Weights(_Plain):
    """A round's weights in full, as a Task that is still encoded."""

    task: Octets

    KIND: ClassVar[int] = 20
    FORM = _NOTHING
    REST = "bytes"
    newest_only: ClassVar[bool] = True


@final
@dataclass(frozen=True, eq=False)
class Delta(_Plain):
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
class Done(_Plain):
    """The final weights, as a Task that is still encoded."""

    task: Octets

    KIND: ClassVar[int] = 22
    FORM = _NOTHING
    REST = "bytes"


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
        (count,), rest = _head(_COUNT, body, "Judged")
        excluded, rest = _head(struct.Struct(f"<{count}H"), rest, "Judged")
        (count,), rest = _head(_COUNT, rest, "Judged")
        deviating, rest = _head(struct.Struct(f"<{count}H"), rest, "Judged")
        if len(rest) or any(list(part) != sorted(set(part)) for part in (excluded, deviating)):
            raise MessageError("a Judged message must list clients in ascending order, and nothing else")
        return cls(Verdict(excluded, deviating))


FROM_CLIENT: tuple[type[Message], ...] = (
    Hello,
    Holding,
    Ready,
    Slice,
    Ack,
    Reject,
    Answered,
    Informed,
    Declined,
    Checked,
)
FROM_COORDINATOR: tuple[type[Message], ...] = (Wait, Begin, Request, Relayed, Weights, Delta, Done, Check, Judged)


def decode(data: Octets, kinds: tuple[type[Message], ...]) -> Message:
    """A message of one of the kinds that may come.

    >>> decode(Ready(bytes(16), bytes(32)).encode(), FROM_CLIENT) == Ready(bytes(16), bytes(32))
    True
    """
    if not data:
        raise MessageError("an empty message came")
    for kind in kinds:
        if data[0] == kind.KIND:
            return kind.from_body(memoryview(data)[1:])
    wanted = " or ".join(kind.__name__ for kind in kinds)
    raise MessageError(f"a message of kind {data[0]} came where {wanted} was expected")


def largest_message(agreement: Agreement) -> int:
    """The most bytes that any message of a federation has."""
    session = sample_session(agreement)
    parameters = session.network.num_parameters
    answer, terms = Answer.size(session.field, parameters), 68 * session.num_clients + 200
    checked = _HASH * len(session.seed_sets.sets) + session.num_clients * check_bytes(session)
    payloads = answer, 4 * parameters, most_sealed_bytes(session), terms, checked, AGREEMENT_BYTES
    return HEAD_BYTES + max(payloads)
