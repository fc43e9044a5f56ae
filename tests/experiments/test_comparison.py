"""Baselines on a run's data: same dropouts, rows from one generator, the same whether in blocks or not."""

import pytest
import torch

from dresfl import baselines
from dresfl.data import flat_inputs
from dresfl.experiments.comparison import BaselineSettings, Curve, Draws, compare, plot_curves, run_baseline
from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import prepare
from dresfl.experiments.training import train
from dresfl.field import PublicStream

CONVOLUTION = (
    "model.layers=[{kind='conv2d', channels=2, kernel=3}, {kind='quadratic'}, {kind='sumpool', kernel=2}, "
    "{kind='flatten'}, {kind='dense', units=10}]"
)


def prepared(*more):
    settings = ["rounds=30", "evaluate_every=12", "federation.num_clients=9", "federation.batch_size=16"]
    return prepare(load_config("digits", [*settings, "dropout.model=bernoulli", "dropout.rate=0.3", *more]), None)


def silent(number, accuracy):
    """Watch nothing."""


@pytest.mark.parametrize("loss", baselines.LOSSES)
@pytest.mark.parametrize("method", baselines.METHODS)
def test_a_baseline_is_repeatable_and_learns(method, loss):
    seen = []
    easy = (
        f"optimizer.learning_rate={0.2 if loss == 'cross-entropy' else 0.05}",
        "data.partition=iid",
        "rounds=60",
        "evaluate_every=25",
        "dropout.rate=0.2",
    )
    curve = run_baseline(prepared(*easy), method, lambda *line: seen.append(line), BaselineSettings(loss))
    assert curve.rounds == [25, 50, 60]
    assert [number for number, _ in seen] == list(range(1, 61))
    assert [seen[i][1] for i in (0, 23, 24, 49, 59)] == [0.0, 0.0, *curve.accuracies]
    assert curve.final == curve.accuracies[-1] > 0.4
    again = run_baseline(prepared(*easy), method, silent, BaselineSettings(loss))
    assert (again.accuracies, again.weights_sha256) == (curve.accuracies, curve.weights_sha256)


def test_convolutions_are_compared_too():
    run = prepared(CONVOLUTION, "optimizer.method=adam", "optimizer.learning_rate=0.02", "rounds=100")
    assert run_baseline(run, "centralised", silent).final > 0.7


@pytest.mark.parametrize("method", baselines.METHODS)
def test_a_run_is_its_rounds_one_by_one(monkeypatch, method):
    """The pure functions in a plain loop, with the generator's draws spelled out."""
    monkeypatch.setattr("dresfl.experiments.comparison.BLOCK_ROUNDS", 5)
    run = prepared("dropout.rate=0.6")
    config, network = run.config, run.session.network
    central = method == "centralised"
    parts = [torch.from_numpy(rows) for rows in run.parts]
    parts = [torch.cat(parts)] if central else parts
    sizes = [len(rows) for rows in parts]
    problem = baselines.Problem(network, method, "cross-entropy", config.optimizer, len(parts))
    state = baselines.initial_state(problem, baselines.torch_weights(network, PublicStream(config.seed)))
    generator = torch.Generator().manual_seed(config.seed)
    inputs, labels = flat_inputs(run.split.train).double(), torch.from_numpy(run.split.train.labels)
    counts = []
    for number in range(config.rounds):
        answering = [0] if central else run.dropouts.answering(number)
        counts.append(len(answering))
        if not answering:
            continue
        rows = torch.stack([parts[i][torch.randint(sizes[i], (16,), generator=generator)] for i in answering])
        counted = torch.tensor(baselines.shares(method, answering, sizes, run.dropouts.rates), dtype=torch.float64)
        targets = torch.nn.functional.one_hot(labels[rows], 10).double()
        answers = baselines.Answers(inputs[rows], targets, torch.tensor(answering), counted)
        rate = config.optimizer.rate(number, config.rounds)
        state = baselines.next_state(problem, state, rate, answers)
    curve = run_baseline(run, method, silent)
    test_inputs, test_labels = flat_inputs(run.split.test).double(), torch.from_numpy(run.split.test.labels)
    right = baselines.outputs(network, state.weights, test_inputs).argmax(1) == test_labels
    assert curve.final == int(right.sum()) / len(right)
    assert curve.mean_survivors == sum(counts) / 30
    assert curve.skipped_rounds == counts.count(0)
    draws = Draws(run, method)
    start = baselines.initial_state(problem, baselines.torch_weights(network, PublicStream(0)))
    training = baselines.BaselineTraining(problem, start, inputs.float(), labels)
    training.play(draws.turns(range(config.rounds)))
    assert torch.equal(training.state.weights, state.weights)


def test_every_method_sees_the_same_clients_and_rows():
    run = prepared("dropout.rate=0.7")
    drawn = [Draws(run, method).turns(range(30)) for method in ("fedavg", "fedavg-is", "scaffold")]
    for ours, *others in zip(*drawn, strict=True):
        assert len(ours.clients) == len(ours.shares) == len(ours.rows)
        for other in others:
            assert other.clients == ours.clients
            assert torch.equal(other.rows, ours.rows)
    answering = run.dropouts.answering_in(range(30))
    assert [turn.clients for turn in drawn[0]] == [clients for clients in answering if clients]
    for turn in drawn[0]:
        for client, rows in zip(turn.clients, turn.rows.tolist(), strict=True):
            assert set(rows) <= set(run.parts[client].tolist())


def test_rounds_that_nobody_answers_are_counted_and_change_nothing():
    curve = run_baseline(prepared("dropout.rate=1.0"), "fedavg-is", silent)
    assert (curve.skipped_rounds, curve.mean_survivors) == (30, 0)
    assert len(set(curve.accuracies)) == 1


def test_a_finished_run_is_compared_with_two_baselines(tmp_path):
    config = load_config("digits", ["rounds=4", "evaluate_every=2", "federation.batch_size=8", "dropout.model=none"])
    train(config, out=tmp_path)
    curves = compare(config, tmp_path, lambda label, number, accuracy: None)
    assert list(curves) == ["DReS-FL", "FedAvg", "centralised"]
    assert all(curve.rounds == [2, 4] for curve in curves.values())
    assert (tmp_path / "curves.png").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", baselines.METHODS)
def test_a_gpu_learns_as_a_cpu_does(method):
    settings = ("optimizer.learning_rate=0.02", "rounds=60")
    ours, theirs = (run_baseline(prepared(*settings, f"device={kind}"), method, silent) for kind in ("cpu", "cuda"))
    assert theirs.accuracies == pytest.approx(ours.accuracies, abs=0.03)
    assert (theirs.mean_survivors, theirs.skipped_rounds) == (ours.mean_survivors, ours.skipped_rounds)


def test_curves_are_drawn(tmp_path):
    points = [{"round": 1, "test_accuracy": 0.1}, {"round": 2, "test_accuracy": 0.5}]
    plot_curves({"one": Curve(points), "two": Curve(points[::-1])}, tmp_path / "curves.png", "title")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
