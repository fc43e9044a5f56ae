"""The baselines against torch's modules, finite differences, enumeration and the letter of their papers."""

import dataclasses
import itertools
import math
from fractions import Fraction

import pytest
import torch

from dresfl import baselines
from dresfl.baselines import (
    Answers,
    BaselineTraining,
    Problem,
    Turn,
    advance,
    client_gradients,
    initial_state,
    mean_gradient,
    next_state,
    outputs,
    row_losses,
    shares,
    torch_weights,
)
from dresfl.field import PublicStream
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool, mlp
from dresfl.optimizers import Optimizer

DENSE = mlp((4, 5, 3, 2), input_bits=4, weight_bits=10)
CONV = Network(
    (
        Conv2d(3, kernel=3, stride=2, padding=1),
        Square(),
        Conv2d(4, kernel=2),
        Quadratic(),
        SumPool(2, stride=1),
        Flatten(),
        Dense(2),
    ),
    (7, 6, 2),
    4,
)
NETWORKS = {"dense": DENSE, "convolution": CONV}
SGD = Optimizer("sgd", learning_rate=0.1, schedule="constant")
MOMENTUM = Optimizer("momentum", max_norm=0.5)
ADAM = Optimizer("adam", learning_rate=0.01, weight_decay=0.1)
CLIENTS, BATCH = 4, 3
ROWS, RATES = [40, 10, 30, 20], [0.99, 0.0, 0.3, 0.05]


def problem(method="fedavg", network=DENSE, loss="squared", optimizer=SGD):
    return Problem(network, method, loss, optimizer, CLIENTS)


def data(network=DENSE, clients=CLIENTS, batch=BATCH, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(clients, batch, network.input_size, dtype=torch.float64, generator=generator)
    labels = torch.randint(network.num_classes, (clients, batch), generator=generator)
    return inputs, torch.nn.functional.one_hot(labels, network.num_classes).double()


def answers(asked, answering, seed=1):
    """Answers of these clients, whose rows do not depend on who else answers."""
    inputs, targets = data(asked.network, seed=seed)
    counted = torch.tensor(shares(asked.method, answering, ROWS, RATES), dtype=torch.float64)
    return Answers(inputs[answering], targets[answering], torch.tensor(answering), counted)


def start(asked, seed=3):
    return initial_state(asked, torch_weights(asked.network, PublicStream(seed)))


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)


# -- the ReLU network ------------------------------------------------------------------------------------------


class ChannelsLast(torch.nn.Module):
    """(B,C,H,W) -> (B,HWC), as the network here lays images out."""

    def forward(self, x):
        return x.permute(0, 2, 3, 1).flatten(1)


def torch_network(network, weights):
    """The same network of torch.nn modules; takes (B,F) or (B,C,H,W)."""
    modules, parameters = [], iter(network.parameters)
    for layer, place in zip(network.layers, network.places, strict=True):
        if isinstance(layer, Dense):
            module = torch.nn.Linear(*place.in_shape, layer.units, dtype=torch.float64)
        elif isinstance(layer, Conv2d):
            module = torch.nn.Conv2d(
                place.in_shape[2], layer.channels, layer.kernel, layer.stride, layer.padding, dtype=torch.float64
            )
        elif isinstance(layer, SumPool):
            module = torch.nn.AvgPool2d(layer.kernel, layer.stride)
        else:
            module = ChannelsLast() if isinstance(layer, Flatten) else torch.nn.ReLU()
        if isinstance(layer, Dense | Conv2d):
            p = next(parameters)
            matrix = weights[p.weight].view(p.fan)
            if isinstance(layer, Conv2d):
                matrix = matrix.view(layer.kernel, layer.kernel, -1, layer.channels).permute(3, 2, 0, 1)
            module.weight.data = matrix.clone() if isinstance(layer, Conv2d) else matrix.T.clone()
            module.bias.data = weights[p.bias].clone()
        modules.append(module)
    return torch.nn.Sequential(*modules)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_outputs_are_those_of_torchs_modules(network):
    weights = start(problem(network=network)).weights
    assert weights.numel() == network.num_parameters
    inputs = data(network, clients=1, batch=6)[0][0]
    images = inputs.view(-1, *network.input_shape)
    expected = torch_network(network, weights)(images.permute(0, 3, 1, 2) if images.ndim == 4 else images)
    close(outputs(network, weights, inputs), expected.detach())


