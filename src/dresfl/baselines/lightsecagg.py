"""LightSecAgg: sums of clients' vectors under masks that are new in every round (So et al., MLSys 2022).

Notation: N clients, T colluders, P values of a vector, R answers that are needed (U in the paper of LightSecAgg),
x_i client i's integers, z_i its mask, S the clients whose vectors came.

1. Each client i draws z_i uniformly, cuts it into R−T pieces, adds T uniform pieces, and gives client j its share
   [z_i]_j of the Lagrange code of degree 1: P/(R−T) values.
2. Each client i that is there sends x_i + z_i. Then the coordinator names S, at least R clients.
3. Client j sends Σ_{i∈S} [z_i]_j. The code is linear, so that this is a share of Σ_S z_i, and any R of them decode.
4. The coordinator lifts Σ_S (x_i + z_i) − Σ_S z_i. That is the sum of the clients in S, exactly.

The coordinator and up to T clients who follow the protocol learn the sum of the others in S, and nothing else. A
client answers for one set S a round: two sums would give their difference away. A coordinator that cheats can still
name different sets to different clients, if N + T ≥ 2R: the protocol is not made against that. Shares are secret: a
network seals them.
"""

import hashlib
import itertools
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NoReturn, final, get_args

import torch
from torch import Tensor

from dresfl.coding import LagrangeCode
from dresfl.errors import HeadroomAlarm, InfeasiblePlan, MessageError, TooFewAnswers, UsageError
from dresfl.field import ResidueField, SecretSeed, choose_moduli, num_value_moduli
from dresfl.quantize import update_integers, weight_reals

VERSION = 1
COORDINATOR = 2**16 - 1  # in a message, where clients have their numbers
_HEADER = struct.Struct("<BB16sIHH")  # version, kind, identity, round, sender, receiver
_REQUEST = 4  # the kind of a `Request`

Kind = Literal["share", "vector", "answer"]
_KINDS: tuple[Kind, ...] = get_args(Kind)


