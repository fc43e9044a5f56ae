"""Training by groups, simulated: each group decodes the sum of its own rows, and the coordinator adds the sums up.

The integers are those of the protocol: a group's decoded sum is the exact sum over its batch, so that the sum over the
groups that decoded is one gradient over all their rows (engine `direct` computes the same). What groups change is
whose rows are in it: those of a group that cannot decode are missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.data import integer_rows, load, partition
from dresfl.errors import UsageError
from dresfl.field import Domain
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Evaluation, Session, coded_gradient, step
from dresfl.quantize import Quantizer
from dresfl.runtimes.local import Dropouts, paper
from dresfl.runtimes.local.plain_rows import PlainRows

Formation = Literal["random", "neighbours"]
FORMATIONS: tuple[Formation, ...] = ("random", "neighbours")

_SIZES = (64, 32, 32, 10)
_INPUT_BITS, _WEIGHT_BITS = 4, 10
_OPTIMIZER = Optimizer("momentum", learning_rate=0.03, schedule="cosine")


@final
@dataclass(frozen=True)
class Grouping:
    """How the clients of a data set, sorted by label, are put into groups.

    random: by a draw that everybody can check. neighbours: clients next to each other, who know the same one or two
    digits; say, the hospitals of one town.
    """

    clients: int
    size: int
    formation: Formation
    seed: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.clients % self.size:
            raise UsageError(f"{self.clients} clients do not make groups of {self.size}")

    def groups(self) -> list[list[int]]:
        """The clients of each group."""
        order = np.arange(self.clients)
        if self.formation == "random":
            order = np.random.default_rng(self.seed).permutation(order)
        return [sorted(group) for group in order.reshape(-1, self.size).tolist()]


@final
class _Group:
    """The rows and batches of one group, and who it needs."""

    def __init__(self, members: list[int], data: Sequence[tuple[Tensor, Tensor]], batch: int, seed: int) -> None:
        network = mlp(_SIZES, input_bits=_INPUT_BITS, weight_bits=_WEIGHT_BITS)
        rows = [data[client] for client in members]
        counts = tuple(len(inputs) for inputs, _ in rows)
        self.session = Session(network, CodeParameters(len(members), batch_size=batch), counts, seed=seed)
        self.members = np.array(members)
        self.needed = self.session.answers_needed
        self._plain = PlainRows(self.session, rows)

    def batches(self, rounds: int) -> Tensor:
        """(rounds,B,W): the rows of every round's batch."""
        places = self._plain.hidden_in(self.session.batches(torch.arange(rounds)))  # (rounds,B,1)
        return self._plain.values[places[..., 0]]


def digits_by_client(clients: int) -> tuple[list[tuple[Tensor, Tensor]], Evaluation]:
    """Integer rows of scikit-learn's digits, sorted by label over the clients; and how weights are evaluated."""
    split, quantizer = load("digits", None), Quantizer(_INPUT_BITS, 0.0)
    parts = partition(split.train.labels, clients, "label-sorted", alpha=0.5, seed=0)
    network = mlp(_SIZES, input_bits=_INPUT_BITS, weight_bits=_WEIGHT_BITS)
    return [integer_rows(split.train, quantizer, rows) for rows in parts], Evaluation(network, quantizer, split.test)


def train_in_groups(grouping: Grouping, *, rounds: int, batch: int) -> dict[str, Any]:
    """Train on digits with the paper's dropouts. batch: rows of a round, of all groups together."""
    data, evaluation = digits_by_client(grouping.clients)
    members = grouping.groups()
    if batch % len(members):
        raise UsageError(f"{batch} rows are not {len(members)} equal batches")
    groups = [_Group(group, data, batch // len(members), grouping.seed + i) for i, group in enumerate(members)]
    dropouts = paper(grouping.clients, grouping.seed)
    weights, decoded = _train(groups, dropouts, rounds, batch, grouping.seed)
    lost = [group for group, share in zip(members, decoded.mean(0).tolist(), strict=True) if share < 0.05]
    return {
        "clients": grouping.clients,
        "size": grouping.size,
        "formation": grouping.formation,
        "seed": grouping.seed,
        "rounds": rounds,
        "batch": batch,
        "answers": groups[0].needed,
        "decoded_share": float(decoded.mean()),
        "lost_clients": sum(len(group) for group in lost) / grouping.clients,
        "test_accuracy": evaluation.accuracy(weights),
    }


def separate_models(grouping: Grouping, *, rounds: int, batch: int) -> dict[str, Any]:
    """Every group trains a model of its own, and the final models are averaged. Nobody is away.

    batch: rows of a group's round.
    """
    data, evaluation = digits_by_client(grouping.clients)
    models = []
    for group in grouping.groups():
        everybody = Dropouts((0.0,) * grouping.clients, grouping.seed)
        one = [_Group(group, data, batch, grouping.seed)]
        models.append(_train(one, everybody, rounds, batch, grouping.seed)[0])
    mean = torch.stack(models).double().mean(0).round().to(torch.int64)
    return {
        "clients": grouping.clients,
        "size": grouping.size,
        "formation": grouping.formation,
        "seed": grouping.seed,
        "rounds": rounds,
        "batch": batch,
        "mean_of_the_groups": float(np.mean([evaluation.accuracy(model) for model in models])),
        "test_accuracy": evaluation.accuracy(mean),
    }


def _train(
    groups: list[_Group], dropouts: Dropouts, rounds: int, batch: int, seed: int
) -> tuple[Tensor, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The final weights, and which groups decoded in which round: (rounds,groups)."""
    network, clients = groups[0].session.network, len(dropouts.rates)
    whole = Session(network, CodeParameters(clients, batch_size=batch), (1,) * clients, seed=seed)
    tables = torch.stack([group.batches(rounds) for group in groups], 1)  # (rounds,groups,B,W)
    weights = network.initial_weights(whole.stream)
    state = _OPTIMIZER.initial_state(network.num_parameters, "cpu")
    moments = {name: value for name, value in state.items() if name != "steps"}
    decoded = np.zeros((rounds, len(groups)), dtype=np.bool_)
    steps = 0
    for number in range(rounds):
        there = np.zeros(clients, dtype=np.bool_)
        there[dropouts.answering(number)] = True
        decoded[number] = [there[group.members].sum() >= group.needed for group in groups]
        rows = tables[number][torch.from_numpy(decoded[number])].flatten(0, 1)  # (rows,W)
        if not len(rows):
            continue
        steps += 1
        total = coded_gradient(whole, weights, whole.field.embed(rows).unsqueeze(1))[:, 0]  # (M,P)
        integers = whole.field.lift(total) * (batch / len(rows))  # the mean is over the rows that are there
        factors = _OPTIMIZER.factors(_OPTIMIZER.rate(number, rounds), steps)
        noise = whole.stream.uniform(Domain.ROUNDING, number, network.num_parameters)
        taken = step(whole, _OPTIMIZER, weights, moments, integers, factors, noise)
        weights, moments = taken.weights, taken.moments
    return weights, decoded