def test_a_pool_without_a_stride_moves_by_its_size():
    network = Network((SumPool(2), Flatten(), Dense(3)), (4, 4, 1), 4)
    weights = start(problem(network=network)).weights
    inputs = data(network)[0][0]
    expected = torch_network(network, weights)(inputs.view(-1, 1, 4, 4))
    close(outputs(network, weights, inputs), expected.detach())


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_initial_weights_are_as_wide_as_torchs(network):
    wide = Network((Dense(100), Square(), Dense(10)), (400,), 4) if network is DENSE else network
    first = start(problem(network=wide))
    for p in wide.parameters:
        scaled = first.weights[p.weight.start : p.bias.stop] * math.sqrt(p.fan[0])
        assert float(scaled.abs().max()) <= 1
        if network is DENSE:
            assert float(scaled.max()) > 0.99
            assert float(scaled.square().mean()) == pytest.approx(1 / 3, rel=0.1)
    assert torch.equal(start(problem(network=wide)).weights, first.weights)
    assert not torch.equal(start(problem(network=wide), seed=4).weights, first.weights)


def test_the_losses_are_torchs():
    found, targets = torch.randn(5, 3), torch.nn.functional.one_hot(torch.tensor([0, 2, 1, 1, 0]), 3).float()
    expected = torch.nn.functional.cross_entropy(found, targets.argmax(1), reduction="none")
    torch.testing.assert_close(row_losses("cross-entropy", found, targets), expected)
    expected = torch.nn.functional.mse_loss(found, targets, reduction="none").sum(1)
    torch.testing.assert_close(row_losses("squared", found, targets), expected)