@final
@dataclass(frozen=True)
class SecureSum:
    """What all clients and the coordinator agree on: who sums, how many values, and how reals become integers.

    >>> plan = SecureSum(num_clients=4, max_colluders=1, recovery_threshold=3, num_values=2)
    >>> plan.max_dropouts, len(plan.field.moduli), plan.piece
    (1, 2, 1)
    """

    num_clients: int
    max_colluders: int
    recovery_threshold: int
    num_values: int
    fraction_bits: int = 14
    limit: float = 4.0  # no |value| of a client's vector is larger

    def __post_init__(self) -> None:
        if not 0 <= self.max_colluders < self.recovery_threshold <= self.num_clients < COORDINATOR:
            raise InfeasiblePlan(
                f"{self.num_clients} clients, {self.max_colluders} colluders and {self.recovery_threshold} answers do "
                "not fit: colluders < answers needed ≤ clients",
                "need more answers than there are colluders, and no more than there are clients",
            )
        if self.num_values < 1 or not 0 <= self.fraction_bits <= 32 or not 0 < self.limit < 2**16:
            raise UsageError(
                f"{self.num_values} values of {self.fraction_bits} fraction bits up to {self.limit} cannot be summed",
                "use at least one value, 0 to 32 fraction bits, and a limit below 2^16",
            )

    @property
    def max_dropouts(self) -> int:
        """D = N − R: so many clients may be missing in each step."""
        return self.num_clients - self.recovery_threshold

    @property
    def num_pieces(self) -> int:
        """R − T: a mask is cut into so many pieces."""
        return self.recovery_threshold - self.max_colluders

    @property
    def piece(self) -> int:
        """Values in a piece of a mask, and in a share."""
        return -(-self.num_values // self.num_pieces)

    @property
    def largest_integer(self) -> int:
        """No |integer| of a client's vector is larger."""
        return math.ceil(math.ldexp(self.limit, self.fraction_bits))

    @cached_property
    def field(self) -> ResidueField:
        """Room for the sum of all N vectors, and headroom: what is beyond the sum rings the alarm."""
        bits = math.log2(self.num_clients * self.largest_integer)
        moduli = choose_moduli(bits, more_than=self.num_clients + self.recovery_threshold)
        return ResidueField(moduli, num_value_moduli(moduli, bits) or len(moduli))

    @cached_property
    def code(self) -> LagrangeCode[Tensor]:
        return LagrangeCode(self.field, self.num_clients, self.num_pieces, self.max_colluders, degree=1)

    @cached_property
    def identity(self) -> bytes:
        """16 bytes that messages carry. Who has other parameters refuses them."""
        numbers = self.num_clients, self.max_colluders, self.recovery_threshold, self.num_values, self.fraction_bits
        return hashlib.sha256(f"dresfl lightsecagg {numbers} {self.limit!r}".encode()).digest()[:16]

    def integers(self, values: Tensor, noise: Tensor) -> Tensor:
        """A client's vector (P,) as integers; noise (P,) uniform in (0, 1). HeadroomAlarm beyond the limit."""
        return update_integers(values, self.fraction_bits, self.limit, noise)

    def reals(self, integers: Tensor) -> Tensor:
        """A sum of integers as reals, exactly."""
        return weight_reals(integers, torch.tensor(2.0**self.fraction_bits, dtype=torch.float64))


# -- messages --------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class Message:
    """Residues from a client. `share`: secret, for a client; `vector` and `answer`: for the coordinator.

    Bytes: version u8 | kind u8 | identity 16 | round u32 | sender u16 | receiver u16 | residues, packed.
    """

    kind: Kind
    round_number: int
    sender: int
    receiver: int
    residues: Tensor  # (M,n)

    def __repr__(self) -> str:
        return f"Message({self.kind!r}, round {self.round_number}, {self.sender} -> {self.receiver}, <redacted>)"

    def encode(self, plan: SecureSum) -> bytes:
        kind = _KINDS.index(self.kind) + 1
        head = _HEADER.pack(VERSION, kind, plan.identity, self.round_number, self.sender, self.receiver)
        return plan.field.pack_after(head, [self.residues])

    @classmethod
    def decode(cls, data: bytes, plan: SecureSum) -> "Message":
        """Take a message apart; MessageError if it is none of this sum."""
        number, round_number, sender, receiver = _opened(data, plan)
        if not 1 <= number <= len(_KINDS) or sender >= plan.num_clients:
            raise MessageError(f"kind {number} of client {sender} is no message of this sum")
        kind = _KINDS[number - 1]
        if (receiver >= plan.num_clients) if kind == "share" else (receiver != COORDINATOR):
            raise MessageError(f"a {kind} is not for {receiver}")
        size = plan.num_values if kind == "vector" else plan.piece
        return cls(kind, round_number, sender, receiver, plan.field.unpack(data[_HEADER.size :], (size,)))


@final
@dataclass(frozen=True)
class Request:
    """The coordinator's question to all clients: the sum of the shares of these senders, ascending.

    Bytes: the same head, then a bit for each client.
    """

    round_number: int
    senders: tuple[int, ...]

    def __post_init__(self) -> None:
        if list(self.senders) != sorted(set(self.senders)):  # one client twice would be a sum of fewer
            raise MessageError(f"senders {self.senders} are not distinct and ascending")

    def encode(self, plan: SecureSum) -> bytes:
        bits = sum(1 << sender for sender in self.senders)
        head = _HEADER.pack(VERSION, _REQUEST, plan.identity, self.round_number, COORDINATOR, COORDINATOR)
        return head + bits.to_bytes(-(-plan.num_clients // 8), "little")

    @classmethod
    def decode(cls, data: bytes, plan: SecureSum) -> "Request":
        number, round_number, _, _ = _opened(data, plan)
        bits = int.from_bytes(data[_HEADER.size :], "little")
        size = _HEADER.size + -(-plan.num_clients // 8)
        if number != _REQUEST or len(data) != size or bits >> plan.num_clients:
            raise MessageError("these bytes are no request of this sum")
        return cls(round_number, tuple(i for i in range(plan.num_clients) if bits >> i & 1))


def _opened(data: bytes, plan: SecureSum) -> tuple[int, int, int, int]:
    """Kind, round, sender and receiver of a message."""
    if len(data) < _HEADER.size:
        raise MessageError(f"a message of {len(data)} bytes is too short")
    version, kind, identity, round_number, sender, receiver = _HEADER.unpack_from(data)
    if version != VERSION:
        raise MessageError(f"version {version} is not spoken here", f"use one that speaks version {VERSION}")
    if identity != plan.identity:
        raise MessageError("the message belongs to another sum", "compare clients, colluders, answers, values, bits")
    return kind, round_number, sender, receiver


# -- participants ----------------------------------------------------------------------------------------------------


@final
class MaskingClient:
    """A client: it begins a round with `deal`, sends `vector`, and gives one `answer` a round. It keeps one round."""

    def __init__(self, plan: SecureSum, index: int) -> None:
        if not 0 <= index < plan.num_clients:
            raise UsageError(f"client {index} does not exist among {plan.num_clients}")
        self.plan, self.index = plan, index
        self._round = -1
        self._mask: Tensor | None = None  # (M,P), until it has been used
        self._held: dict[int, Tensor] = {}  # by dealer: (M,piece)
        self._answered: Request | None = None

    def __repr__(self) -> str:
        return f"MaskingClient({self.index}, round {self._round}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a MaskingClient holds secrets and is not pickled")

    def deal(self, round_number: int) -> list[Message]:
        """Begin a round with a new mask: the shares of all other clients. The last round is forgotten."""
        if round_number <= self._round:
            raise UsageError(f"round {round_number} has begun already: this client is in round {self._round}")
        plan = self.plan
        key = SecretSeed.fresh().mask_key(plan.identity).view(1, 8)  # of this round and of no other
        drawn = plan.field.uniform(key, torch.tensor([0]), plan.recovery_threshold * plan.piece)
        pieces = drawn.view(len(plan.field.moduli), plan.recovery_threshold, plan.piece)  # (M,R,piece)
        mask, noise = pieces[:, : plan.num_pieces], pieces[:, plan.num_pieces :]
        shares = plan.code.encode(mask, noise)  # (M,N,piece)
        self._round, self._answered = round_number, None
        self._mask = mask.flatten(1)[:, : plan.num_values]
        self._held = {self.index: shares[:, self.index]}
        others = (j for j in range(plan.num_clients) if j != self.index)
        return [Message("share", round_number, self.index, j, shares[:, j]) for j in others]

    def receive(self, share: Message) -> None:
        """Keep another client's share of this round."""
        if share.kind != "share" or share.receiver != self.index or share.round_number != self._round:
            raise MessageError(f"{share!r} is no share for client {self.index} in round {self._round}")
        if share.sender in self._held:
            raise MessageError(f"client {share.sender} dealt round {self._round} twice")
        self._held[share.sender] = share.residues

    def vector(self, integers: Tensor) -> Message:
        """This client's integers (P,) under its mask, which is gone then: it hides one vector."""
        if tuple(integers.shape) != (self.plan.num_values,):
            raise UsageError(f"{self.plan.num_values} values are summed, {tuple(integers.shape)} came")
        if self._mask is None:
            raise MessageError(f"client {self.index} has no mask that was not used", "deal a new round first")
        hidden = self.plan.field.add(self.plan.field.embed(integers), self._mask)
        self._mask = None
        return Message("vector", self._round, self.index, COORDINATOR, hidden)

    def answer(self, request: Request) -> Message:
        """The sum of the shares of the senders. One set of senders a round, of at least R clients."""
        plan = self.plan
        if request.round_number != self._round:
            raise MessageError(f"round {request.round_number} was asked for, this client is in round {self._round}")
        if self._answered not in (None, request):
            raise MessageError(
                f"client {self.index} has answered for other senders in round {self._round}",
                "two sums of one round would show their difference",
            )
        if len(request.senders) < plan.recovery_threshold:
            raise MessageError(
                f"a sum of {len(request.senders)} clients is asked for, {plan.recovery_threshold} needed"
            )
        missing = [sender for sender in request.senders if sender not in self._held]
        if missing:
            raise MessageError(f"client {self.index} holds no share of client {missing[0]} in round {self._round}")
        self._answered = request
        total = plan.field.sum(torch.stack([self._held[i] for i in request.senders], 1), 1)  # (M,n,piece) -> (M,piece)
        return Message("answer", self._round, self.index, COORDINATOR, total)


@final
class SumRound:
    """The coordinator's part of one round: take vectors, `close`, take answers until R have come."""

    def __init__(self, plan: SecureSum, round_number: int) -> None:
        self.plan, self.round_number = plan, round_number
        self._senders: set[int] = set()
        self._total: Tensor | None = None  # (M,P)
        self._request: Request | None = None
        self._answers: dict[int, Tensor] = {}

    def receive_vector(self, message: Message) -> bool:
        """Add a client's vector. False: it came after the round was closed, and is not in the sum."""
        self._check(message, "vector")
        if self._request is not None:
            return False
        if message.sender in self._senders:
            raise MessageError(f"client {message.sender} sent two vectors in round {self.round_number}")
        self._senders.add(message.sender)
        field, seen = self.plan.field, self._total
        self._total = message.residues if seen is None else field.add(seen, message.residues)
        return True

    def close(self) -> Request:
        """Whose vectors came, as the question to all clients. TooFewAnswers if fewer than R came."""
        needed, came = self.plan.recovery_threshold, len(self._senders)
        if came < needed:
            raise TooFewAnswers(
                f"{came} of {self.plan.num_clients} vectors came, {needed} needed; the round is skipped"
            )
        self._request = self._request or Request(self.round_number, tuple(sorted(self._senders)))
        return self._request

    def receive_answer(self, message: Message) -> Tensor | None:
        """Take an answer. The R-th gives the sum (P,), integers in float64; all others give None.

        HeadroomAlarm if a value of the sum lies beyond what the senders' vectors can make within the limit.
        """
        self._check(message, "answer")
        if self._request is None or self._total is None:
            raise MessageError(f"round {self.round_number} is not closed: nobody was asked yet")
        plan, answers = self.plan, self._answers
        if message.sender in answers:
            raise MessageError(f"client {message.sender} answered round {self.round_number} twice")
        if len(answers) == plan.recovery_threshold:
            return None  # late: the sum is known
        answers[message.sender] = message.residues
        if len(answers) < plan.recovery_threshold:
            return None
        stacked = torch.stack(list(answers.values()), 1)  # (M,R,piece)
        mask = plan.code.decode(stacked, list(answers)).flatten(1)[:, : plan.num_values]  # (M,R−T,piece) -> (M,P)
        total = plan.field.lift(plan.field.sub(self._total, mask))
        largest, most = float(total.abs().max()), len(self._senders) * plan.largest_integer
        if largest > most:
            raise HeadroomAlarm(
                f"a sum of {largest:.0f} came of {len(self._senders)} vectors, whose limit is {most} together",
                "a client sent more than the limit, or a false answer: the round is not used",
            )
        return total

    def _check(self, message: Message, kind: Kind) -> None:
        if message.kind != kind or message.round_number != self.round_number:
            raise MessageError(f"{message!r} is no {kind} of round {self.round_number}")


def secure_sum(
    clients: Sequence[MaskingClient],
    round_number: int,
    vectors: Mapping[int, Tensor],
    answering: Iterable[int] | None = None,
) -> Tensor:
    """One whole round in one process: the sum (P,) of the vectors that came. All clients deal masks first.

    vectors: the integers (P,) of the clients that are there. answering: who is there when masks are asked for; None:
    the same clients. TooFewAnswers if one of them is fewer than R.

    >>> plan = SecureSum(num_clients=3, max_colluders=1, recovery_threshold=2, num_values=1)
    >>> clients = [MaskingClient(plan, i) for i in range(3)]
    >>> secure_sum(clients, 0, {0: torch.tensor([5]), 2: torch.tensor([-7])}).tolist()
    [-2.0]
    """
    plan = clients[0].plan
    dealt = [client.deal(round_number) for client in clients]
    for share in itertools.chain.from_iterable(dealt):
        clients[share.receiver].receive(share)
    coordinator = SumRound(plan, round_number)
    for sender, integers in vectors.items():
        coordinator.receive_vector(clients[sender].vector(integers))
    request, came = coordinator.close(), 0
    for index in vectors if answering is None else answering:
        came += 1
        total = coordinator.receive_answer(clients[index].answer(request))
        if total is not None:
            return total
    raise TooFewAnswers(f"{came} of {plan.num_clients} answered, {plan.recovery_threshold} needed")
