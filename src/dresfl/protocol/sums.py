"""A total over clients of a vector that each of them keeps to itself: counts of rows that a model gets right, say.

Each client shares its own integer vector among all, with T masks. Receivers add what they were dealt, and the sums of
any T+1 of them give the total. It needs a small field of its own: the degree is T, and the integers are counts.

**Differences.** Two receivers that added nine dealers and two that added eight would give away the ninth. So there is
one set of dealers for a sum, or none:

- A client deals one vector, ever. It signs one set, ever, and only if it holds a share of every dealer in it.
- A receiver shows what it added for a set only if more than (N+T)/2 clients have signed that set (`quorum`).

If two sets had so many signatures, more than T clients would have signed both, so an honest one among them, which it
does not. So at most one set of dealers is ever added up. It has at least T+2 dealers: T clients together cannot take
their own vectors away and be left with that of a single one.

**One model.** The digest of a sum names the model, by the hash of what the last hop published. Shares are sealed for
that digest and sets are signed for it. So a client that was told another model than the others opens none of their
shares, and they none of its: its counts are never added to those on another model.

**Lies.** A false sum of a receiver, or shares of no polynomial, make sums that do not lie on one polynomial of degree
T. 2T+1 agreeing ones contain T+1 honest ones, so what they give is what was dealt. A client may always say something
false of itself: then the total is false, and tells nothing more of the others.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, final

import torch
from torch import Tensor

from dresfl.coding import LagrangeCode, locate_errors
from dresfl.errors import HeadroomAlarm, MessageError, TooFewAnswers, UsageError
from dresfl.field import Reals, ResidueField, SecretSeed, choose_moduli, num_value_moduli
from dresfl.model import Network

from .session import Session

_CLIENT = struct.Struct("<H")
_SIZES = struct.Struct("<HHIQ")
_VALUES = 2**21  # of the widest layer, computed at a time


@final
@dataclass(frozen=True)
class SumPlan:
    """What everybody knows of one sum. Names are those of a run: each is summed once.

    >>> plan = SumPlan(bytes(16), "accuracy", num_clients=5, max_colluders=1, count=2, most=1000)
    >>> plan.threshold, plan.quorum, plan.fewest_dealers, plan.sums_needed
    (2, 4, 3, 3)
    """

    session_id: bytes
    name: str
    num_clients: int
    max_colluders: int
    count: int  # integers in a vector
    most: int  # no |total| is larger, if everybody is honest
    honest_clients: bool = False  # the agreement says that nobody lies
    model: bytes = bytes(32)  # SHA-256 of what opened the model on which clients count; zeros: of none

    def __post_init__(self) -> None:
        if self.count < 1 or self.most < 1 or len(self.session_id) != 16 or len(self.model) != 32:
            raise UsageError(f"there is no sum of {self.count} values up to {self.most}")
        if not 1 <= self.max_colluders <= self.num_clients - 2:
            raise UsageError(
                f"a sum over {self.num_clients} clients cannot be kept from {self.max_colluders} of them",
                "at least T + 2 clients are needed, and T of at least 1",
            )

    @property
    def threshold(self) -> int:
        """T + 1: so many receivers' sums give the total."""
        return self.max_colluders + 1

    @property
    def sums_needed(self) -> int:
        """So many sums must agree: 2T + 1 where clients may lie."""
        return self.threshold + (0 if self.honest_clients else self.max_colluders)

    @property
    def quorum(self) -> int:
        """More than (N+T)/2: so many clients must have signed a set of dealers."""
        return (self.num_clients + self.max_colluders) // 2 + 1

    @property
    def fewest_dealers(self) -> int:
        """T + 2: of a smaller set nothing is shown."""
        return self.max_colluders + 2

    @cached_property
    def field(self) -> ResidueField:
        """A small field with room for the total and for the alarm."""
        bits = self.most.bit_length()
        moduli = choose_moduli(bits, more_than=self.num_clients + self.max_colluders + 1)
        kept = num_value_moduli(moduli, bits)
        if kept is None:
            raise RuntimeError("chosen moduli hold what they were chosen for")
        return ResidueField(moduli, kept)

    @cached_property
    def code(self) -> LagrangeCode[Tensor]:
        sizes = {"num_clients": self.num_clients, "max_colluders": self.max_colluders}
        return LagrangeCode(self.field, num_shards=1, degree=1, **sizes)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of it: what shares, sets and signatures are bound to."""
        sizes = _SIZES.pack(self.num_clients, self.max_colluders, self.count, self.most)
        return hashlib.sha256(b"dresfl sum" + self.session_id + sizes + self.model + self.name.encode()).digest()

    @property
    def sum_id(self) -> bytes:
        """16 bytes that name the sum in messages and seals."""
        return self.digest[:16]

    @property
    def packed_bytes(self) -> int:
        """The bytes of one share, or of one receiver's sum."""
        return len(self.field.moduli) * self.count * self.field.residue_bytes

    def check_dealers(self, dealers: Sequence[int]) -> None:
        """Refuse a set of dealers that is none, or too small."""
        if list(dealers) != sorted(set(dealers)) or not set(dealers) <= set(range(self.num_clients)):
            raise MessageError(f"dealers {list(dealers)} of {self.num_clients} cannot be summed")
        if len(dealers) < self.fewest_dealers:
            raise MessageError(
                f"a sum over {len(dealers)} clients would say too much of each", f"{self.fewest_dealers} are needed"
            )

    def set_digest(self, dealers: Sequence[int]) -> bytes:
        """What a client signs: this sum over this set of dealers."""
        return hashlib.sha256(b"dresfl sum set" + self.digest + b"".join(map(_CLIENT.pack, dealers))).digest()


