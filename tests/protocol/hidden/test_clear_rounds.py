"""Clear rounds: the fast ring against Python integers, bit for bit, and both against python-flint."""

import random

import pytest
import torch

from dresfl.coding import CodeParameters
from dresfl.field import PublicStream
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.clear_rounds import (
    IntegerRing,
    ResidueRing,
    StreamDither,
    final_weights,
    play_round,
)
from dresfl.protocol.hidden.plan import make_plan
from dresfl.protocol.hidden.settings import HiddenSettings

NETWORKS = {
    "linear": mlp((5, 3), input_bits=4, weight_bits=10),
    "one": mlp((5, 4, 3), input_bits=4, weight_bits=10),
    "two": mlp((4, 3, 3, 2), input_bits=4, weight_bits=10),
    "four": mlp((3, 3, 2, 2, 2, 2), input_bits=3, weight_bits=10),
    "quadratic": Network((Dense(4), Quadratic(), Dense(3), Quadratic(), Dense(2)), (4,), 4),
    "conv": Network((Conv2d(2, 3, 2, 1), Square(), Flatten(), Dense(3), Quadratic(), Dense(2)), (5, 4, 1), 4),
    "pool": Network((Conv2d(2, 2, init=0.3), SumPool(2), Square(), Flatten(), Dense(2)), (5, 5, 1), 4),
    "pool last": Network((Conv2d(2, 2, init=0.5), Square(), SumPool(2, 1), Flatten(), Dense(2)), (4, 4, 1), 4),
    "no activation": Network((Dense(3), Dense(2)), (4,), 4),
    "square at both ends": Network((Square(), Dense(3), Square()), (4,), 3),
}


def plan_of(network, schedule="S4", shards=1, rounds=3, clients=10, batch=4, **more):
    optimizer = Optimizer(method="momentum", learning_rate=0.05, schedule="cosine", weight_decay=0.01)
    parameters = CodeParameters(clients, shards, 1, batch)
    return make_plan(
        network, parameters, HiddenSettings(schedule=schedule, **more), optimizer, rounds, client_rows=(40,) * clients
    )


def rows_of(plan, number, count):
    """Inputs (K,B,F) and one-hot targets (K,B,C)."""
    rng, network, shards = random.Random(number), plan.network, plan.parameters.num_shards
    inputs = [rng.randint(0, 2**network.input_bits) for _ in range(shards * count * network.input_size)]
    labels = torch.tensor([rng.randrange(network.num_classes) for _ in range(shards * count)])
    targets = torch.nn.functional.one_hot(labels, network.num_classes)
    return torch.tensor(inputs).view(shards, count, -1), targets.view(shards, count, -1)


def played(plan, ring, seed, watch=lambda hop, item, product: None):
    """The final weights and the losses of a run on clear values."""
    embed, dither = ring.arithmetic.embed, StreamDither(plan, seed)
    state = before = embed(plan.initial_weights(PublicStream(seed))).reshape(-1, 1, plan.network.num_parameters)
    state = state.reshape(state.shape[0], 1, -1)
    losses = []
    for number in range(plan.rounds):
        coded = tuple(embed(part) for part in rows_of(plan, number, plan.parameters.batch_size))
        held_out = lambda: tuple(embed(part) for part in rows_of(plan, -1, plan.validation_rows))  # noqa: E731
        result = play_round(plan, ring, number, coded, (state, before), dither, held_out, watch)
        state, before = result.state, state
        losses.append(result.loss)
    return final_weights(plan, ring, state).tolist(), losses


@pytest.mark.parametrize("schedule", ["S2", "S4"])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_residues_give_the_integers_of_python(name, shards, schedule):
    plan = plan_of(NETWORKS[name], schedule, shards)
    assert played(plan, ResidueRing(plan), 7) == played(plan, IntegerRing(), 7)
