"""Targets that are numbers: at any scale 2^t the same gradient as whole ones, and what a network says of its task."""

from dataclasses import replace

import pytest
import torch

from dresfl.errors import UsageError
from dresfl.field import ResidueField, choose_moduli
from dresfl.model import Dense, LocalSteps, Network, Quadratic, Square

FIELD = ResidueField(choose_moduli(400, more_than=10), 15)
STACKS = [(Dense(2),), (Dense(3), Square(), Dense(2)), (Dense(3), Quadratic(), Dense(1))]


def drawn(network, rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randint(-60, 60, (network.num_parameters,), generator=generator)
    inputs = FIELD.embed(torch.randint(-16, 16, (rows, network.input_size), generator=generator)).unsqueeze(1)
    targets = torch.randint(-3, 4, (rows, network.num_classes), generator=generator)
    return weights, inputs, targets


@pytest.mark.parametrize("layers", STACKS)
def test_a_scaled_target_has_the_gradient_of_the_whole_one(layers):
    whole = Network(layers, (4,), 3, 6)
    scaled = replace(whole, target_bits=5)
    weights, inputs, targets = drawn(whole, 7)
    one, other = FIELD.embed(targets).unsqueeze(1), FIELD.embed(targets * 2**5).unsqueeze(1)
    expected = whole.gradient(FIELD, weights, inputs, one)
    assert torch.equal(scaled.gradient(FIELD, weights, inputs, other), expected)
    assert torch.equal(torch.cat(scaled._gradient_by_layers(FIELD, weights, inputs, other), 2), expected)
    assert not torch.equal(whole.gradient(FIELD, weights, inputs, other), expected)


@pytest.mark.parametrize("layers", STACKS[:2])
def test_local_steps_take_scaled_targets_alike(layers):
    whole = Network(layers, (4,), 3, 6)
    weights, inputs, targets = drawn(whole, 6)
    one, other = FIELD.embed(targets).unsqueeze(1), FIELD.embed(targets * 2**5).unsqueeze(1)
    steps = LocalSteps(whole, 2, rate_shift=8, batch_size=3)
    scaled = replace(steps, network=replace(whole, target_bits=5))
    expected = steps.move(FIELD, weights, 3, inputs, one)
    assert torch.equal(scaled.move(FIELD, weights, 3, inputs, other), expected)


def test_large_targets_need_more_bits():
    network = Network((Dense(1),), (4,), 3, 6, target_bits=5)
    larger = replace(network, target_magnitude=10.0)
    assert network.needed_bits(8) + 5 < larger.needed_bits(8) < network.needed_bits(8) + 11
    assert (network.target_limit, larger.target_limit) == (2**5, 2**15)


def test_what_a_network_ends_in():
    classes, one = Network((Dense(3),), (4,), 3), Network((Dense(1),), (4,), 3)
    estimate = replace(one, target_bits=8)
    assert [network.task for network in (classes, one, estimate)] == ["classification"] * 2 + ["regression"]
    assert [network.one_hot for network in (classes, one, estimate)] == [True, False, False]
    assert [network.num_labels for network in (classes, one, estimate)] == [3, 2, 0]
    assert classes.labels(torch.tensor([[0, 5, 2]])).tolist() == [1]
    assert one.labels(torch.tensor([[-3.0], [0.0], [2.0]])).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_bits": 17}, "target_bits must lie"),
        ({"target_bits": -1}, "target_bits must lie"),
        ({"target_bits": 10}, "9 bits after the point"),
        ({"target_bits": 4, "target_magnitude": float("nan")}, "target_magnitude"),
        ({"target_magnitude": 2.0}, "target_magnitude"),
    ],
)
def test_targets_that_cannot_be(changes, words):
    with pytest.raises(UsageError, match=words):
        Network((Dense(1),), (4,), 3, 6, **changes)
