"""What each participant does in each phase, as calls to be timed, with the bytes that it sends and receives.

A call makes and reads the real messages: packing and checking them is part of the cost. Rows and residues are
synthetic: time does not depend on the values. Messages are counted as they are before sealing. A network seals shares
of rows once and shares of masks in every round, with 49 bytes for each.
"""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from dresfl.baselines import COORDINATOR, MaskingClient, Message, Request, SumRound, mean_gradient
from dresfl.errors import InfeasiblePlan
from dresfl.experiments.bench.stages import residues
from dresfl.experiments.bench.timing import Call
from dresfl.field import SecretSeed
from dresfl.protocol import (
    Answer,
    Client,
    Session,
    Share,
    Task,
    coded_gradient,
    deal_set_up,
    decode_answers,
    fresh_blinding,
    set_up_bytes,
)

from .settings import Setting

Method = Literal["fedavg", "lightsecagg", "dresfl"]
METHOD_NAMES: dict[Method, str] = {
    "fedavg": "FedAvg",
    "lightsecagg": "FedAvg with LightSecAgg",
    "dresfl": "DReS-FL",
}

BLOCK_ROWS = 40  # coded rows that are dealt at a time


@final
@dataclass(frozen=True)
class Work:
    """What one participant does once in a phase. The call does `1/units` of it."""

    call: Call
    sent: int  # bytes
    received: int
    units: float = 1.0


@final
@dataclass(frozen=True)
class Phase:
    """A part of a method: who does it, whether once or in every round, and how it is made for a setting."""

    method: Method
    name: str
    party: Literal["client", "coordinator"]
    per: Literal["once", "round"]
    make: Callable[[Setting], Work | None]  # None: not possible in this setting


# -- FedAvg ----------------------------------------------------------------------------------------------------------


def _real_gradient(setting: Setting) -> Callable[[], Tensor]:
    """A client's gradient on its b_g/N own rows, in float32 with ReLU."""
    generator, network = torch.Generator().manual_seed(1), setting.network
    weights = 0.1 * torch.randn(network.num_parameters, generator=generator)
    inputs = torch.rand(1, setting.own_batch, network.input_size, generator=generator)
    labels = torch.randint(network.num_classes, (1, setting.own_batch), generator=generator)
    targets = torch.nn.functional.one_hot(labels, network.num_classes).to(torch.float32)
    return lambda: mean_gradient(network, "cross-entropy", weights, inputs, targets, torch.ones(1))


def _fedavg_update(setting: Setting) -> Work:
    gradient, size = _real_gradient(setting), 4 * setting.num_parameters
    return Work(lambda: gradient().numpy().tobytes(), sent=size, received=size)


def _fedavg_aggregate(setting: Setting) -> Work:
    count, size = setting.num_clients, 4 * setting.num_parameters
    vector = torch.rand(setting.num_parameters, generator=torch.Generator().manual_seed(1))
    messages = [vector.numpy().tobytes() for _ in range(count)]

    def average() -> None:
        total = np.zeros(setting.num_parameters, dtype=np.float32)
        for message in messages:
            total += np.frombuffer(message, np.float32)
        total /= count

    return Work(average, sent=count * size, received=count * size)


# -- FedAvg with LightSecAgg -----------------------------------------------------------------------------------------


def _masks(setting: Setting) -> Work:
    """A new mask, cut, coded and packed for all other clients."""
    plan = setting.secure_sum
    client, numbers = MaskingClient(plan, 0), itertools.count()

    def deal() -> int:
        return sum(len(share.encode(plan)) for share in client.deal(next(numbers)))

    size = deal()
    return Work(deal, sent=size, received=size)


def _masked_update(setting: Setting) -> Work:
    plan, field, gradient = setting.secure_sum, setting.secure_sum.field, _real_gradient(setting)
    mask = residues(field, plan.num_values)
    generator = torch.Generator().manual_seed(1)

    def update() -> bytes:
        integers = plan.integers(gradient(), torch.rand(plan.num_values, generator=generator, dtype=torch.float64))
        hidden = field.add(field.embed(integers), mask)
        return Message("vector", 0, 0, COORDINATOR, hidden).encode(plan)

    return Work(update, sent=len(update()), received=4 * setting.num_parameters)


def _mask_answer(setting: Setting) -> Work:
    """The shares of all masks, read and summed. Their bytes are those of the phase that dealt them."""
    plan, everybody = setting.secure_sum, range(setting.num_clients)
    own = residues(plan.field, plan.piece)
    shares = [Message("share", 0, i, 0, own).encode(plan) for i in everybody[1:]]

    def answer() -> bytes:
        held = [own, *(Message.decode(share, plan).residues for share in shares)]
        total = plan.field.sum(torch.stack(held, 1), 1)
        return Message("answer", 0, 0, COORDINATOR, total).encode(plan)

    request = Request(0, tuple(everybody)).encode(plan)
    return Work(answer, sent=len(answer()), received=len(request))


