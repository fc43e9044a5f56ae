"""FedAvg and centralised training against torch, finite differences and each other."""

import itertools
import math

import pytest
import torch

from dresfl import baselines
from dresfl.baselines import State, centralised_round, fedavg_round, initial_state, outputs
from dresfl.errors import UsageError
from dresfl.experiments.comparison import Curve, plot_curves, run_baseline
from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import prepare
from dresfl.field import PublicStream
from dresfl.optimizers import Optimizer

SIZES = (4, 5, 3, 2)
SGD = Optimizer("sgd", learning_rate=0.1, schedule="constant")
ADAM = Optimizer("adam", learning_rate=0.01)


def batch(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 4, dtype=torch.float64, generator=generator)
    return inputs, torch.nn.functional.one_hot(torch.randint(2, (rows,), generator=generator), 2).double()


def start(optimizer=SGD):
    return initial_state(SIZES, optimizer, PublicStream(3))


def test_outputs_are_torchs_relu_network():
    state = start()
    modules, offset = [], 0
    for fan_in, fan_out in itertools.pairwise(SIZES):
        linear = torch.nn.Linear(fan_in, fan_out, dtype=torch.float64)
        middle, end = offset + fan_in * fan_out, offset + (fan_in + 1) * fan_out
        linear.weight.data = state.weights[offset:middle].view(fan_in, fan_out).T
        linear.bias.data = state.weights[middle:end]
        modules += [linear, torch.nn.ReLU()]
        offset = end
    assert offset == state.weights.numel()
    inputs, _ = batch(1, 6)
    expected = torch.nn.Sequential(*modules[:-1])(inputs)
    torch.testing.assert_close(outputs(SIZES, state.weights, inputs), expected.detach(), rtol=1e-12, atol=1e-12)


def test_initial_weights_fill_their_range():
    state = initial_state((400, 100, 10), SGD, PublicStream(1))
    first, second = state.weights[:40_100], state.weights[40_100:]
    for part, fan_in in ((first, 400), (second, 100)):
        scaled = part * math.sqrt(fan_in)
        assert 0.99 < float(scaled.max()) <= 1
        assert -1 <= float(scaled.min()) < -0.99
        assert float(scaled.square().mean()) == pytest.approx(1 / 3, rel=0.1)
    assert torch.equal(initial_state((400, 100, 10), SGD, PublicStream(1)).weights, state.weights)


def test_a_step_follows_the_gradient_of_the_mean_squared_error():
    """Against central differences of the loss, weight by weight."""
    state, (inputs, targets) = start(), batch(2, 7)
    after = centralised_round(state, SGD, 1.0, (inputs, targets))

    def loss(weights):
        return float((outputs(SIZES, weights, inputs) - targets).square().sum() / 7)

    step = 1e-6
    for place in range(state.weights.numel()):
        moved = torch.zeros_like(state.weights)
        moved[place] = step
        slope = (loss(state.weights + moved) - loss(state.weights - moved)) / (2 * step)
        assert float(state.weights[place] - after.weights[place]) == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
def test_equal_clients_together_are_centralised_training(optimizer):
    together = apart = start(optimizer)
    for round_number in range(5):
        batches = [batch(10 * round_number + client, 4) for client in range(3)]
        union = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
        apart = fedavg_round(apart, optimizer, 0.05, batches, [9, 9, 9])
        together = centralised_round(together, optimizer, 0.05, union)
        torch.testing.assert_close(apart.weights, together.weights, rtol=1e-9, atol=1e-12)


def test_one_local_sgd_step_averaged_by_data_is_fedavg():
    """The literal algorithm: each client steps alone, the server averages models in proportion to their rows."""
    state, rows = start(), [30, 10, 5]
    batches = [batch(seed, size) for seed, size in ((1, 4), (2, 8), (3, 2))]
    local = [centralised_round(state, SGD, 0.1, own).weights for own in batches]
    expected = sum(n / 45 * weights for n, weights in zip(rows, local, strict=True))
    found = fedavg_round(state, SGD, 0.1, batches, rows)
    torch.testing.assert_close(found.weights, expected, rtol=1e-12, atol=1e-14)


def test_no_answers_no_step():
    state = fedavg_round(start(ADAM), ADAM, 0.1, [batch(1, 4)], [4])
    after = fedavg_round(state, ADAM, 0.1, [], [])
    assert torch.equal(after.weights, state.weights)
    assert all(torch.equal(after.moments[name], state.moments[name]) for name in state.moments)


def test_a_round_changes_nothing_it_was_given():
    state = start(ADAM)
    kept = State(state.sizes, state.weights.clone(), {name: value.clone() for name, value in state.moments.items()})
    centralised_round(state, ADAM, 0.1, batch(1, 4))
    assert torch.equal(state.weights, kept.weights)
    assert not state.weights.requires_grad
    assert all(torch.equal(state.moments[name], kept.moments[name]) for name in kept.moments)


# -- on a run's data -------------------------------------------------------------------------------------------


def prepared(*more):
    settings = ["rounds=30", "evaluate_every=12", "federation.num_clients=9", "federation.batch_size=16"]
    return prepare(load_config("digits", [*settings, "dropout.model=bernoulli", "dropout.rate=0.3", *more]), None)


@pytest.mark.parametrize("method", ["fedavg", "centralised"])
def test_a_baseline_is_repeatable_and_learns(method):
    seen = []
    easy = "optimizer.learning_rate=0.1", "data.partition=iid"
    curve = run_baseline(prepared(*easy), method, "label", lambda n, accuracy: seen.append(n))
    assert curve.label == "label"
    assert curve.rounds == (12, 24, 30)
    assert seen == list(range(1, 31))
    assert curve.final == curve.accuracies[-1] > 0.3
    again = run_baseline(prepared(*easy), method, "label", lambda n, accuracy: None)
    assert again.accuracies == curve.accuracies


def test_fedavg_sees_the_runs_dropouts(monkeypatch):
    run = prepared("rounds=6")
    answered = []
    real = baselines.fedavg_round

    def spied(state, optimizer, rate, batches, client_rows):
        answered.append((list(client_rows), rate))
        return real(state, optimizer, rate, batches, client_rows)

    monkeypatch.setattr(baselines, "fedavg_round", spied)
    run_baseline(run, "fedavg", "label", lambda n, accuracy: None)
    assert answered == [
        ([len(run.parts[j]) for j in run.dropouts.answering(n)], run.config.optimizer.rate(n, 6)) for n in range(6)
    ]


def test_networks_without_a_relu_twin_are_refused():
    run = prepared('model.layers=[{ kind = "conv2d", channels = 2, kernel = 3 }, { kind = "flatten" }, '
                   '{ kind = "dense", units = 10 }]')  # fmt: skip
    with pytest.raises(UsageError, match="dense networks") as caught:
        run_baseline(run, "centralised", "label", lambda n, accuracy: None)
    assert caught.value.hint


def test_curves_are_drawn(tmp_path):
    curves = [Curve("one", (1, 2), (0.1, 0.5), 1.0), Curve("two", (1, 2), (0.2, 0.4), 2.0)]
    plot_curves(curves, tmp_path / "curves.png", "title")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
