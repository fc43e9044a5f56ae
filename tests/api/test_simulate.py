"""`dr.simulate` in memory: the weights of the command line, one loop, clear errors, nothing left behind."""

import os

import numpy as np
import pytest
import torch

import dresfl as dr
from dresfl.experiments.config import load_config
from dresfl.experiments.training import train

NETWORK = dr.mlp((3, 2), input_bits=4, weight_bits=10)
ROWS = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]]), np.array([0, 1])
CLIENTS = [ROWS] * 3


def digits_run(rounds, **more):
    digits = dr.load_dataset("digits")
    return dr.simulate(
        dr.mlp((64, 32, 32, 10), input_bits=4, weight_bits=10),
        dr.partition(digits.train, 20),
        rounds=rounds,
        optimizer=dr.Optimizer(method="momentum", learning_rate=0.03, schedule="cosine"),
        dropouts=dr.paper_dropouts(20, seed=0),
        test=(digits.test.inputs, digits.test.labels),
        threads=1,
        evaluate_every=20,
        **more,
    )


def test_the_digits_preset_by_hand_has_the_weights_of_the_command_line():
    run = digits_run(200)
    assert run.model.weights_sha256.startswith("39d566a8")
    assert run.summary.weights_sha256 == run.model.weights_sha256
    assert [measured.round for measured in run.history] == list(range(20, 201, 20))
    digits = dr.load_dataset("digits").test
    assert (run.model.predict(digits.inputs) == digits.labels).mean() == run.summary.test_accuracy
    assert run.history[-1].test_accuracy == run.summary.test_accuracy > 0.9


@pytest.mark.parametrize("engine", ["coded", "direct"])
def test_the_summary_is_that_of_the_command_line(tmp_path, engine):
    run = digits_run(20, engine=engine)
    written = train(load_config("digits", ["rounds=20", f"engine={engine}"]), out=tmp_path / "run")
    ours = run.summary.to_dict()
    assert ours.keys() == written.keys()
    differing = {key for key in ours if ours[key] != written[key]}
    assert differing <= {"name", "seconds", "seconds_per_round"}


def test_arrays_tensors_and_lists_give_the_same_weights():
    inputs, labels = ROWS
    kinds = [
        (inputs, labels),
        (inputs.astype(np.float32), labels.astype(np.uint8)),
        (torch.tensor(inputs), torch.tensor(labels)),
        (inputs.tolist(), labels.tolist()),
    ]
    runs = [dr.simulate(NETWORK, [kind] * 3, rounds=5, batch_size=4) for kind in kinds]
    assert len({run.model.weights_sha256 for run in runs}) == 1


def test_images_may_be_flat_or_shaped():
    network = dr.Network((dr.Conv2d(2, 2), dr.Flatten(), dr.Dense(2)), input_shape=(3, 3, 1), input_bits=4)
    images, labels = np.linspace(0, 1, 36).reshape(4, 3, 3, 1), np.array([0, 1, 0, 1])
    shaped = dr.simulate(network, [(images, labels)] * 3, rounds=3)
    flat = dr.simulate(network, [(images.reshape(4, 9), labels)] * 3, rounds=3)
    assert shaped.model.weights_sha256 == flat.model.weights_sha256


def test_without_a_test_set_nothing_is_evaluated():
    run = dr.simulate(NETWORK, CLIENTS, rounds=4, evaluate_every=3)
    assert run.summary.test_accuracy is None
    assert run.summary.test_rows is None
    assert [(measured.round, measured.test_accuracy) for measured in run.history] == [(3, None), (4, None)]


