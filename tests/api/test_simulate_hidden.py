"""A simulated federation of the hidden mode: it learns, says what it knows, and refuses what it cannot run."""

import dataclasses

import numpy as np
import pytest

import dresfl as dr
from dresfl.errors import UsageError

NETWORK = dr.mlp((6, 4, 3), input_bits=4, weight_bits=10)
OPTIMIZER = dr.Optimizer(method="momentum", learning_rate=0.05, schedule="constant")
TRUSTED = dr.HiddenSettings(trusted_dealers=True)
VALIDATED = dataclasses.replace(TRUSTED, validation_every=5, validation_share=0.2)


def clients(count=5, rows=12):
    """Rows of three classes that are easy to tell apart."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        labels = np.arange(rows) % 3
        inputs = rng.uniform(0, 0.2, (rows, 6))
        inputs[np.arange(rows), labels] += 0.7
        found.append((inputs, labels))
    return found


def simulate(rounds=20, hidden=VALIDATED, **more):
    rows = clients()
    settings = {"optimizer": OPTIMIZER, "batch_size": 8, "test": rows[0], "evaluate_every": 10, **more}
    return dr.simulate(NETWORK, rows, rounds=rounds, mode="hidden", hidden=hidden, **settings)


@pytest.fixture(scope="module")
def coded():
    return simulate()


def test_it_learns_and_opens_the_agreed_losses_alone(coded):
    assert coded.summary.test_accuracy >= 0.9
    losses = coded.summary.validation_losses
    assert list(losses) == ["5", "10", "15", "20"]
    assert losses["20"] < 0.5 * losses["5"]
    assert coded.summary.mode == "hidden"
    assert (coded.summary.skipped_rounds, coded.summary.alarms) == (0, 0)


def test_there_is_no_accuracy_and_no_gradient_on_the_way(coded):
    first, last = coded.history
    assert (first.round, first.test_accuracy, first.gradient_norm) == (10, None, None)
    assert first.validation_loss == coded.summary.validation_losses["10"]
    assert (last.round, last.test_accuracy) == (20, coded.summary.test_accuracy)


def test_the_model_predicts_with_the_scale_of_the_hidden_mode(coded):
    inputs, labels = clients()[0]
    assert (coded.model.predict(inputs) == labels).mean() == coded.summary.test_accuracy
    assert coded.model.network.weight_bits == 18
    assert coded.model.weights_sha256 == coded.summary.weights_sha256


def test_missing_clients_change_nothing_and_a_shortage_waits():
    rates = dr.bernoulli_dropouts(5, 0.2, seed=4)
    run = simulate(rounds=6, hidden=TRUSTED, dropouts=rates)
    assert 4 <= run.summary.mean_survivors < 5
    away = simulate(rounds=2, hidden=TRUSTED, dropouts=dr.bernoulli_dropouts(5, 1.0, seed=4))
    assert away.summary.mean_survivors == 5, "nobody was there, so the run waited until all were"
    assert away.summary.skipped_rounds == 0


def test_a_stopping_rule_ends_the_run():
    hidden = dataclasses.replace(VALIDATED, validation_every=1, patience=1)
    slow = dataclasses.replace(OPTIMIZER, learning_rate=1e-6)
    run = simulate(rounds=12, hidden=hidden, optimizer=slow)
    assert run.summary.stopped_after is not None
    assert run.summary.stopped_after < 12
    assert len(run.summary.validation_losses) == run.summary.stopped_after


def test_a_trial_opens_no_model():
    run = simulate(rounds=5, hidden=dataclasses.replace(VALIDATED, trials=1, trial=True))
    assert run.summary.weights_sha256 == ""
    assert list(run.summary.validation_losses) == ["5"]
    with pytest.raises(UsageError, match="trial"):
        _ = run.model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": dr.Optimizer(method="adam")}, "cannot use adam"),
        ({"optimizer": dr.Optimizer(max_norm=1.0)}, "cannot clip"),
        ({"blinded": True}, "of the open mode"),
        ({"record": "somewhere"}, "of the open mode"),
        ({"mode": "secret"}, "not known"),
        ({"mode": "open"}, "the mode is open"),
        ({"max_colluders": 0}, "needs masks"),
    ],
)
def test_what_the_mode_cannot_run_is_refused_by_name(change, message):
    with pytest.raises(UsageError, match=message):
        dr.simulate(NETWORK, clients(), **{"rounds": 2, "mode": "hidden", "hidden": TRUSTED, **change})


def test_shares_that_do_not_fit_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr("dresfl.api.simulate_hidden._MOST_SHARES", 1000)
    with pytest.raises(UsageError, match="of shares in memory") as found:
        simulate(rounds=1, hidden=TRUSTED)
    assert "engine direct" in found.value.hint
