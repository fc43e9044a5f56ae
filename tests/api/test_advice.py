"""The advisor: settings that reach a goal, and only those."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.api import advice, round_times
from dresfl.api.advice import Goal, advise, depths, frontier
from dresfl.api.round_times import HiddenSpeed
from dresfl.coding import recovery_threshold
from dresfl.errors import InfeasiblePlan, UsageError
from dresfl.model import mlp

SMALL = depths((16, 8, 8, 4), input_bits=4, weight_bits=8)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times by formula: what is chosen is tested here, not how fast the machine is."""

    def open_round(network, code, seeds):
        return 1e-6 * network.num_parameters * code.batch_size, 1e-6 * network.num_parameters

    monkeypatch.setattr(advice, "open_round", open_round)
    monkeypatch.setattr(advice, "hidden_speed", lambda network, batch: HiddenSpeed(1e-7, 1e-8, 1e-8))


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("goal", [Goal(8, 2), Goal(3, 1), Goal(0, 3), Goal(5, 1, 1)])
def test_every_choice_reaches_the_goal(goal: Goal) -> None:
    found = advise(SMALL, num_clients=20, goal=goal, batch_size=16, rows=2000)
    assert {choice.mode for choice in found} == {"open", "hidden"}
    for choice in found:
        assert choice.max_dropouts >= goal.dropouts
        assert choice.max_colluders >= goal.colluders
        assert choice.max_dropouts == 20 - choice.answers_needed
        degree = {"": 2 ** (choice.hidden_layers + 1), "S4": 4, "S2": 2}[choice.schedule]
        assert choice.recovery_threshold == recovery_threshold(degree, choice.num_shards, choice.max_colluders)
        assert choice.answers_needed >= choice.recovery_threshold + 2 * goal.liars
        assert choice.seconds >= choice.client_seconds + choice.coordinator_seconds + 0.02 * choice.trips


@pytest.mark.usefixtures("unmeasured")
def test_no_setting_is_forgotten() -> None:
    """One shard with the goal's own T is listed for every depth that allows it, and for no other."""
    found = advise(SMALL, num_clients=20, goal=Goal(8, 2), batch_size=16, rows=2000)
    listed = {c.hidden_layers for c in found if (c.mode, c.num_shards, c.max_colluders) == ("open", 1, 2)}
    assert listed == {depth for depth in range(3) if recovery_threshold(2 ** (depth + 1), 1, 2) <= 20 - 8}
    assert {c.hidden_layers for c in found if c.mode == "hidden"} == {0, 1, 2}


@pytest.mark.usefixtures("unmeasured")
def test_the_best_comes_first() -> None:
    found = advise(SMALL, num_clients=20, goal=Goal(3, 1), batch_size=16, rows=2000)
    order = [(-c.hidden_layers, c.seconds / c.rows_per_round) for c in found]
    assert order == sorted(order)
    assert found[0].hidden_layers == 2


@pytest.mark.usefixtures("unmeasured")
def test_a_goal_out_of_reach_names_what_is_in_reach() -> None:
    with pytest.raises(InfeasiblePlan, match="no setting of 5 clients bears 4 missing") as refused:
        advise(SMALL, num_clients=5, goal=Goal(4, 2), batch_size=16, rows=2000)
    assert refused.value.hint == "at most 0 may be missing; with 9 clients or a little more there are settings"
    with pytest.raises(UsageError, match="cannot be missing"):
        advise(SMALL, num_clients=5, goal=Goal(5, 1), batch_size=16, rows=2000)


@pytest.mark.parametrize("text", ["", "dropouts", "dropouts=-1", "colluders=2", "dropouts=1,dropouts=2", "speed=3"])
def test_a_goal_that_is_none(text: str) -> None:
    with pytest.raises(UsageError):
        Goal.parse(text)


@given(st.integers(2, 60), st.sampled_from([2, 4, 8]), st.integers(1, 4), st.integers(0, 3))
def test_the_frontier_is_the_formula(clients: int, degree: int, shards: int, liars: int) -> None:
    points = dict(frontier(clients, degree, shards, liars))
    for colluders in range(1, clients):
        dropouts = clients - 2 * liars - degree * (shards + colluders - 1) - 1
        assert points.get(colluders) == (dropouts if dropouts >= 0 else None)


def test_times_are_measured() -> None:
    """The real measurement, in small: positive, and more seeds cost a client more."""
    network = mlp((16, 8, 4), input_bits=4, weight_bits=8)
    found = advise([network], num_clients=8, goal=Goal(2, 1), batch_size=8, rows=80)
    assert all(choice.client_seconds > 0 and choice.coordinator_seconds > 0 for choice in found)
    speed = round_times.HiddenSpeed(client=1.0, client_seed=2.0, coordinator=3.0)
    assert speed.seconds(10, seeds=4, answers=5) == (90.0, 150.0)
