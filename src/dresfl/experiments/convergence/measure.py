"""What a step's expectations are at given weights, exactly, from all rows: only a simulation can know this.

Axis letters: m rows, c coded rows, K shards, B draws, P weights. All values are real: a weight is an integer times
δ = 2^−lw, and a gradient is that of the mean loss per row.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import Reals
from dresfl.protocol import BatchRows, Session
from dresfl.quantize import weight_reals
from dresfl.runtimes.local.plain_rows import PlainRows


@final
@dataclass(frozen=True)
class Moments:
    """The loss at some weights, and the first two moments of a round's gradient there."""

    loss: float
    squared_gradient: float  # ‖∇ℓ‖²
    batch_variance: float  # E‖g − ∇ℓ‖² of a round's gradient g
    row_variance: float  # the same of the gradient of one row
    shard_variance: float  # the same of the batch of one shard alone, the largest: σ² of the paper's Assumption 2


@final
class Problem:
    """A simulated federation's rows and how batches draw them."""

    def __init__(self, session: Session, plain: PlainRows) -> None:
        if session.excluded or session.hidden is not None:
            raise UsageError("only a session of the open mode without excluded dealers can be measured")
        self.session, network = session, session.network
        self.chances = draw_chances(session)  # (B,c)
        rows = plain.values[plain.hidden_in(_every_coded_row(session)).flatten()].to(torch.float64)  # (c·K,W)
        self.inputs, self.targets = rows[:, : network.input_size], rows[:, network.input_size :]
        starts = torch.tensor([0, *(session.coded_rows(i) for i in range(session.num_clients))]).cumsum(0)
        self._coded_starts = starts
        self._mean_chances = torch.from_numpy(np.asarray(self.chances.mean(0)).reshape(-1))  # (c,)
        # (c·K,), in the order of `inputs`; leftover rows stand in several places
        self.row_chances = self._mean_chances.repeat_interleave(session.num_shards) / session.num_shards

    @property
    def grid(self) -> float:
        """δ: all weights are multiples of it."""
        return float(1 / self.session.network.weight_scales[0])

    def row_gradients(self, weights: Tensor) -> Tensor:
        """∇_w of the loss of each row: (c,K,P), from the integer weights (P,)."""
        network, shards = self.session.network, self.session.num_shards
        rows = self.inputs.view(1, len(self.inputs), 1, -1), self.targets.view(1, len(self.targets), 1, -1)
        found = network.gradient(Reals(), weights, *rows)[0] / network.gradient_scales  # (c·K,P)
        return found.view(-1, shards, network.num_parameters)

    def losses(self, weights: Tensor) -> Tensor:
        """‖f(x) − y‖² of each row: (c,K)."""
        network = self.session.network
        outputs = network.outputs(Reals(), weights, self.inputs.view(1, 1, *self.inputs.shape))[0, 0]
        errors = (outputs / 2.0**network.out_scale - self.targets).square().sum(1)
        return errors.view(-1, self.session.num_shards)

    def batch_gradient(self, gradients: Tensor, round_number: int) -> Tensor:
        """g: a round's mean gradient (P,), from the gradients of all rows (c,K,P)."""
        batch = self.session.batch_rows(round_number)
        return gradients[self._coded_starts[batch.dealers] + batch.rows].mean((0, 1))

    def moments(self, weights: Tensor, gradients: Tensor) -> Moments:
        """The exact moments over all batches; gradients: those of all rows at these weights."""
        mean = self.expected_gradient(gradients)
        per_shard = gradients.unbind(1)  # K of (c,P)
        shards = [self._spread(each, mean) for each in per_shard]
        coded = gradients.mean(1) if len(per_shard) > 1 else per_shard[0]  # what one draw adds, over the shards
        whole = self._spread(coded, mean) if len(per_shard) > 1 else shards[0]
        return Moments(
            loss=float(self._mean_chances @ self.losses(weights).mean(1)),
            squared_gradient=float(mean @ mean),
            batch_variance=whole.batch,
            row_variance=sum(shard.single for shard in shards) / len(shards),
            shard_variance=max(shard.batch for shard in shards),
        )

    def expected_gradient(self, gradients: Tensor) -> Tensor:
        """E[g] (P,) over all batches; it is ∇ℓ, the mean over all rows (Lemma 1)."""
        return self.row_chances @ gradients.flatten(0, 1)

    def _spread(self, values: Tensor, around: Tensor) -> "_Spread":
        """How far draws, and means of B draws, are from `around` (P,); values (c,P): what each coded row adds."""
        means = torch.from_numpy(self.chances @ values.numpy()) - around  # (B,P): of each draw
        squares = values.square().sum(1) - 2 * (values @ around) + around @ around  # (c,)
        single, between = float(self._mean_chances @ squares), float(means.square().sum(1).mean())
        bias = means.mean(0)  # a shard's own rows have another mean than all rows
        return _Spread(single, max(0.0, single - between) / self.session.batch_size + float(bias @ bias))


