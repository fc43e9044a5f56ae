"""Plans of local steps: rates as integers over powers of two, what is refused by name, and what sessions say."""

import math
from dataclasses import replace

import pytest

from dresfl.coding import CodeParameters
from dresfl.errors import InfeasiblePlan, UsageError
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, Training, make_local_plan
from dresfl.protocol.hidden.plan import make_plan
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.protocol.local_plan import MOST_BITS, RATE_BITS

LINEAR, ONE_SQUARE = (mlp(sizes, input_bits=4, weight_bits=10) for sizes in ((6, 3), (6, 4, 3)))
SGD = Optimizer("sgd", 0.1, "constant")


def session_of(network=LINEAR, optimizer=SGD, rounds=20, **sizes):
    code = CodeParameters(**{"num_clients": 12, "batch_size": 4, "local_steps": 2, **sizes})
    local = make_local_plan(network, code, optimizer, rounds)
    return Session(network, code, (5,) * code.num_clients, seed=3, local=local)


def test_one_step_has_no_plan():
    assert make_local_plan(LINEAR, CodeParameters(5), Optimizer("adam"), 10) is None


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine"])
@pytest.mark.parametrize("rate", [1e-4, 0.1, 0.125, 3.0])
def test_the_first_rate_has_twelve_bits_and_later_ones_no_larger_error(schedule, rate):
    optimizer = Optimizer("sgd", rate, schedule, decay_every=3)
    plan = make_local_plan(LINEAR, CodeParameters(12, 2, 1, 3, 0, 2), optimizer, 20)
    assert plan.rate(0) == pytest.approx(rate, rel=2.0**-RATE_BITS)
    for number in range(20):
        assert abs(plan.rate(number) - optimizer.rate(number, 20)) <= rate * 2.0**-RATE_BITS
        assert 0 <= plan.multiplier(number) <= plan.steps.largest_multiplier <= 2**RATE_BITS


def test_a_rate_that_is_a_power_of_two_costs_no_bits():
    powers, others = (
        make_local_plan(LINEAR, CodeParameters(12, batch_size=64, local_steps=4), Optimizer("sgd", r, "constant"), 9)
        for r in (2**-4, 0.0627)
    )
    assert (powers.multiplier(0), powers.steps.rate_shift, powers.rate(0)) == (1, 10, 2**-4)
    assert others.steps.needed_bits > powers.steps.needed_bits + 4 * (RATE_BITS - 2)


def test_the_last_moving_round_is_the_last_whose_rate_is_not_zero():
    falling = Optimizer("sgd", 0.1, "step", decay_factor=0.5, decay_every=1)
    plan = make_local_plan(LINEAR, CodeParameters(12, local_steps=2), falling, 40)
    rates = [plan.rate(number) for number in range(40)]
    assert plan.last_moving_round == max(number for number in range(40) if rates[number]) < 39
    still = make_local_plan(LINEAR, CodeParameters(12, local_steps=2), SGD, 40)
    assert still.last_moving_round == 39


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (Optimizer("adam", 0.01, "constant"), "adam"),
        (Optimizer("momentum", 0.01, "constant"), "momentum"),
        (replace(SGD, max_norm=1.0), "clip"),
        (replace(SGD, weight_decay=0.1), "weight decay"),
    ],
)
def test_what_is_not_plain_gradient_descent_is_refused_by_name(optimizer, named):
    with pytest.raises(UsageError, match=named) as caught:
        session_of(optimizer=optimizer)
    assert "local_steps = 1" in caught.value.hint


def test_the_hidden_mode_is_refused_by_name():
    code = CodeParameters(12, local_steps=2)
    with pytest.raises(UsageError, match="hidden mode takes one step a round, not 2") as caught:
        make_plan(LINEAR, code, HiddenSettings(), SGD, 10)
    assert "local_steps = 1" in caught.value.hint
    plan = make_plan(LINEAR, CodeParameters(12), HiddenSettings(trusted_dealers=True), SGD, 10)
    with pytest.raises(UsageError, match="hidden mode takes one step"):
        Session(plan.network, code, (5,) * 12, seed=3, hidden=plan)


