"""Clear rounds: the fast ring against Python integers, bit for bit, and both against python-flint."""

import dataclasses
import itertools
import random

import flint
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dresfl.coding import CodeParameters
from dresfl.errors import Diverged, HeadroomAlarm
from dresfl.experiments.guards import Trial, play
from dresfl.field import PublicStream, Reals
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.clear_rounds import (
    IntegerRing,
    RealRing,
    ResidueRing,
    StreamDither,
    final_weights,
    play_round,
)
from dresfl.protocol.hidden.plan import make_plan
from dresfl.protocol.hidden.published import centre
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


@settings(max_examples=12, deadline=None)
@example(sizes=[4, 1, 4], schedule="S2", shards=2, seed=25, activation=Square())  # diverges
@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    schedule=st.sampled_from(["S2", "S4"]),
    shards=st.integers(1, 2),
    seed=st.integers(0, 100),
    activation=st.sampled_from([Square(), Quadratic()]),
)
def test_any_small_network_gives_the_integers_of_python(sizes, schedule, shards, seed, activation):
    layers = [Dense(sizes[1])]
    for units in sizes[2:]:
        layers += [activation, Dense(units)]
    plan = plan_of(Network(tuple(layers), (sizes[0],), 3), schedule, shards, rounds=2, batch=2)
    assert outcome(plan, ResidueRing(plan), seed) == outcome(plan, IntegerRing(), seed)


def outcome(plan, ring, seed):
    """What a run gives, or what stopped it: a network of few weights can diverge, and then it does so in every ring."""
    try:
        return played(plan, ring, seed)
    except Diverged as stopped:
        return str(stopped)


def test_real_numbers_train_about_the_same():
    plan = plan_of(NETWORKS["one"], rounds=5)
    exact, about = (torch.tensor(played(plan, ring, 3)[0]) for ring in (IntegerRing(), RealRing()))
    assert (exact - about).abs().max() < 2**plan.network.weight_bits / 1000


def test_a_validation_opens_the_mean_loss():
    plan = plan_of(NETWORKS["one"], shards=2, rounds=2, validation_every=2, validation_share=0.2)
    weights, losses = played(plan, IntegerRing(), 1)
    assert losses[0] is None
    assert losses == played(plan, ResidueRing(plan), 1)[1]
    inputs, targets = rows_of(plan, -1, plan.validation_rows)
    out = (
        plan.network.outputs(Reals(), torch.tensor(weights), inputs.double().unsqueeze(0))[0]
        / 2.0**plan.network.out_scale
    )
    clear = (out - targets).square().sum(-1).mean()
    assert abs(plan.real_loss(losses[1]) - clear) < 0.02 * clear