@final
@dataclass(frozen=True)
class _Spread:
    """Mean squared distances: of a single draw, and of the mean of a batch of independent draws."""

    single: float
    batch: float


def rounding_variance(gradient: Tensor, rate: float, grid: float) -> float:
    """E‖δQ(ηg/δ) − ηg‖² = δ²Σf(1−f), f the fractional parts of ηg/δ.

    >>> rounding_variance(torch.tensor([0.5, 3.0]), rate=1.0, grid=1.0)
    0.25
    """
    scaled = gradient * rate / grid
    parts = scaled - scaled.floor()
    return grid**2 * float((parts * (1 - parts)).sum())


def draw_chances(session: Session) -> sparse.csr_matrix:
    """(B,c): how likely draw b picks coded row c. Draw b is uniform in the b-th of B equal strata of the m rows."""
    coded_row = torch.cat(
        [
            torch.cat((torch.arange(whole).repeat_interleave(session.num_shards), whole + torch.arange(rest))) + start
            for start, whole, rest in _coded_sizes(session)
        ]
    ).tolist()  # (m,)
    size, total = session.batch_size, len(coded_row)
    draws, picked, chances = [], [], []
    for draw in range(size):
        low, high = draw * total, (draw + 1) * total  # the stratum, in units of 1/B of a row
        for place in range(low // size, -(-high // size)):
            draws.append(draw)
            picked.append(coded_row[place])
            chances.append((min((place + 1) * size, high) - max(place * size, low)) / total)
    shape = size, sum(session.coded_rows(i) for i in range(session.num_clients))
    return sparse.csr_matrix((chances, (draws, picked)), shape=shape)


def _coded_sizes(session: Session) -> list[tuple[int, int, int]]:
    """Of each client: where its coded rows start, how many hide K rows of their own, how many hide leftovers."""
    found, start = [], 0
    for client, rows in enumerate(session.client_rows):
        found.append((start, *divmod(rows, session.num_shards)))
        start += session.coded_rows(client)
    return found


def _every_coded_row(session: Session) -> BatchRows:
    counts = [session.coded_rows(client) for client in range(session.num_clients)]
    dealers = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return BatchRows(dealers, torch.cat([torch.arange(count) for count in counts]))


# -- smoothness ------------------------------------------------------------------------------------------------------


def least_squares_constants(problem: Problem) -> tuple[float, float]:
    """(L, min ℓ) of a network without activations: twice the largest eigenvalue of X̃ᵀX̃/m, and the least loss."""
    network = problem.session.network
    if network.gradient_degree != 2:
        raise UsageError("the loss of a network with activations is no quadratic")
    inputs = torch.cat((problem.inputs / 2.0**network.input_bits, torch.ones(len(problem.inputs), 1)), 1)
    root = problem.row_chances.sqrt().unsqueeze(1)
    smoothness = 2 * float(torch.linalg.matrix_norm(root * inputs, 2)) ** 2
    best = torch.linalg.lstsq(root * inputs, root * problem.targets, driver="gelsd").solution
    return smoothness, float((root * (inputs @ best - problem.targets)).square().sum())


def curvature(problem: Problem, weights: Tensor, iterations: int = 20) -> float:
    """An estimate of the largest |eigenvalue| of the loss's Hessian at the weights: a power iteration from below."""
    network, scale = problem.session.network, 1 / problem.grid
    point = weights.to(torch.float64).requires_grad_()
    outputs = network.outputs(Reals(), point, problem.inputs.view(1, 1, *problem.inputs.shape))[0, 0]
    loss = problem.row_chances @ (outputs / 2.0**network.out_scale - problem.targets).square().sum(1)
    (slope,) = torch.autograd.grad(loss, point, create_graph=True)
    direction = torch.ones_like(point).detach() + torch.arange(len(point)) % 3
    found = 0.0
    for _ in range(iterations):
        direction = direction / direction.norm()
        (product,) = torch.autograd.grad(slope, point, direction, retain_graph=True)
        found = float(product.norm()) * scale**2
        direction = product
    return found


def step_curvature(problem: Problem, before: Tensor, after: Tensor, fall: float, slope: Tensor) -> float:
    """The curvature along one step u: 2(ℓ(w−u) − ℓ(w) + ⟨∇ℓ(w), u⟩)/‖u‖². No smoothness can be below it.

    fall: ℓ(after) − ℓ(before); slope: ∇ℓ(before).
    """
    scales = problem.session.network.weight_scales
    moved = weight_reals(before - after, scales)
    squares = float(moved @ moved)
    return 2 * (fall + float(slope @ moved)) / squares if squares else 0.0
