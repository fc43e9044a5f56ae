"""Plans of hidden runs: bits, primes, hops, steps, what is refused and with which hint."""

import dataclasses
import math

import pytest
import torch

from dresfl.coding import CodeParameters
from dresfl.errors import InfeasiblePlan, UsageError
from dresfl.field import PublicStream
from dresfl.model import Conv2d, Dense, Flatten, Network, Square, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.plan import MARGIN, make_plan, round_seconds
from dresfl.protocol.hidden.settings import HiddenSettings

MNIST = mlp((784, 64, 64, 10), input_bits=4, weight_bits=10)
MOMENTUM = Optimizer("momentum", 0.02, "cosine")


def plan_of(network=MNIST, clients=20, shards=1, colluders=1, optimizer=MOMENTUM, rounds=20_000, liars=0, **settings):
    parameters = CodeParameters(clients, shards, colluders, 64, liars)
    settings.setdefault("schedule", "S4")
    more = {"num_masks": settings.pop("num_masks")} if "num_masks" in settings else {}
    more |= {"round_trip": settings.pop("round_trip")} if "round_trip" in settings else {}
    return make_plan(network, parameters, HiddenSettings(**settings), optimizer, rounds, **more)


@pytest.mark.parametrize(("schedule", "needed"), [("S4", {0: 1, 1: 3, 2: 5, 4: 9}), ("S2", {0: 2, 1: 6, 2: 10, 4: 18})])
def test_a_round_has_the_trips_of_its_schedule(schedule, needed):
    for depth, trips in needed.items():
        network = mlp((20, *(8,) * depth, 3), input_bits=4, weight_bits=10)
        assert plan_of(network, schedule=schedule, rounds=100).trips == trips


def test_the_papers_network_costs_what_the_design_says():
    plan = plan_of()
    assert (plan.recovery_threshold, plan.answers_needed, plan.trips) == (5, 6, 5)
    assert plan.upload_bytes == plan.download_bytes < 1.6e6
    assert plan.security_bits > 40
    counts = [[item.count for item in hop.items if item.count > 1] for hop in plan.hops(1)]
    assert counts == [[4096], [4096], [640, 4096], [4096], [50240, 4160, 650]]
    assert plan.state_size == 55_051  # the error's guard travels behind the weights


@pytest.mark.parametrize("schedule", ["S2", "S4"])
@pytest.mark.parametrize("colluders", [1, 2])
def test_every_item_has_room_under_its_mask(schedule, colluders):
    plan = plan_of(clients=24, colluders=colluders, schedule=schedule)
    room = sum(map(math.log2, plan.moduli))
    assert all(p < 2**24 for p in plan.moduli)
    for number in (0, 1, plan.rounds):
        for hop in plan.hops(number):
            assert len({item.total for item in hop.items}) == 1
            for item in hop.items:
                if item.shift is None:
                    assert item.bits + 1 < room
                else:
                    assert item.bits + plan.kappa + math.log2(plan.num_masks) + 2 <= room
                    assert plan.mask_bits(item) == item.bits + plan.kappa - item.shift > plan.kappa


def test_every_item_has_its_margin():
    plan = plan_of()
    for hop, products in zip(plan.hops(1), plan.program.training_products(plan.steps(0), first=False), strict=True):
        for item, product in zip(hop.items, products, strict=True):
            assert item.bits >= product.magnitude + MARGIN


def test_one_prime_less_would_not_do():
    plan = plan_of()
    fewer = dataclasses.replace(plan, moduli=plan.moduli[1:])
    needed = max(p.magnitude for hop in plan.program.training_products(plan.steps(0), first=False) for p in hop)
    assert fewer.most_bits < needed + MARGIN <= plan.most_bits


def test_the_last_hop_opens_the_weights_and_a_trial_opens_none():
    (hop,) = plan_of().hops(20_000)
    (item,) = hop.items
    assert (item.count, item.shift, hop.total) == (55_050, None, False)
    rows = {"client_rows": (100,) * 20}
    trial = HiddenSettings("S4", trial=True, trials=1, validation_every=10, validation_share=0.1)
    assert make_plan(MNIST, CodeParameters(20), trial, MOMENTUM, 100, **rows).hops(100) == ()


def test_validations_come_at_their_rounds_and_after_the_last():
    settings = HiddenSettings("S4", validation_every=4, validation_share=0.1)
    plan = make_plan(MNIST, CodeParameters(20), settings, MOMENTUM, 10, client_rows=(100,) * 20)
    assert [n for n in range(10) if any(hop.opens_loss for hop in plan.hops(n))] == [3, 7, 9]
    assert plan.validation_rows == 200
    assert sum(hop.moves_weights for hop in plan.hops(3)) == 1


def test_the_stopping_rule_counts_validations_without_a_new_best():
    settings = HiddenSettings("S4", validation_every=1, validation_share=0.1, patience=2)
    plan = make_plan(MNIST, CodeParameters(20), settings, MOMENTUM, 100, client_rows=(100,) * 20)
    assert not plan.stops([])
    assert not plan.stops([5, 4, 6])
    assert plan.stops([5, 4, 6, 4])
    assert not plan.stops([5, 4, 6, 3])


