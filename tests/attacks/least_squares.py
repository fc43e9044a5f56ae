"""Rows from many noisy gradients: least squares with a prior, by Adam. Two attacks use it.

Axis letters: T rounds, B rows of a batch, F inputs, C classes, P parameters, m rows of all clients.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dresfl.model import Dense, Network, Square
from dresfl.protocol import Session


def float_gradients(network: Network, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean gradient of each round in floats, differentiable in the rows.

    weights (T,P) real, inputs (T,B,F) and targets (T,B,C) -> (T,P). For chains of dense layers and squares.
    """
    places = iter(network.parameters)
    x, kept = inputs, []
    for layer in network.layers:
        if isinstance(layer, Dense):
            p = next(places)
            matrix = weights[:, p.weight].reshape(-1, *p.fan)
            kept.append((x, matrix))
            x = x @ matrix + weights[:, p.bias].unsqueeze(1)  # (T,B,in) @ (T,in,out)
        elif isinstance(layer, Square):
            kept.append((x, None))
            x = x * x
        else:
            raise TypeError(f"{layer} is neither dense nor a square")
    delta = (x - targets) * (2 / inputs.shape[1])
    parts: list[Tensor] = []
    for x, matrix in reversed(kept):
        if matrix is None:
            delta = delta * (2 * x)
            continue
        parts += [delta.sum(1), (x.mT @ delta).flatten(1)]
        delta = delta @ matrix.mT
    return torch.cat(parts[::-1], 1)


def batch_places(session: Session, rounds: Tensor) -> Tensor:
    """Which rows each round uses, as everybody knows them: places (T,B·K) in the rows of all clients, end to end."""
    batch, clients = session.batches(rounds), range(session.num_clients)
    starts = torch.tensor([0, *session.client_rows]).cumsum(0)
    hidden = torch.cat([session.shard_rows(i) + starts[i] for i in clients])  # (coded rows,K)
    coded_starts = torch.tensor([0, *(session.coded_rows(i) for i in clients)]).cumsum(0)
    return hidden[coded_starts[batch.dealers] + batch.rows].flatten(1)


@dataclass(frozen=True)
class Prior:
    """What the attacker expects of a row before it has seen anything: a mean and a spread for each value (m,F)."""

    mean: Tensor
    spread: Tensor

    @classmethod
    def of_classes(cls, rows: Tensor, labels: Tensor, wanted: Tensor) -> "Prior":
        """From public rows of the same kind, for rows whose labels are known: the mean and the spread of each class."""
        classes = range(int(max(labels.max(), wanted.max())) + 1)
        means = torch.stack([rows[labels == k].mean(0) for k in classes])
        spreads = torch.stack([rows[labels == k].std(0) for k in classes]).clamp_min(0.03)
        return cls(means[wanted], spreads[wanted])

    @classmethod
    def of_all(cls, rows: Tensor, count: int) -> "Prior":
        """From public rows of the same kind, for rows whose labels are unknown."""
        return cls(rows.mean(0).expand(count, -1), rows.std(0).clamp_min(0.03).expand(count, -1))


def rows_from_gradients(
    network: Network,
    weights: Tensor,
    gradients: Tensor,
    noise: Tensor,
    places: Tensor,
    targets: Tensor | None,
    prior: Prior,
    *,
    epochs: int,
    learning_rate: float,
    together: int = 20,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """The rows (m,F) and targets (m,C) that explain the gradients best, given the prior; values lie in 0..1.

    weights, gradients (T,P) real; noise (T,1) or (T,P): the standard deviation of the gradients' errors; places (T,B).
    targets (m,C), or None if unknown. An epoch goes through all rounds once, `together` of them in a step.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = prior.mean.clone().requires_grad_()
    known = targets is not None
    guess = targets.float() if known else torch.full((len(rows), network.num_classes), 1 / network.num_classes)
    guess = guess.clone().requires_grad_(not known)
    adam = torch.optim.Adam([rows] if known else [rows, guess], lr=learning_rate, betas=(0.9, 0.99))
    steps = len(weights) // together
    for epoch in range(epochs):
        order = torch.randperm(len(weights), generator=generator)
        for step in range(steps):
            done = (epoch * steps + step) / (epochs * steps)
            warm = min(1.0, (epoch * steps + step + 1) / 100)
            adam.param_groups[0]["lr"] = learning_rate * warm * 0.5 * (1 + math.cos(math.pi * done))
            now = order[step * together : (step + 1) * together]
            computed = float_gradients(network, weights[now], rows[places[now]], guess[places[now]])
            loss = ((gradients[now] - computed) / noise[now]).square().sum() / 2
            loss = loss + ((rows - prior.mean) / prior.spread).square().sum() / (2 * steps)
            if not known:
                loss = loss + ((guess - 1 / network.num_classes) / 0.3).square().sum() / (2 * steps)
            adam.zero_grad()
            loss.backward()
            adam.step()
            with torch.no_grad():
                rows.clamp_(0, 1)
                guess.clamp_(0, 1)
    return rows.detach(), guess.detach()


def found(computed: Tensor, true: Tensor) -> float:
    """The share of rows that were found: the true row that is nearest to the computed one is the right one."""
    nearest = torch.cdist(computed.double(), true.double()).argmin(1)
    return float((nearest == torch.arange(len(true))).double().mean())


def sample(images: Tensor, computed: Tensor, true: Tensor, levels: int = 16) -> dict[str, list[list[int]]]:
    """Some images (n,F) that are among the true rows, and what was computed in their place: whole steps of 1/levels."""
    places = [int((true.double() - image.double()).abs().sum(1).argmin()) for image in images]
    return {
        name: [[round(float(value) * levels) for value in row] for row in rows[places].clamp(0, 1)]
        for name, rows in (("true", true), ("computed", computed))
    }


def error(computed: Tensor, true: Tensor) -> float:
    """The root of the mean squared error, as a part of full scale."""
    return float((computed.double() - true.double()).square().mean().sqrt())