def _masked_aggregate(setting: Setting) -> Work:
    """All N vectors summed, then the masks' sum from R answers. Here all masks are 0, so that the sum is in range."""
    plan, everybody = setting.secure_sum, range(setting.num_clients)

    def zeros(size: int) -> Tensor:
        return plan.field.embed(torch.zeros(size, dtype=torch.int64))

    vectors = [Message("vector", 0, i, COORDINATOR, zeros(plan.num_values)).encode(plan) for i in everybody]
    needed = range(plan.recovery_threshold)
    answers = [Message("answer", 0, i, COORDINATOR, zeros(plan.piece)).encode(plan) for i in needed]

    def aggregate() -> bytes:
        coordinator = SumRound(plan, 0)
        for vector in vectors:
            coordinator.receive_vector(Message.decode(vector, plan))
        request = coordinator.close().encode(plan)
        for answer in answers:
            coordinator.receive_answer(Message.decode(answer, plan))
        return request

    requests = setting.num_clients * len(aggregate())
    models = setting.num_clients * 4 * setting.num_parameters
    received = sum(map(len, vectors)) + setting.num_clients * len(answers[0])  # all answer, though R are decoded
    return Work(aggregate, sent=requests + models, received=received)


# -- DReS-FL ---------------------------------------------------------------------------------------------------------


def _dealer(session: Session) -> Client:
    generator = torch.Generator().manual_seed(1)
    rows, classes = session.client_rows[0], session.network.num_classes
    inputs = torch.randint(17, (rows, session.network.input_size), generator=generator, dtype=torch.int32)
    labels = torch.randint(classes, (rows,), generator=generator)
    targets = torch.nn.functional.one_hot(labels, classes).to(torch.int32)
    return Client(session, 0, SecretSeed.fresh(), inputs, targets)


def deal_rows(setting: Setting) -> Work:
    """A client's coded rows for all other clients, packed, a block of rows at a time."""
    session = setting.session
    client, others = _dealer(session), range(1, session.num_clients)
    block, blocks = _blocks(session)

    def deal() -> int:
        return sum(len(share.encode(session)) for share in client.deal_to(others, 0, block))

    size = round(deal() * blocks)
    return Work(deal, sent=size, received=size, units=blocks)


def _keep_rows(setting: Setting) -> Work:
    """The shares of all other clients, read and checked. Their bytes are those of the phase that dealt them."""
    session = setting.session
    block, blocks = _blocks(session)
    share = Share(1, 0, 0, residues(session.field, block, session.row_width)).encode(session)

    def keep() -> None:
        for _ in range(session.num_clients - 1):
            Share.decode(share, session)

    return Work(keep, sent=0, received=0, units=blocks)


def _blocks(session: Session) -> tuple[int, float]:
    """Rows of a block, and how many blocks a client's coded rows are."""
    rows = session.coded_rows(0)
    block = min(BLOCK_ROWS, rows)
    return block, rows / block


def _set_up(setting: Setting) -> Work | None:
    """Mask seeds and check values, which this package's blinding and checks need. Not in the paper."""
    session, secret = setting.session, SecretSeed.fresh()
    others = range(1, session.num_clients)
    with contextlib.suppress(InfeasiblePlan):
        size = set_up_bytes(session, 0) * len(others)
        return Work(lambda: deal_set_up(session, 0, secret, others, secret), sent=size, received=size)
    return None


def _coded_update(setting: Setting) -> Work:
    """The weights read, the gradient on b_g/K coded rows, packed."""
    session = setting.session
    task = Task(0, session.network.initial_weights(session.stream)).encode(session)
    coded = residues(session.field, 1, session.batch_size, session.row_width)

    def update() -> bytes:
        weights = Task.decode(task, session).weights
        return Answer(0, 0, coded_gradient(session, weights, coded)[:, 0]).encode(session)

    return Work(update, sent=len(update()), received=len(task))


def _blind(setting: Setting) -> Work | None:
    """What this package adds to an answer so that the coordinator sees the sum alone. Not in the paper."""
    session = setting.session
    answer = residues(session.field, setting.num_parameters)
    with contextlib.suppress(InfeasiblePlan):
        blinding = fresh_blinding(session)[0]
        return Work(
            lambda: session.field.add(answer, blinding.values(b"a round", setting.num_parameters)), sent=0, received=0
        )
    return None


def _decode(setting: Setting) -> Work:
    """R answers read, decoded, lifted and checked."""
    session = setting.session
    zeros = session.field.embed(torch.zeros(setting.num_parameters, dtype=torch.int64))
    needed = range(session.recovery_threshold)
    messages = [Answer(0, i, zeros).encode(session) for i in needed]
    coefficients = session.code.sum_decoder(needed)

    def decode() -> None:
        answers = [Answer.decode(message, session).residues for message in messages]
        decode_answers(session.field, coefficients, answers)

    task = Task(0, torch.zeros(setting.num_parameters, dtype=torch.int64)).encode(session)
    received = setting.num_clients * len(messages[0])  # all answer, though R are decoded
    return Work(decode, sent=setting.num_clients * len(task), received=received)


PHASES: tuple[Phase, ...] = (
    Phase("fedavg", "local update", "client", "round", _fedavg_update),
    Phase("fedavg", "aggregation", "coordinator", "round", _fedavg_aggregate),
    Phase("lightsecagg", "coded masks", "client", "round", _masks),
    Phase("lightsecagg", "local update", "client", "round", _masked_update),
    Phase("lightsecagg", "sum of mask shares", "client", "round", _mask_answer),
    Phase("lightsecagg", "aggregation", "coordinator", "round", _masked_aggregate),
    Phase("dresfl", "coded rows", "client", "once", deal_rows),
    Phase("dresfl", "reading coded rows", "client", "once", _keep_rows),
    Phase("dresfl", "set-up values", "client", "once", _set_up),
    Phase("dresfl", "local update", "client", "round", _coded_update),
    Phase("dresfl", "blinding", "client", "round", _blind),
    Phase("dresfl", "aggregation", "coordinator", "round", _decode),
)
EXTRAS = ("set-up values", "blinding")  # what this package adds to the paper's protocol