def test_products_are_those_of_flint():
    """The weight hop's sums, from gradients that python-flint computes from the values that the hops before left."""
    plan = plan_of(NETWORKS["one"], "S4", rounds=1)
    (inputs, targets), seed, seen = rows_of(plan, 0, 4), 5, {}
    ring, dither = IntegerRing(), StreamDither(plan, seed)
    start = ring.arithmetic.embed(plan.initial_weights(PublicStream(seed)))[:, None]

    def watch(hop, item, product):
        low = 0 if item.shift is None else ring.arithmetic.embed(dither(0, hop, 0, item))
        seen[item.name] = product.ravel().tolist(), low

    rows = tuple(ring.arithmetic.embed(part) for part in (inputs, targets))
    play_round(plan, ring, 0, rows, (start, start), dither, watch=watch)

    def matrix(values, height):
        return flint.fmpz_mat(height, len(values) // height, [int(v) for v in values])

    flat, (first, last) = start.ravel().tolist(), plan.network.parameters
    hidden, bias = matrix(flat[first.weight], 5), flat[first.bias]
    x = matrix(inputs.flatten().tolist(), 4)
    product = x * hidden
    z = [int(product[r, c]) + bias[c] * 2**4 for r in range(4) for c in range(4)]
    assert seen["layers.0 output"][0] == z

    middle = centre(plan.num_masks, 12)
    cut = [(a + int(b) + middle) >> 12 for a, b in zip(z, seen["layers.0 output"][1].ravel().tolist(), strict=True)]
    squares = matrix([v * v for v in cut], 4)
    out, bias = squares * matrix(flat[last.weight], 4), flat[last.bias]
    labels = targets.flatten().tolist()
    errors = [int(out[r, c]) + (bias[c] << 20) - (labels[3 * r + c] << 38) for r in range(4) for c in range(3)]
    assert seen["layers.2 delta"][0] == errors
    assert seen["layers.2 back"][0] == [
        int(v) for v in (matrix(errors, 4) * matrix(flat[last.weight], 4).transpose()).entries()
    ]


def test_a_product_beyond_its_plan_raises_the_alarm_in_every_ring():
    plan = plan_of(NETWORKS["one"])
    small = dataclasses.replace(plan._later[0].items[0], bits=3)
    for ring in (IntegerRing(), RealRing(), ResidueRing(plan)):
        values = ring.arithmetic.embed(torch.tensor([[7] * small.count]))
        low = torch.zeros((1, small.count), dtype=torch.int64)
        ring.cut(small, values, low, 0)
        with pytest.raises(HeadroomAlarm, match=r"3\.0 bits, 3 are planned"):
            ring.cut(small, ring.arithmetic.add_integer(values, 1), low, 0)


def test_dither_has_the_mean_and_variance_of_the_masks_low_parts():
    for clients, masks in ((5, 5), (20, 20), (20, 190)):
        colluders = 2 if masks == 190 else 1
        parameters = CodeParameters(clients, 1, colluders, 64)
        plan = make_plan(
            mlp((64, 32, 10), input_bits=4, weight_bits=10), parameters, HiddenSettings(schedule="S2"), Optimizer(), 5
        )
        assert plan.num_masks == masks
        item = plan.hops(1)[0].items[0]
        low = StreamDither(plan, 3)(1, 0, 0, item).double() / 2.0**item.shift
        assert low.shape == (1, item.count)
        assert abs(low.mean() - masks / 2) < 6 * (masks / 12 / item.count) ** 0.5
        assert abs(low.var() / (masks / 12) - 1) < 0.2


@pytest.mark.parametrize("schedule", ["S2", "S4"])
@pytest.mark.parametrize("sizes", [(64, 10), (64, 32, 10), (64, 32, 32, 10)])
def test_guards_stop_a_run_that_diverges_before_a_product_outgrows_its_mask(sizes, schedule):
    """A small part of the sweep in results/hidden_guards.jsonl: rates up to the largest that the plan vouches for."""
    vouched = Trial(sizes, schedule, 0.01, "white", 0).plan().largest_rate
    for rate, rows in itertools.product((0.2, 0.99 * vouched), ("digits", "white")):
        outcome = play(Trial(sizes, schedule, rate, rows, 1, rounds=15))
        assert outcome.vouched
        assert outcome.ended in ("stopped", "finished")
        assert outcome.bits_left > 0
    assert play(Trial(sizes, schedule, 0.99 * vouched, "white", 0, rounds=15)).ended == "stopped"


def test_without_guards_such_a_run_outgrows_its_masks():
    trial = Trial((64, 32, 32, 10), "S4", 0.45, "white", 1)
    plan = dataclasses.replace(trial.plan())  # without what it has worked out already
    object.__setattr__(plan, "program", dataclasses.replace(plan.program, guards=()))
    with pytest.raises(HeadroomAlarm, match="would outgrow its mask"):
        played_on_white(plan)


def played_on_white(plan):
    """Rounds on white rows, until something stops them."""
    ring, dither = RealRing(), StreamDither(plan, 1)
    inputs = torch.full((1, 1, 64, 64), 16.0, dtype=torch.float64)
    targets = torch.nn.functional.one_hot(torch.arange(64) % 10, 10).double().view(1, 1, 64, 10)
    state = before = ring.arithmetic.embed(plan.initial_weights(PublicStream(1))).unsqueeze(1)
    for number in range(30):
        state, before = play_round(plan, ring, number, (inputs, targets), (state, before), dither).state, state


def test_an_opened_quotient_above_its_limit_is_divergence():
    guard = plan_of(NETWORKS["one"]).program.guards[0]
    guard.check([guard.limit])
    guard.check([2 * guard.limit], summed=2)
    with pytest.raises(Diverged, match=r"error reaches 2\.0 times its limit"):
        guard.check([0, 2 * guard.limit])


@pytest.mark.parametrize("schedule", ["S2", "S4"])
@pytest.mark.parametrize("sizes", [(4, 3), (4, 3, 3), (4, 3, 3, 3)])
def test_quotients_count_once_only_if_they_were_cut_once(sizes, schedule):
    """Each shard cuts with a dither of its own: their mean would be no integer, and a run would seem to diverge."""
    plan = plan_of(mlp(sizes, input_bits=3, weight_bits=8), schedule, shards=2)
    hops = plan.hops(1)
    found = [
        (hops[number - 1], item) for number, hop in enumerate(hops) for item in hop.items if "quotient" in item.name
    ]
    assert found
    for before, item in found:  # before the first hop comes the last one of the round before
        assert item.alike <= before.total