def deal_vector(plan: SumPlan, secret: SecretSeed, vector: Tensor) -> Tensor:
    """A client's shares of its vector (count,) int64, for all receivers: (M,N,count).

    Masks follow from the client's secret, the sum and the vector. So they can be made again, and another vector has
    others.
    """
    if tuple(vector.shape) != (plan.count,) or vector.is_floating_point():
        raise UsageError(f"a vector of shape {tuple(vector.shape)} came, {plan.count} integers were expected")
    if int(vector.abs().max()) > plan.most:
        raise UsageError(f"a count of {int(vector.abs().max())} came, {plan.most} is the most there can be")
    integers = vector.to("cpu", torch.int64)
    key = _of_vector(plan, secret, integers).mask_key(plan.digest).view(1, 8)
    masks = plan.field.uniform(key, torch.zeros(1, dtype=torch.int64), plan.max_colluders * plan.count)
    masks = masks.reshape(-1, plan.max_colluders, plan.count)
    return plan.code.encode(plan.field.embed(integers.unsqueeze(0)), masks)


def _of_vector(plan: SumPlan, secret: SecretSeed, vector: Tensor) -> SecretSeed:
    return secret.derive(b"sum" + plan.digest + vector.to("cpu", torch.int64).numpy().tobytes())


def vector_tag(plan: SumPlan, secret: SecretSeed, vector: Tensor) -> bytes:
    """16 bytes by which a client knows a vector again. To others they say nothing."""
    return _of_vector(plan, secret, vector).tag()


def add_shares(plan: SumPlan, shares: Sequence[Tensor]) -> Tensor:
    """What a receiver shows: the sum (M,count) of the shares (M,count) of all dealers of a set."""
    return plan.field.sum(torch.stack(tuple(shares), 1), 1)


@final
@dataclass(frozen=True)
class Totals:
    """What came of a sum."""

    dealers: tuple[int, ...]
    values: tuple[int, ...]
    lying: tuple[int, ...] = ()  # receivers whose sums do not fit those of the others