@pytest.mark.parametrize("loss", baselines.LOSSES)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_the_gradient_is_the_slope_of_the_loss(network, loss):
    """Against central differences, weight by weight."""
    weights, (inputs, targets) = start(problem(network=network)).weights, data(network)
    weighting = torch.tensor([0.5, 0.0, 2.0, 0.1], dtype=torch.float64)

    def value(at):
        means = row_losses(loss, outputs(network, at, inputs.flatten(0, 1)), targets.flatten(0, 1)).view(-1, BATCH)
        return float(means.mean(1) @ weighting)

    step = 1e-6
    slopes = [
        (value(weights + step * unit) - value(weights - step * unit)) / (2 * step)
        for unit in torch.eye(len(weights), dtype=torch.float64)
    ]
    found = mean_gradient(network, loss, weights, inputs, targets, weighting)
    torch.testing.assert_close(found, torch.tensor(slopes, dtype=torch.float64), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", baselines.LOSSES)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_all_clients_gradients_at_once_are_each_ones_alone(network, loss):
    weights, (inputs, targets) = start(problem(network=network)).weights, data(network)
    one = torch.ones(1, dtype=torch.float64)
    alone = [mean_gradient(network, loss, weights, inputs[[i]], targets[[i]], one) for i in range(CLIENTS)]
    close(client_gradients(network, loss, weights, inputs, targets), torch.stack(alone))
    assert not weights.requires_grad


# -- FedAvg, FedAvg-IS, centralised ----------------------------------------------------------------------------


def alone(asked, state, rate, inputs, targets):
    """The weights after one client's own SGD step."""
    one = torch.ones(1, dtype=torch.float64)
    return state.weights - rate * mean_gradient(asked.network, asked.loss, state.weights, inputs, targets, one)


@pytest.mark.parametrize("loss", baselines.LOSSES)
def test_fedavg_averages_the_models_of_those_who_answered(loss):
    """The literal algorithm: each client steps alone, the server averages models in proportion to their rows."""
    asked, answering = problem(loss=loss), [3, 0, 2]
    state, given = start(asked), answers(asked, answering)
    local = [alone(asked, state, 0.1, given.inputs[[i]], given.targets[[i]]) for i in range(3)]
    expected = sum(ROWS[i] / 90 * weights for i, weights in zip(answering, local, strict=True))
    after = next_state(asked, state, 0.1, given)
    close(after.weights, expected)
    assert after.steps == 1


@pytest.mark.parametrize("loss", baselines.LOSSES)
def test_importance_sampling_expects_the_step_of_full_participation(loss):
    """Over all 2^N sets of answering clients, each with its probability."""
    asked = problem("fedavg-is-unbiased", loss=loss)
    state, expected, total = start(asked), torch.zeros(DENSE.num_parameters, dtype=torch.float64), 0.0
    for size in range(CLIENTS + 1):
        for answering in itertools.combinations(range(CLIENTS), size):
            chance = math.prod(1 - RATES[i] if i in answering else RATES[i] for i in range(CLIENTS))
            after = next_state(asked, state, 0.1, answers(asked, list(answering))) if answering else state
            expected += chance * (state.weights - after.weights)
            total += chance
    assert total == pytest.approx(1, abs=1e-15)
    everybody = next_state(problem(loss=loss), state, 0.1, answers(problem(loss=loss), list(range(CLIENTS))))
    close(expected, state.weights - everybody.weights)


def test_importance_sampling_weighs_exactly_by_rows():
    """E[share_i] = m_i/m, in rational numbers."""
    rates = [Fraction(99, 100), Fraction(0), Fraction(1, 3), Fraction(1, 20)]
    expected = [Fraction(0)] * CLIENTS
    for size in range(CLIENTS + 1):
        for answering in itertools.combinations(range(CLIENTS), size):
            chance = math.prod(1 - rates[i] if i in answering else rates[i] for i in range(CLIENTS))
            for i, share in zip(answering, shares("fedavg-is-unbiased", answering, ROWS, rates), strict=True):
                expected[i] += chance * share
    assert expected == [Fraction(rows, 100) for rows in ROWS]


def test_normalised_importance_sampling_keeps_the_ratios_and_counts_one_in_all():
    raw, normalised = (shares(method, [0, 3, 2], ROWS, RATES) for method in ("fedavg-is-unbiased", "fedavg-is"))
    assert sum(normalised) == pytest.approx(1)
    assert normalised == pytest.approx([share / sum(raw) for share in raw])


def test_without_dropouts_importance_sampling_is_fedavg():
    for method in ("fedavg", "fedavg-is", "fedavg-is-unbiased"):
        assert shares(method, [1, 0], [3, 1], [0.0, 0.0]) == [0.25, 0.75]


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM], ids=["sgd", "momentum", "adam"])
def test_equal_clients_together_are_centralised_training(optimizer):
    apart, together = (problem(method, optimizer=optimizer) for method in ("fedavg", "centralised"))
    ours = theirs = start(apart)
    for round_number in range(5):
        inputs, targets = data(seed=round_number)
        equal = torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64)
        ours = next_state(apart, ours, 0.05, Answers(inputs, targets, torch.arange(CLIENTS), equal))
        pooled = inputs.flatten(0, 1)[None], targets.flatten(0, 1)[None]
        one = torch.ones(1, dtype=torch.float64)
        theirs = next_state(together, theirs, 0.05, Answers(*pooled, torch.zeros(1, dtype=torch.int64), one))
        torch.testing.assert_close(ours.weights, theirs.weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", baselines.METHODS)
def test_a_round_changes_nothing_it_was_given(method):
    asked = problem(method, optimizer=ADAM)
    state = next_state(asked, start(asked), 0.1, answers(asked, [0, 1]))
    kept = {name: value.clone() for name, value in tensors(state).items()}
    next_state(asked, state, 0.1, answers(asked, [1, 3]))
    assert all(torch.equal(value, kept[name]) for name, value in tensors(state).items())
    assert not state.weights.requires_grad


def tensors(state):
    return {"weights": state.weights, "controls": state.controls, "control": state.control, **state.moments}


# -- SCAFFOLD --------------------------------------------------------------------------------------------------


def literal_scaffold(asked, rounds, rate):
    """Algorithm 1 of Karimireddy et al. (2020), client by client: option II, K = 1, global rate 1."""
    x = start(asked).weights
    c, c_i = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(CLIENTS)]
    for given in rounds:
        y_changes, c_changes = [], []
        for slot, i in enumerate(given.clients.tolist()):
            y = x.clone()
            for _ in range(1):  # K local steps
                leaf = y.clone().requires_grad_()
                found = outputs(asked.network, leaf, given.inputs[slot])
                row_losses(asked.loss, found, given.targets[slot]).mean().backward()
                y = y - rate * (leaf.grad - c_i[i] + c)
            c_new = c_i[i] - c + (x - y) / (1 * rate)
            y_changes.append(y - x)
            c_changes.append(c_new - c_i[i])
            c_i[i] = c_new
        x = x + sum(y_changes) / len(y_changes)
        c = c + len(c_changes) / CLIENTS * (sum(c_changes) / len(c_changes))
    return x, torch.stack(c_i), c


SETS = [[2], [0, 1, 2, 3], [3, 1], [1, 2], [0], [2, 0, 3], [1], [3, 2, 1, 0]]


