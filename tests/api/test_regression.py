"""Regression, one value for two classes, class weights, helpers, a run's folder: by `dr.simulate` and `train`."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

import dresfl as dr
from dresfl.errors import DataError, UsageError
from dresfl.experiments.config import load_config
from dresfl.experiments.training import train
from dresfl.protocol.hidden.settings import HiddenSettings

RNG = np.random.default_rng(3)
INPUTS = RNG.uniform(-1, 1, (120, 4)).round(2)
TARGETS = INPUTS @ np.array([0.5, -0.25, 0.125, 0.0]) + RNG.normal(0, 0.02, 120)
LABELS = (INPUTS[:, 0] > INPUTS[:, 1]).astype(int)
LINEAR = dr.Network((dr.Dense(1),), (4,), input_bits=8, target_bits=10)
SIGN = dr.Network((dr.Dense(1),), (4,), input_bits=8)
ADAM = dr.Optimizer(method="adam", learning_rate=0.02, schedule="cosine")


def clients(wanted, count=5):
    return [(INPUTS[i::count], wanted[i::count]) for i in range(count)]


def run(network, wanted, rounds=200, **more):
    chosen = {"rounds": rounds, "batch_size": 30, "optimizer": ADAM, "test": (INPUTS, wanted), "threads": 1}
    return dr.simulate(network, clients(wanted), **{**chosen, **more})


@pytest.mark.parametrize("local_steps", [1, 2])
def test_a_coded_regression_has_the_weights_of_the_clear_one(local_steps):
    sgd = dr.Optimizer(learning_rate=0.1, schedule="constant")
    runs = [
        run(LINEAR, TARGETS, 20, engine=engine, local_steps=local_steps, optimizer=sgd, dropouts=dropouts)
        for engine, dropouts in (
            ("coded", dr.bernoulli_dropouts(5, 0.1, 0)),
            ("direct", dr.bernoulli_dropouts(5, 0.1, 0)),
        )
    ]
    assert runs[0].summary.weights_sha256 == runs[1].summary.weights_sha256
    assert runs[0].summary.skipped_rounds < 20


def test_a_regression_finds_what_least_squares_finds():
    found = run(LINEAR, TARGETS, 300, batch_size=120, engine="direct")
    least = LinearRegression().fit(INPUTS, TARGETS).score(INPUTS, TARGETS)
    assert found.summary.test_r2 == pytest.approx(least, abs=0.003)
    assert (found.summary.test_accuracy, found.summary.task) == (None, "regression")
    assert found.history[-1].test_r2 == found.summary.test_r2
    predicted = found.model.predict(INPUTS)
    assert predicted.shape == (120,)
    assert r2_score(TARGETS.astype(np.float32), predicted) == pytest.approx(found.summary.test_r2, abs=1e-12)


def test_several_targets_and_targets_that_are_all_alike():
    network = dr.Network((dr.Dense(2),), (4,), input_bits=8, target_bits=10)
    wanted = np.stack([TARGETS, np.full(120, 0.5)], 1)
    found = run(network, wanted, 50, engine="direct")
    assert found.model.predict(INPUTS).shape == (120, 2)
    assert found.summary.test_r2 == pytest.approx(
        (r2_score(wanted[:, 0], found.model.predict(INPUTS)[:, 0])) / 2, abs=1e-6
    )


def test_the_hidden_mode_estimates_too():
    hidden = HiddenSettings(schedule="S2", honest_clients=True)
    momentum = dr.Optimizer(method="momentum", learning_rate=0.1, schedule="constant")
    direct = run(LINEAR, TARGETS, 60, mode="hidden", hidden=hidden, optimizer=momentum, engine="direct")
    assert direct.summary.test_r2 > 0.9
    coded = run(LINEAR, TARGETS, 60, mode="hidden", hidden=hidden, optimizer=momentum)
    assert coded.summary.test_r2 == pytest.approx(direct.summary.test_r2, abs=0.02)


@pytest.mark.parametrize("mode", ["open", "hidden"])
def test_the_sign_of_one_value_tells_two_classes_apart(mode):
    momentum = dr.Optimizer(method="momentum", learning_rate=0.1, schedule="constant")
    found = run(SIGN, LABELS, 60, mode=mode, engine="direct", optimizer=momentum, classes=("below", "above"))
    assert found.summary.test_accuracy > 0.9
    assert set(found.model.predict(INPUTS)) == {0, 1}
    assert (found.model.predict(INPUTS) == LABELS).mean() == found.summary.test_accuracy
    assert found.model.classes == ("below", "above")


def test_a_model_of_a_regression_is_kept_and_read(tmp_path):
    found = run(LINEAR, TARGETS, 5, engine="direct").model
    found.save(tmp_path / "model.safetensors")
    again = dr.load_model(tmp_path / "model.safetensors")
    assert again.network == found.network
    assert (again.predict(INPUTS) == found.predict(INPUTS)).all()
    assert b"dresfl model 4" in (tmp_path / "model.safetensors").read_bytes()
    classes = run(SIGN, LABELS, 5, engine="direct").model
    classes.save(tmp_path / "classes.safetensors")
    assert b"dresfl model 3" in (tmp_path / "classes.safetensors").read_bytes()


def test_class_weights_are_repeated_rows():
    weighted = run(SIGN, LABELS, 5, class_weights=(1, 3), engine="direct")
    chosen = [np.repeat(np.arange(len(y)), np.where(y > 0, 3, 1)) for _, y in clients(LABELS)]
    repeated = [(x[rows], y[rows]) for (x, y), rows in zip(clients(LABELS), chosen, strict=True)]
    by_hand = dr.simulate(SIGN, repeated, rounds=5, batch_size=30, optimizer=ADAM, engine="direct")
    assert weighted.summary.weights_sha256 == by_hand.summary.weights_sha256
    assert weighted.summary.train_rows == sum(map(len, chosen))
    for bad, network, wanted in (((1,), SIGN, LABELS), ((1, 0), SIGN, LABELS), ((1, 2), LINEAR, TARGETS)):
        with pytest.raises(UsageError, match="class_weights"):
            run(network, wanted, 5, class_weights=bad)


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("mode", ["open", "hidden"])
def test_helpers_change_no_weight_and_may_carry_a_round(mode, num_shards):
    """The rows lie at the same places; helpers raise N, so that more of the others may be missing."""
    more = {"engine": "direct", "mode": mode, "num_shards": num_shards}
    if mode == "hidden":
        more |= {"optimizer": dr.Optimizer(method="momentum", learning_rate=0.1), "batch_size": 8}
    chosen = {"rounds": 4, "batch_size": 8, "optimizer": ADAM, **more}
    with_helpers = dr.simulate(LINEAR, [*clients(TARGETS, 7), None, None], **chosen)
    if mode == "open":
        alone = dr.simulate(LINEAR, clients(TARGETS, 7), **chosen)
        coded = dr.simulate(LINEAR, [*clients(TARGETS, 7), None, None], **{**chosen, "engine": "coded"})
        assert with_helpers.summary.weights_sha256 == alone.summary.weights_sha256 == coded.summary.weights_sha256
    else:
        coded = dr.simulate(LINEAR, [*clients(TARGETS, 7), None, None], **{**chosen, "engine": "coded"})
        assert np.abs(coded.model.weights - with_helpers.model.weights).max() <= 16  # of 2^18: the masks' dither
    assert with_helpers.summary.train_rows == 120


def test_somebody_must_have_rows():
    with pytest.raises(UsageError, match="no client has rows"):
        dr.simulate(LINEAR, [None] * 5, rounds=1)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (TARGETS * 9, "the network is made for 1"),
        (np.where(np.arange(120) == 7, np.nan, TARGETS), "target of row 7"),
        (np.stack([TARGETS] * 2, 1), r"shape \(120, 2\)"),
        (TARGETS.astype(str), "numbers of shape"),
    ],
)
def test_targets_that_do_not_fit_are_refused(wanted, words):
    with pytest.raises(DataError, match=words):
        dr.simulate(LINEAR, [(INPUTS, wanted)] * 3, rounds=1)


@pytest.mark.parametrize("mode", ["open", "hidden"])
def test_every_round_has_a_line(tmp_path, mode):
    more = {"mode": mode, "dropouts": dr.bernoulli_dropouts(5, 0.2, 1), "evaluate_every": 4}
    hidden = HiddenSettings(schedule="S2", honest_clients=True, validation_every=3, validation_share=0.2)
    if mode == "hidden":
        more |= {"hidden": hidden, "optimizer": dr.Optimizer(method="momentum", learning_rate=0.1)}
    found = run(LINEAR, TARGETS, 10, out=tmp_path / "run", **more)
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(10))
    assert sum(line["bytes"]["answers"] for line in lines) == found.summary.bytes_uploaded
    assert sum(line["bytes"]["sharing"] for line in lines) == lines[0]["bytes"]["sharing"] == found.summary.bytes_shared
    assert sum(line["answers"] for line in lines) / 10 == found.summary.mean_survivors
    assert sum(line["outcome"] == "skipped" for line in lines) == found.summary.skipped_rounds
    assert all(0 < line["seconds"] < found.summary.seconds + 1 for line in lines)
    losses = {line["round"] + 1: line["loss"] for line in lines if line["loss"] is not None}
    assert losses == {int(done): loss for done, loss in found.summary.validation_losses.items()}
    assert bool(losses) == (mode == "hidden")
    assert (tmp_path / "run" / "summary.json").exists()
    with pytest.raises(UsageError, match="already holds a run"):
        run(LINEAR, TARGETS, 10, out=tmp_path / "run")


def test_a_regression_from_the_command_line_is_that_of_the_library(tmp_path):
    config = load_config("diabetes", ["rounds=20", 'dropout.model="none"'])
    written = train(config, out=tmp_path / "run")
    split = dr.load_dataset("diabetes")
    by_hand = dr.simulate(
        dr.Network((dr.Dense(1),), (10,), input_bits=8, target_bits=10),
        dr.partition(split.train, 9),
        rounds=20,
        optimizer=ADAM,
        test=(split.test.inputs, split.test.targets),
        evaluate_every=20,
    )
    assert by_hand.summary.weights_sha256 == written["weights_sha256"]
    assert by_hand.summary.test_r2 == written["test_r2"]
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 20


def test_the_diabetes_preset_comes_near_ridge(tmp_path):
    found = train(load_config("diabetes", ["engine=direct"]), out=tmp_path / "run")
    split = dr.load_dataset("diabetes")
    least = LinearRegression().fit(split.train.inputs, split.train.targets)
    assert found["test_r2"] > least.score(split.test.inputs, split.test.targets) - 0.03