def test_progress_is_told_of_every_round_and_may_keep_what_it_gets():
    seen = []
    dr.simulate(NETWORK, CLIENTS, rounds=6, test=ROWS, evaluate_every=3, progress=seen.append)
    assert [progress.round_number for progress in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[1].accuracy is None
    assert seen[2].accuracy is not None


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_whatever_ends_a_run_torchs_threads_are_as_before(tmp_path, monkeypatch, error):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()

    def stop(progress):
        assert torch.get_num_threads() == before + 1
        raise error

    with pytest.raises(error):
        dr.simulate(NETWORK, CLIENTS, rounds=3, threads=before + 1, progress=stop)
    assert torch.get_num_threads() == before
    assert os.listdir(tmp_path) == []


def test_dropouts_change_no_weights_unless_a_round_is_skipped():
    runs = [
        dr.simulate(NETWORK, [ROWS] * 7, rounds=20, dropouts=dropouts)
        for dropouts in (None, dr.bernoulli_dropouts(7, 0.2, seed=1))
    ]
    skipped = runs[1].summary.skipped_rounds
    assert runs[1].summary.mean_survivors < runs[0].summary.mean_survivors == 7
    assert (runs[0].model.weights_sha256 == runs[1].model.weights_sha256) == (skipped == 0)


# -- errors ----------------------------------------------------------------------------------------------------

INPUTS, LABELS = ROWS


@pytest.mark.parametrize(
    ("clients", "error", "words"),
    [
        ([], dr.UsageError, "no clients"),
        ([ROWS] * 2, dr.InfeasiblePlan, "2 clients cannot decode"),
        ([ROWS, ROWS, INPUTS[:1]], dr.DataError, "client 2"),
        ([ROWS, ROWS, (INPUTS[:, :2], LABELS)], dr.DataError, "client 2: inputs have type float64 and shape (2, 2)"),
        ([ROWS, ROWS, (INPUTS[0], LABELS)], dr.DataError, "client 2: inputs"),
        ([ROWS, ROWS, ([[1.0], [1.0, 2.0]], LABELS)], dr.DataError, "client 2: inputs"),
        ([ROWS, ROWS, ([["a", "b", "c"]] * 2, LABELS)], dr.DataError, "client 2: inputs"),
        ([ROWS, ROWS, (INPUTS * np.nan, LABELS)], dr.DataError, "client 2: the input of row 0 holds NaN"),
        ([ROWS, ROWS, (INPUTS * 1.5, LABELS)], dr.DataError, "client 2: an input reaches 1.5"),
        ([ROWS, (INPUTS, LABELS + 1), ROWS], dr.DataError, "client 1: the label of row 1 is 2"),
        ([ROWS, (INPUTS, LABELS - 1), ROWS], dr.DataError, "client 1: the label of row 0 is -1"),
        ([ROWS, (INPUTS, LABELS * 0.5), ROWS], dr.DataError, "client 1: labels have type float64"),
        ([ROWS, (INPUTS, LABELS[:1]), ROWS], dr.DataError, "2 rows of inputs, 1 labels"),
        ([ROWS, (INPUTS[:0], LABELS[:0]), ROWS], dr.DataError, "client 1: empty"),
    ],
)
def test_wrong_rows_are_refused_by_name(clients, error, words):
    with pytest.raises(error) as caught:
        dr.simulate(NETWORK, clients, rounds=1)
    assert words in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"num_shards": 0}, "num_shards must be at least 1"),
        ({"threads": -1}, "threads must be at least 0"),
        ({"seed": -1}, "seed must lie in"),
        ({"device": "tpu"}, "tpu"),
        ({"engine": "fast"}, "fast"),
        ({"classes": ["one"]}, "1 classes are named"),
        ({"dropouts": dr.bernoulli_dropouts(4, 0.1, seed=0)}, "of 4 clients"),
        ({"test": (INPUTS * 3, LABELS)}, "test: an input reaches 3"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, words):
    with pytest.raises(dr.DresError) as caught:
        dr.simulate(NETWORK, CLIENTS, **{"rounds": 1, **settings})
    assert words in str(caught.value)


def test_a_network_for_larger_inputs_takes_them():
    network = dr.Network((dr.Dense(2),), (3,), input_bits=4, input_magnitude=np.log2(1.5).item())
    assert dr.simulate(network, [(INPUTS * 1.5, LABELS)] * 3, rounds=1).summary.rounds == 1
    shifted = dr.simulate(NETWORK, [(INPUTS + 0.5, LABELS)] * 3, rounds=1, shift=-0.5)
    assert shifted.summary.rounds == 1