def decode_totals(plan: SumPlan, dealers: Sequence[int], sums: Mapping[int, Tensor]) -> Totals:
    """The totals over a set of dealers from what receivers added, (M,count) each. Anybody who has them can do it.

    TooFewAnswers if too few agree: with more of them it may do.
    """
    receivers = sorted(sums)
    spare = len(receivers) - plan.sums_needed
    if spare < 0:
        raise TooFewAnswers(f"{len(receivers)} clients showed what they added, {plan.sums_needed} are needed")
    errors = min(spare, (len(receivers) - plan.threshold) // 2)
    points = [plan.code.client_points[receiver] for receiver in receivers]
    table = torch.stack([sums[receiver] for receiver in receivers], 2)  # (M,count,n)
    wrong = locate_errors(plan.field.moduli, points, table.to(torch.int64).numpy(), plan.threshold, errors)
    if wrong is None:
        raise TooFewAnswers(f"more than {errors} of {len(receivers)} sums do not fit the others")
    agreeing = [receiver for place, receiver in enumerate(receivers) if place not in wrong][: plan.threshold]
    decoded = plan.code.decode(torch.stack([sums[receiver] for receiver in agreeing], 1), agreeing)[:, 0]
    values = [int(value) for value in plan.field.lift(decoded).tolist()]
    if any(abs(value) > plan.most for value in values):
        raise HeadroomAlarm(f"a total is larger than {plan.most}: some client did not count")
    return Totals(tuple(dealers), tuple(values), tuple(receivers[place] for place in wrong))


# -- what a client keeps --------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class NotedSum:
    """What a client has noted of its sum in one run."""

    plan: bytes  # digest of the sum
    vector: bytes = b""  # tag of the vector that it dealt; empty: it has dealt none
    dealers: tuple[int, ...] = ()  # the set that it signed; empty: none so far
    model: bytes = bytes(32)  # of the sum: a later process makes the plan again


class SumNotes(Protocol):
    """What a client keeps of its sums on one sharing, between processes."""

    def sums(self) -> Mapping[bytes, NotedSum]:
        """Those of all runs on this sharing, by session_id."""

    def note_sum(self, session_id: bytes, noted: NotedSum) -> None:
        """Put this on the disk, for good, in the place of what was noted before of this run."""


@final
class MemoryNotes:
    """Notes in memory: for a process that never restarts."""

    def __init__(self) -> None:
        self._sums: dict[bytes, NotedSum] = {}

    def sums(self) -> Mapping[bytes, NotedSum]:
        return self._sums

    def note_sum(self, session_id: bytes, noted: NotedSum) -> None:
        self._sums[session_id] = noted


# -- accuracy --------------------------------------------------------------------------------------------------------


def final_sum(session: Session, model: bytes = bytes(32)) -> SumPlan | None:
    """The sum that is taken at the end of a hidden run, as the agreement says; None: none is, as in a regression.

    model: SHA-256 of what the last hop published. Without it the plan has the right sizes, and is of no sum.
    """
    settings = None if session.hidden is None else session.hidden.settings
    if settings is None or settings.trial or not settings.totals or session.network.task == "regression":
        return None
    return accuracy_plan(session, model, confusion=settings.totals == "confusion")


def accuracy_plan(session: Session, model: bytes = bytes(32), *, confusion: bool = False) -> SumPlan:
    """The sum at the end of a run: rows that the model gets right, and all rows. model: as for `final_sum`.

    confusion: also how often each class was taken for each. Those counts come last: of the rows of class 0 by what the
    model says of them, then of class 1, and so on.
    """
    hidden = session.hidden
    return SumPlan(
        session.session_id,
        "confusion" if confusion else "accuracy",
        session.num_clients,
        session.max_colluders,
        2 + (session.network.num_labels**2 if confusion else 0),
        sum(session.client_rows),
        honest_clients=hidden is not None and hidden.settings.honest_clients,
        model=model,
    )


def accuracy_counts(
    network: Network, weights: Tensor, inputs: Tensor, targets: Tensor, *, confusion: bool = False
) -> Tensor:
    """What a client counts on its own integer rows (m,F) and (m,C), with the final integer weights (P,) -> (count,)."""
    widest = max(p.layer.positions(p.place.in_shape) * sum(p.fan) for p in network.parameters)
    step, classes = max(1, _VALUES // widest), network.num_labels
    pairs = torch.zeros(classes * classes, dtype=torch.int64)
    for start in range(0, len(inputs), step):
        rows = inputs[start : start + step].to(torch.float64)
        outputs = network.outputs(Reals(), weights, rows.view(1, 1, *rows.shape))[0, 0]  # (rows,C)
        said, meant = network.labels(outputs), network.labels(targets[start : start + step])
        pairs += torch.bincount(meant * classes + said, minlength=classes * classes)
    right = pairs.view(classes, classes).diagonal().sum()
    return torch.cat((torch.stack((right, pairs.sum())), *([pairs] if confusion else [])))