@pytest.mark.parametrize(
    ("network", "sizes", "degree", "needed", "hint"),
    [
        (LINEAR, {"num_clients": 8, "local_steps": 4}, 8, 9, "at least 9 clients, or 3 local steps"),
        (LINEAR, {"num_clients": 9, "local_steps": 4, "max_liars": 1}, 8, 11, "at least 11 clients, or 3 local steps"),
        (LINEAR, {"num_clients": 16, "num_shards": 2, "local_steps": 4}, 8, 17, "at least 17 clients, or 3 local"),
        (ONE_SQUARE, {"num_clients": 24}, 24, 25, "at least 25 clients, or 1 local step"),
        (ONE_SQUARE, {"num_clients": 4}, 24, 25, "at least 25 clients, or fewer shards"),
    ],
)
def test_a_degree_too_high_for_the_clients_is_refused_and_the_hint_works(network, sizes, degree, needed, hint):
    with pytest.raises(InfeasiblePlan, match=f"local steps: degree {degree}, .* need {needed} answers") as caught:
        session_of(network, **sizes)
    assert hint in caught.value.hint
    session = session_of(network, **{**sizes, "num_clients": needed})
    assert (session.degree, session.answers_needed) == (degree, needed)


def test_integers_that_outgrow_every_field_are_refused():
    with pytest.raises(UsageError, match=f"a field holds {MOST_BITS} at most") as caught:
        session_of(ONE_SQUARE, num_clients=200, local_steps=3)
    assert "use 2 local steps" in caught.value.hint
    session = session_of(ONE_SQUARE, num_clients=25)
    assert session.field.modulus.bit_length() <= 900


def test_the_widest_plan_has_a_field():
    steps = 2
    while True:
        try:
            session = session_of(num_clients=2 * steps + 1, local_steps=steps)
        except UsageError:
            break
        steps += 1
    assert session.needed_bits > MOST_BITS - 30
    assert math.log2(session.field.value_bound) >= session.needed_bits


def test_a_plan_of_other_sizes_is_refused():
    code = CodeParameters(12, batch_size=4, local_steps=2)
    local = make_local_plan(LINEAR, code, SGD, 20)
    for other, given in [
        (replace(code, local_steps=3), local),
        (replace(code, batch_size=5), local),
        (replace(code, local_steps=1), local),
        (code, None),
    ]:
        with pytest.raises(UsageError, match="plan"):
            Session(LINEAR, other, (5,) * 12, seed=3, local=given)


def test_a_training_has_the_optimiser_and_rounds_of_the_plan():
    session = session_of()
    Training(session, SGD, 20)
    for optimizer, rounds in ((replace(SGD, learning_rate=0.2), 20), (SGD, 21)):
        with pytest.raises(UsageError, match="planned for another"):
            Training(session, optimizer, rounds)


def test_the_digest_covers_the_local_steps():
    """s, the rate, the schedule and the rounds: whoever has others refuses tasks and answers."""
    other_rate, other_schedule = replace(SGD, learning_rate=0.2), replace(SGD, schedule="cosine")
    sessions = [
        session_of(),
        session_of(local_steps=1),
        session_of(local_steps=3),
        session_of(optimizer=other_rate),
        session_of(optimizer=other_schedule),
        session_of(rounds=21),
    ]
    assert len({session.session_id for session in sessions}) == len(sessions)
    assert session_of().session_id == sessions[0].session_id


def test_the_digest_of_one_step_is_that_of_earlier_versions():
    assert session_of(local_steps=1).session_id.hex() == "2764a5473beede68408118aa562efb5d"


def test_rounds_draw_consecutive_batches_and_none_twice():
    session, single = session_of(local_steps=3), session_of(local_steps=1)
    for number in range(4):
        batch = session.batch_rows(number)
        parts = [single.batch_rows(3 * number + j) for j in range(3)]
        assert batch.dealers.tolist() == [d for part in parts for d in part.dealers.tolist()]
        assert batch.rows.tolist() == [r for part in parts for r in part.rows.tolist()]