@pytest.mark.parametrize("loss", baselines.LOSSES)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_scaffold_is_its_papers_algorithm(network, loss):
    asked = problem("scaffold", network, loss)
    rounds = [answers(asked, answering, seed) for seed, answering in enumerate(SETS)]
    state = start(asked)
    for given in rounds:
        state = next_state(asked, state, 0.05, given)
    x, c_i, c = literal_scaffold(asked, rounds, 0.05)
    torch.testing.assert_close(state.weights, x, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(state.controls, c_i, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(state.control, c, rtol=1e-8, atol=1e-10)
    close(state.control, state.controls.mean(0))  # as its paper says it stays


# -- blocks ----------------------------------------------------------------------------------------------------


def turns(asked, seed=0):
    """Rounds on a training set of 50 rows: who answers, and each one's rows."""
    generator = torch.Generator().manual_seed(seed)
    sets = [[0]] * len(SETS) if asked.num_clients == 1 else SETS
    return [
        Turn(who, shares(asked.method, who, ROWS, RATES), torch.randint(50, (len(who), BATCH), generator=generator), r)
        for r, who in zip((0.1, 0.05, 0.04, 0.03, 0.02, 0.01, 0.02, 0.03), sets, strict=True)
    ]


def training_set(network):
    inputs, targets = data(network, clients=1, batch=50)
    return inputs[0].float(), targets[0].argmax(1)


def one_by_one(asked, played):
    inputs, labels = training_set(asked.network)
    state = start(asked)
    for turn in played:
        rows = turn.rows
        targets = torch.nn.functional.one_hot(labels[rows], asked.network.num_classes).double()
        counted = torch.tensor(turn.shares, dtype=torch.float64)
        given = Answers(inputs[rows].double(), targets, torch.tensor(turn.clients), counted)
        state = next_state(asked, state, turn.rate, given)
    return state


def posed(method, optimizer=SGD, network=DENSE):
    asked = problem(method, network, "cross-entropy", optimizer)
    return dataclasses.replace(asked, num_clients=1) if method == "centralised" else asked


@pytest.mark.parametrize("fixed_shapes", [False, True], ids=["as they come", "fixed shapes"])
@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM], ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("method", baselines.METHODS)
def test_blocks_are_the_rounds_one_by_one(monkeypatch, method, optimizer, fixed_shapes):
    monkeypatch.setattr("dresfl.baselines.blocks.BLOCK_ROUNDS", 3)
    asked = posed(method, optimizer)
    given, played = start(asked), turns(asked)
    training = BaselineTraining(asked, given, *training_set(DENSE), fixed_shapes)
    training.play(played[:4])
    training.play(played[4:])
    expected = tensors(one_by_one(asked, played))
    assert training.state.steps == len(played)
    assert tensors(training.state).keys() == expected.keys()
    for name, value in tensors(training.state).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-12)
    assert torch.equal(given.weights, start(asked).weights)  # the state it was given stays as it was


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_as_many_slots_as_clients_answer_together_suffice(monkeypatch, method):
    monkeypatch.setattr("dresfl.baselines.blocks.BLOCK_ROUNDS", 3)
    asked = posed(method)
    played = [turn for turn in turns(asked) if len(turn.clients) <= 2]
    assert any(len(turn.clients) == 1 for turn in played)
    training = BaselineTraining(asked, start(asked), *training_set(DENSE), fixed_shapes=True, most_answers=2)
    training.play(played)
    expected = tensors(one_by_one(asked, played))
    for name, value in tensors(training.state).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM], ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("loss", baselines.LOSSES)
@pytest.mark.parametrize("method", baselines.METHODS)
def test_a_round_never_looks_at_its_values(method, loss, optimizer, network):
    """Tensors without values suffice: nothing waits for the device, no shape depends on data, so it can be captured."""
    asked = problem(method, network, loss, optimizer)
    state = initial_state(asked, torch_weights(asked.network, PublicStream(0)), "meta", torch.float32)
    inputs, targets = (values.float().to("meta") for values in data(network))
    who, counted = torch.arange(CLIENTS, device="meta"), torch.zeros(CLIENTS, device="meta")
    after = advance(asked, state, torch.zeros(3, device="meta"), Answers(inputs, targets, who, counted))
    for name, value in tensors(state).items():
        assert (tensors(after)[name].shape, tensors(after)[name].dtype) == (value.shape, torch.float32)


def test_rows_may_be_stored_in_half_precision():
    asked = posed("fedavg")
    inputs, labels = training_set(DENSE)
    half = BaselineTraining(asked, start(asked), inputs.half(), labels)
    same = BaselineTraining(asked, start(asked), inputs.half().double(), labels)
    for training in (half, same):
        training.play(turns(asked))
    assert torch.equal(half.state.weights, same.state.weights)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM], ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("method", baselines.METHODS)
def test_a_captured_round_is_the_round(monkeypatch, method, optimizer, network):
    """In float64, so that only the order of sums differs."""
    monkeypatch.setattr("dresfl.baselines.blocks.BLOCK_ROUNDS", 3)
    asked = posed(method, optimizer, network)
    state = initial_state(asked, torch_weights(asked.network, PublicStream(3)), "cuda")
    training = BaselineTraining(asked, state, *training_set(network))
    played = turns(asked)
    training.play(played[:4])
    training.play(played[4:])
    for name, value in tensors(one_by_one(asked, played)).items():
        torch.testing.assert_close(tensors(training.state)[name].cpu(), value, rtol=1e-8, atol=1e-10)
