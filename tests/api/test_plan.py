"""Plans with liars: the answers that are needed, and what would work where they are too many."""

import numpy as np
import pytest

import dresfl as dr
from dresfl.errors import InfeasiblePlan
from dresfl.runtimes.local import Dropouts

NETWORK = dr.mlp((784, 64, 64, 10), input_bits=4, weight_bits=10)  # degree 8: R = 9


def test_each_liar_costs_two_answers():
    planned = dr.plan(NETWORK, num_clients=20, max_liars=3, rows=60_000)
    assert (planned.recovery_threshold, planned.answers_needed, planned.max_dropouts) == (9, 15, 5)
    assert planned.feasible
    none = dr.plan(NETWORK, num_clients=20, rows=60_000)
    assert (none.max_liars, none.answers_needed, none.max_dropouts) == (0, 9, 11)
    tight = dr.plan(NETWORK, num_clients=15, max_liars=3, rows=60_000)
    assert any("every client must answer" in warning for warning in tight.warnings)


def test_too_many_liars_are_infeasible_and_the_hints_are_not():
    planned = dr.plan(NETWORK, num_clients=14, max_liars=3, rows=60_000)
    with pytest.raises(InfeasiblePlan, match="T = 1 and A = 3 need 15 answers") as caught:
        planned.check()
    assert "feasible: 15 clients, or 2 liars" in caught.value.hint
    for clients, liars in ((15, 3), (14, 2)):
        dr.plan(NETWORK, num_clients=clients, max_liars=liars, rows=60_000).check()
    with pytest.raises(InfeasiblePlan) as caught:
        dr.plan(NETWORK, num_clients=8, rows=60_000).check()
    assert "liars" not in caught.value.hint


def test_a_simulation_waits_for_as_many_answers():
    network = dr.Network((dr.Dense(2),), input_shape=(3,), input_bits=4)  # R = 3
    generator = np.random.default_rng(1)
    clients = [(generator.random((4, 3)), generator.integers(0, 2, 4)) for _ in range(6)]
    settings = {"rounds": 12, "batch_size": 4, "dropouts": Dropouts((0.0, 0.0, 0.0, 0.0, 0.5, 0.5), seed=1)}
    some, none = dr.simulate(network, clients, max_liars=1, **settings), dr.simulate(network, clients, **settings)
    assert (some.summary.answers_needed, none.summary.answers_needed) == (5, 3)
    assert none.summary.skipped_rounds == 0 < some.summary.skipped_rounds < 12
    assert some.summary.liars == {}
    settings["dropouts"] = None
    runs = [
        dr.simulate(network, clients, max_liars=a, engine=e, **settings) for a in (0, 1) for e in ("coded", "direct")
    ]
    assert len({run.summary.weights_sha256 for run in runs}) == 1
    with pytest.raises(InfeasiblePlan, match="need 7 answers"):
        dr.simulate(network, clients, max_liars=2, **settings)
