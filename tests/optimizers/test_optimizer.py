"""The server's optimiser against torch's, its schedules, and its fixed order of operations."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import UsageError
from dresfl.optimizers import Optimizer, methods, squared_norm

SIZE, STEPS = 9, 12

TORCHS = {
    "sgd": (Optimizer("sgd", 0.1), lambda w: torch.optim.SGD([w], lr=0.1)),
    "sgd, decay": (Optimizer("sgd", 0.1, weight_decay=0.3), lambda w: torch.optim.SGD([w], lr=0.1, weight_decay=0.3)),
    "momentum": (Optimizer("momentum", 0.05, momentum=0.7), lambda w: torch.optim.SGD([w], lr=0.05, momentum=0.7)),
    "adam": (Optimizer("adam", 0.02), lambda w: torch.optim.Adam([w], lr=0.02)),
    "adam, own betas": (
        Optimizer("adam", 0.02, beta1=0.5, beta2=0.8, epsilon=1e-3),
        lambda w: torch.optim.Adam([w], lr=0.02, betas=(0.5, 0.8), eps=1e-3),
    ),
    "adam, decay": (
        Optimizer("adam", 0.02, weight_decay=0.4),
        lambda w: torch.optim.AdamW([w], lr=0.02, weight_decay=0.4),
    ),
}


def updated(ours, state, rate, gradient, weights):
    """One step: the update, and the state with its steps counted."""
    steps = state["steps"] + 1
    update, moments = ours.update(state, ours.factors(rate, int(steps)), gradient, weights)
    return update, {**moments, "steps": steps}


def l2_norm(values):
    return math.sqrt(float(squared_norm(values)))


@pytest.mark.parametrize("name", TORCHS)
def test_steps_are_torchs(name):
    ours, make = TORCHS[name]
    generator = torch.Generator().manual_seed(4)
    weights = torch.randn(SIZE, dtype=torch.float64, generator=generator)
    theirs = weights.clone().requires_grad_()
    torchs, state = make(theirs), ours.initial_state(SIZE)
    for step in range(STEPS):
        gradient = torch.randn(SIZE, dtype=torch.float64, generator=generator) * 10.0 ** (step % 3)
        update, state = updated(ours, state, ours.learning_rate, gradient, weights)
        weights = weights - update
        theirs.grad = gradient.clone()
        torchs.step()
        torch.testing.assert_close(weights, theirs.detach(), rtol=1e-12, atol=1e-12)
    assert int(state["steps"]) == STEPS


def test_momentum_decays_weights_beside_the_velocity():
    """Decoupled, as in AdamW: v ← μv + g, w ← w − lr·(v + λw)."""
    ours, weight, velocity = Optimizer("momentum", momentum=0.5, weight_decay=0.1), 2.0, 0.0
    weights, state = torch.tensor([2.0], dtype=torch.float64), ours.initial_state(1)
    for gradient in (1.0, -3.0, 0.5):
        update, state = updated(ours, state, 0.25, torch.tensor([gradient], dtype=torch.float64), weights)
        weights = weights - update
        velocity = 0.5 * velocity + gradient
        weight -= 0.25 * (velocity + 0.1 * weight)
        assert float(weights) == pytest.approx(weight, abs=1e-15)


@pytest.mark.parametrize("method", methods())
def test_a_method_gives_what_it_declares(method):
    ours = Optimizer(method)
    state = ours.initial_state(3)
    assert state.keys() - {"steps"} == set(methods()[method].moments)
    assert {len(ours.factors(0.5, steps)) for steps in (1, 2, 100)} == {ours.num_factors}


@pytest.mark.parametrize("method", methods())
def test_update_changes_nothing_it_was_given(method):
    ours = Optimizer(method, weight_decay=0.1, max_norm=0.5)
    gradient, weights = torch.ones(3, dtype=torch.float64), torch.full((3,), 2.0, dtype=torch.float64)
    state = ours.initial_state(3)
    first = updated(ours, state, 0.1, gradient, weights)
    second = updated(ours, state, 0.1, gradient, weights)
    assert torch.equal(first[0], second[0])
    assert all(not value.any() for value in state.values())
    assert gradient.tolist() == [1.0] * 3
    assert weights.tolist() == [2.0] * 3
    assert first[1].keys() == state.keys()


# -- schedules -------------------------------------------------------------------------------------------------


def test_step_schedule_is_the_papers():
    rate = Optimizer().rate
    assert [rate(n, 70_000) for n in (0, 1499)] == [0.1, 0.1]
    assert [rate(n, 70_000) for n in (1500, 2999)] == [0.1 * 0.65] * 2
    assert rate(69_999, 70_000) == pytest.approx(0.1 * 0.65**46)


def test_cosine_schedule_falls_from_the_rate_to_zero():
    ours = Optimizer(learning_rate=0.4, schedule="cosine")
    assert ours.rate(0, 100) == 0.4
    assert ours.rate(50, 100) == pytest.approx(0.2)
    assert ours.rate(25, 100) == pytest.approx(0.4 * (1 + math.sqrt(0.5)) / 2)
    assert ours.rate(100, 100) == pytest.approx(0, abs=1e-17)
    assert ours.rate(150, 100) == ours.rate(100, 100)
    rates = [ours.rate(n, 100) for n in range(101)]
    assert rates == sorted(rates, reverse=True)


def test_constant_schedule_is_constant():
    ours = Optimizer(learning_rate=0.3, schedule="constant")
    assert {ours.rate(n, 10) for n in range(12)} == {0.3}


# -- clipping --------------------------------------------------------------------------------------------------


def test_clipping_scales_long_gradients_to_the_norm_and_leaves_short_ones():
    ours = Optimizer("sgd", max_norm=5.0)
    weights = torch.zeros(2, dtype=torch.float64)
    for gradient, expected in (([30.0, 40.0], [3.0, 4.0]), ([3.0, 4.0], [3.0, 4.0]), ([0.3, 0.4], [0.3, 0.4])):
        update, _ = updated(ours, ours.initial_state(2), 1.0, torch.tensor(gradient, dtype=torch.float64), weights)
        torch.testing.assert_close(update, torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)


def test_moments_are_of_the_clipped_gradient():
    ours = Optimizer("momentum", max_norm=5.0)
    _, state = updated(
        ours,
        ours.initial_state(2),
        1.0,
        torch.tensor([30.0, 40.0], dtype=torch.float64),
        torch.zeros(2, dtype=torch.float64),
    )
    assert state["velocity"].tolist() == pytest.approx([3.0, 4.0])


@given(st.lists(st.floats(-1e100, 1e100), max_size=70))
def test_l2_norm_is_the_norm(values):
    norm = l2_norm(torch.tensor(values, dtype=torch.float64))
    assert norm == pytest.approx(math.sqrt(math.fsum(v * v for v in values)), rel=1e-13, abs=1e-160)


def tree_norm(values):
    """The same balanced tree with Python's floats."""
    values = [v * v for v in values]
    values += [0.0] * ((1 << max(0, len(values) - 1).bit_length()) - len(values))
    while len(values) > 1:
        half = len(values) // 2
        values = [a + b for a, b in zip(values[:half], values[half:], strict=True)]
    return math.sqrt(values[0])


@pytest.mark.parametrize("count", [1, 2, 3, 64, 1000, 70_001])
def test_l2_norm_adds_in_a_fixed_order(count):
    rng = random.Random(count)
    values = [rng.gauss(0, 1) * 10 ** rng.randint(-8, 8) for _ in range(count)]
    assert l2_norm(torch.tensor(values, dtype=torch.float64)) == tree_norm(values)


# -- refusals --------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "setting",
    [
        {"method": "adagrad"},
        {"schedule": "linear"},
        *({"learning_rate": v} for v in (0.0, -0.1, NAN, INF)),
        {"decay_every": 0},
        *({"decay_factor": v} for v in (0.0, 1.1, NAN)),
        *({name: v} for name in ("momentum", "beta1", "beta2") for v in (-0.1, 1.0, NAN)),
        *({"weight_decay": v} for v in (-0.1, NAN, INF)),
        *({"max_norm": v} for v in (-0.1, NAN)),
        *({"epsilon": v} for v in (0.0, -1e-8, NAN, INF)),
    ],
    ids=str,
)
def test_bad_settings_are_refused(setting):
    with pytest.raises(UsageError, match=next(iter(setting))):
        Optimizer(**setting)
