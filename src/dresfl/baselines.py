"""What DReS-FL is compared with: FedAvg and centralised training of a ReLU network, in reals.

Pure functions over explicit state. One local SGD step a round, as in the paper's experiments: averaging the
clients' models then is the same as averaging their gradients, so a round is one weighted backward pass.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dresfl.field import Domain, PublicStream
from dresfl.optimizers import Optimizer

Batch = tuple[Tensor, Tensor]  # inputs (B,F), targets (B,C)


@final
@dataclass(frozen=True, eq=False)
class State:
    """A ReLU network of the given layer sizes and the optimiser's moments, between two rounds."""

    sizes: tuple[int, ...]
    weights: Tensor  # (P,) float64: each layer's matrix (in,out), then its bias
    moments: dict[str, Tensor]


def initial_state(sizes: Sequence[int], optimizer: Optimizer, stream: PublicStream) -> State:
    """Weights and biases uniform in ±1/sqrt(fan-in), as torch initialises a linear layer."""
    parts = [
        (stream.uniform(Domain.BASELINE, index, (fan_in + 1) * fan_out) * 2 - 1) / math.sqrt(fan_in)
        for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes))
    ]
    weights = torch.cat(parts)
    return State(tuple(sizes), weights, optimizer.initial_state(weights.numel()))


def outputs(sizes: Sequence[int], weights: Tensor, inputs: Tensor) -> Tensor:
    """The network's values: inputs (B,F) -> (B,C)."""
    x, start = inputs, 0
    for depth, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        middle, end = start + fan_in * fan_out, start + (fan_in + 1) * fan_out
        x = (x if depth == 0 else x.relu()) @ weights[start:middle].view(fan_in, fan_out) + weights[middle:end]
        start = end
    return x


def centralised_round(state: State, optimizer: Optimizer, rate: float, batch: Batch) -> State:
    """One step on a mini-batch of the pooled data: the upper bound."""
    return fedavg_round(state, optimizer, rate, [batch], [1])


def fedavg_round(
    state: State, optimizer: Optimizer, rate: float, batches: Sequence[Batch], client_rows: Sequence[int]
) -> State:
    """One local step of every client that answered, averaged in proportion to its data; none answered: no step.

    batches: each answering client's own mini-batch; client_rows: its data set's size.
    """
    if not batches:
        return state
    shares = [
        torch.full((inputs.shape[0],), rows / sum(client_rows) / inputs.shape[0], dtype=torch.float64)
        for (inputs, _), rows in zip(batches, client_rows, strict=True)
    ]
    leaf = state.weights.detach().requires_grad_()
    found = outputs(state.sizes, leaf, torch.cat([inputs for inputs, _ in batches]))
    errors = (found - torch.cat([targets for _, targets in batches])).square().sum(1)  # (B,)
    (gradient,) = torch.autograd.grad((errors * torch.cat(shares)).sum(), leaf)
    update, moments = optimizer.update(state.moments, rate, gradient, state.weights)
    return State(state.sizes, state.weights - update, moments)