def test_steps_are_those_of_the_open_optimiser():
    """The integers of a step, as reals, move weights as `Optimizer.update` does."""
    optimizer = Optimizer("momentum", 0.02, "cosine", momentum=115 / 128, weight_decay=0.01)
    plan = plan_of(optimizer=optimizer, rounds=50)
    scale = 2.0 ** plan.program.gradient_scales[1]
    lw, rows = plan.settings.weight_bits, 64
    weights = before = torch.tensor([0.3, -0.2], dtype=torch.float64)
    state, own = optimizer.initial_state(2), weights
    for number in range(50):
        gradient = own + number / 50
        factors = optimizer.factors(optimizer.rate(number, 50), number + 1)
        update, moments = optimizer.update(state, factors, gradient, own)
        own, state = own - update, {**moments, "steps": state["steps"]}
        step = plan.steps(number)[1]
        errors = (weights + number / 50) / 2 * rows * scale  # ∇ = 2·g/rows
        moved = step.keep * weights * 2.0**lw + step.recall * before * 2.0**lw - step.multiplier * errors
        weights, before = moved / 2.0 ** (lw + step.shift), weights
    assert torch.allclose(weights, own, rtol=0.01)


def test_the_rate_becomes_an_integer_and_the_shift_stays():
    plan = plan_of()
    assert len({tuple(step.shift for step in plan.steps(number)) for number in (0, 1, 10_000, 19_999)}) == 1
    assert [step.multiplier for step in plan.steps(0)] == [655, 655, 655]
    assert [step.multiplier for step in plan.steps(10_000)] == [328, 328, 328]
    first = plan.steps(0)[0]
    assert (first.keep, first.recall) == (2**first.shift, 0)
    later = plan.steps(5)[0]
    assert later.keep + later.recall == 2**later.shift


def test_many_masks_get_finer_scales():
    plan = plan_of(colluders=4, schedule="S2")
    assert plan.num_masks == math.comb(20, 4)
    assert (plan.settings.weight_bits, plan.settings.value_bits, plan.settings.error_bits) == (22, 14, 18)
    assert plan.answers_needed == 13


def test_a_ramp_needs_the_size_of_its_family():
    plan = plan_of(colluders=4, mask_degree=8, num_masks=126, schedule="S2", honest_clients=True)
    assert (plan.recovery_threshold, plan.answers_needed, plan.num_masks) == (17, 17, 126)
    with pytest.raises(InfeasiblePlan, match="need 21 answers with S2"):
        plan_of(colluders=4, mask_degree=8, num_masks=126, schedule="S2")
    with pytest.raises(UsageError, match="below 4 colluders"):
        plan_of(colluders=4, mask_degree=3)


def test_the_schedule_follows_from_clients_and_round_trips():
    assert plan_of(schedule="").settings.schedule == "S4"
    assert plan_of(schedule="", clients=6).settings.schedule == "S2"  # S4 would need everybody
    assert plan_of(schedule="", clients=4).answers_needed == 4
    slow, fast = (plan_of(schedule=schedule) for schedule in ("S2", "S4"))
    assert round_seconds(slow, 0.05) > round_seconds(fast, 0.05) + 0.2
    near = mlp((784, 64, 10), input_bits=4, weight_bits=10)
    assert plan_of(near, schedule="", round_trip=0.0).settings.schedule == "S2"
    assert plan_of(near, schedule="", round_trip=0.05).settings.schedule == "S4"


def test_too_few_clients_are_refused_with_what_would_do():
    with pytest.raises(InfeasiblePlan) as refused:
        plan_of(clients=5)
    assert "need 6 answers with S4" in str(refused.value)
    assert "schedule S2" in refused.value.hint
    with pytest.raises(InfeasiblePlan):
        plan_of(clients=3, schedule="")
    assert plan_of(clients=3, schedule="", honest_clients=True).answers_needed == 3


def test_too_small_a_kappa_is_refused_with_what_would_do():
    with pytest.raises(UsageError) as refused:
        plan_of(kappa=60)
    assert "29.6 bits of security are left" in str(refused.value)
    assert refused.value.hint.startswith("use kappa = 71, or at most ")
    rounds = int(refused.value.hint.split()[-2])
    assert plan_of(kappa=71).security_bits >= 40
    assert plan_of(kappa=60, rounds=rounds).security_bits >= 40


@pytest.mark.parametrize(
    ("optimizer", "wanted"), [(Optimizer("adam", 0.001), "momentum"), (Optimizer(max_norm=1.0), "max_norm = 0")]
)
def test_optimisers_that_need_the_gradient_are_refused_by_name(optimizer, wanted):
    with pytest.raises(UsageError) as refused:
        plan_of(optimizer=optimizer)
    assert wanted in refused.value.hint


def test_a_rate_that_the_plan_cannot_vouch_for_is_refused():
    with pytest.raises(UsageError) as refused:
        plan_of(optimizer=Optimizer("momentum", 0.11))
    assert refused.value.hint == "use a learning rate of at most 0.102, or schedule S2"
    assert plan_of(optimizer=Optimizer("momentum", 0.11), schedule="S2").largest_rate > 0.12
    with pytest.raises(UsageError) as refused:
        plan_of(optimizer=Optimizer("momentum", 0.5))
    assert refused.value.hint == "use a learning rate of at most 0.102"


def test_a_large_rate_costs_a_prime_where_the_guards_look_late():
    assert len(plan_of(optimizer=Optimizer("momentum", 0.03)).moduli) == len(plan_of().moduli) + 1


def test_layers_keep_their_bits_out_of_the_hidden_mode():
    network = Network((Conv2d(4, 3, weight_bits=5), Square(), Flatten(), Dense(3, weight_bits=9)), (6, 6, 1), 4, 8)
    plan = plan_of(network, rounds=10)
    assert set(plan.network.weight_scales.tolist()) == {2.0**18}
    assert plan.initial_weights(PublicStream(1)).shape == (plan.network.num_parameters,)


def test_settings_refuse_what_makes_no_sense():
    for wrong in (
        {"schedule": "S3"},
        {"kappa": 20},
        {"validation_every": 5},
        {"patience": 3},
        {"trial": True},
        {"runs": 0},
        {"mask_degree": -1},
        {"weight_bits": 30},
    ):
        with pytest.raises(UsageError):
            HiddenSettings(**wrong)
