"""The baselines' rounds as pure functions over explicit state.

One local SGD step a round, as in the paper's experiments: averaging the clients' models then is the same as averaging
their gradients, and the coordinator's optimiser takes that average. With plain SGD each method is the one of its paper.

Notation: g_i client i's mini-batch gradient, m_i its rows, m all rows, A the answering clients, N all clients.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import Domain, PublicStream
from dresfl.model import Network
from dresfl.optimizers import Optimizer

from .relu_network import Loss, client_gradients, mean_gradient

Method = Literal["fedavg", "fedavg-is", "fedavg-is-unbiased", "scaffold", "centralised"]
METHODS: tuple[Method, ...] = get_args(Method)


@final
@dataclass(frozen=True)
class Problem:
    """What stays the same over all rounds. Centralised training is FedAvg with one client that has all rows."""

    network: Network
    method: Method
    loss: Loss
    optimizer: Optimizer
    num_clients: int

    def __post_init__(self) -> None:
        if not self.network.one_hot:
            raise UsageError(
                "the methods that are compared train networks with one value for each class",
                "a regression, or one value for two classes, is trained by `dresfl train` alone",
            )


@final
@dataclass(frozen=True, eq=False)
class State:
    """The state of the coordinator and of the clients between two rounds."""

    weights: Tensor  # (P,) each affine layer's matrix (in,out), then its bias
    moments: dict[str, Tensor]  # of the optimiser
    controls: Tensor  # (N,P) SCAFFOLD's c_i; (0,P) for the others
    control: Tensor  # (P,) SCAFFOLD's c; (0,) for the others
    steps: int = 0


@final
@dataclass(frozen=True, eq=False)
class Answers:
    """What the clients of a round work on. A share of 0 means: absent, though a slot is held for it."""

    inputs: Tensor  # (S,B,F)
    targets: Tensor  # (S,B,C) one-hot
    clients: Tensor  # (S,) who; no client twice
    shares: Tensor  # (S,) what each gradient counts, from `shares`


def torch_weights(network: Network, stream: PublicStream) -> Tensor:
    """(P,) float64: weights and biases uniform in ±1/sqrt(fan-in), as torch initialises its layers."""
    parts = [
        (stream.uniform(Domain.BASELINE, index, (p.fan[0] + 1) * p.fan[1]) * 2 - 1) / math.sqrt(p.fan[0])
        for index, p in enumerate(network.parameters)
    ]
    return torch.cat(parts)


def initial_state(problem: Problem, start: Tensor, device: str = "cpu", dtype: torch.dtype = torch.float64) -> State:
    """The state before the first round, from the weights `start` (P,); all else zero."""
    weights = start.to(device, dtype)
    moments = problem.optimizer.initial_state(len(weights))
    del moments["steps"]
    clients, size = (problem.num_clients, len(weights)) if problem.method == "scaffold" else (0, 0)
    return State(
        weights,
        {name: moment.to(device, dtype) for name, moment in moments.items()},
        torch.zeros((clients, len(weights)), dtype=dtype, device=device),
        torch.zeros(size, dtype=dtype, device=device),
    )


def shares(
    method: Method, answering: Sequence[int], client_rows: Sequence[int], dropout_rates: Sequence[float]
) -> list[float]:
    """What the answering clients' gradients count in a round.

    FedAvg: m_i/Σ_A m_j. FedAvg-IS weighs m_i by 1/(1−rate_i) before that: no round counts more than another, but one
    that is mostly absent still counts less than its data. Unbiased, it is m_i/(m·(1−rate_i)): the expected sum is the
    gradient of everybody's loss, and one answer of a client that is mostly absent counts many times its data.
    SCAFFOLD: 1/|A|, as its paper has it.

    >>> shares("fedavg", [0, 2], [10, 20, 30], [0.0, 0.0, 0.5]) == [0.25, 0.75]
    True
    >>> shares("fedavg-is", [0, 2], [10, 20, 30], [0.0, 0.0, 0.5]) == [10 / 70, 60 / 70]
    True
    >>> shares("fedavg-is-unbiased", [0, 2], [10, 20, 30], [0.0, 0.0, 0.5]) == [10 / 60, 60 / 60]
    True
    """
    if method == "scaffold":
        return [1 / len(answering)] * len(answering)
    if method in ("fedavg-is", "fedavg-is-unbiased"):
        weighed = [client_rows[i] / (1 - dropout_rates[i]) for i in answering]
    else:
        weighed = [client_rows[i] for i in answering]
    total = sum(client_rows) if method == "fedavg-is-unbiased" else sum(weighed)
    return [weight / total for weight in weighed]


def next_state(problem: Problem, state: State, rate: float, answers: Answers) -> State:
    """One round at a learning rate; a round that nobody answered changes nothing, so it is not for this."""
    after = advance(problem, state, problem.optimizer.factors(rate, state.steps + 1), answers)
    return dataclasses.replace(after, steps=state.steps + 1)


def advance(problem: Problem, state: State, factors: Sequence[float] | Tensor, answers: Answers) -> State:
    """`next_state` with the optimiser's factors given, as numbers or as a tensor, on the device alone."""
    if problem.method == "scaffold":
        direction, controls, control = _scaffold(problem, state, answers)
    else:
        data = answers.inputs, answers.targets, answers.shares
        direction = mean_gradient(problem.network, problem.loss, state.weights, *data)
        controls, control = state.controls, state.control
    update, moments = problem.optimizer.update(state.moments, factors, direction, state.weights)
    return State(state.weights - update, moments, controls, control, state.steps)


def _scaffold(problem: Problem, state: State, answers: Answers) -> tuple[Tensor, Tensor, Tensor]:
    """Karimireddy et al. 2020, algorithm 1, option II, one local step, global rate 1.

    y_i = x − η(g_i − c_i + c); c_i⁺ = c_i − c + (x − y_i)/η, which is g_i; x⁺ = x + mean_A(y_i − x), so that the
    coordinator steps along mean_A(g_i − c_i) + c; c⁺ = c + (1/N)·Σ_A(c_i⁺ − c_i).
    """
    found = client_gradients(problem.network, problem.loss, state.weights, answers.inputs, answers.targets)  # (S,P)
    before = state.controls.index_select(0, answers.clients)
    changes = found - before
    present = (answers.shares > 0).to(found.dtype)  # (S,)
    both = torch.stack((answers.shares, present / problem.num_clients)) @ changes  # (2,S) @ (S,P) -> (2,P)
    kept = torch.where(present.bool().unsqueeze(1), found, before)
    return both[0] + state.control, state.controls.index_copy(0, answers.clients, kept), state.control + both[1]
