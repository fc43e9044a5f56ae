"""The program of a hidden round: degrees, hops, guards and scales; its values are tested in tests/protocol/hidden."""

import dataclasses

import pytest
import torch

from dresfl.errors import Diverged, UsageError
from dresfl.field import PublicStream, Reals
from dresfl.model import Conv2d, Dense, Flatten, Network, Square, SumPool, mlp
from dresfl.model.program import Guard, Program, Step, walk

NETWORK = mlp((5, 4, 3), input_bits=4, weight_bits=18)
GUARDS = (
    Guard("error", 30, 20, 34.0),
    Guard("norm", 40, 20, 44.0, (1, 2)),
    Guard("layers.0 output size", 20, 20, 24.0),
)


def names(program, first=False):
    steps = [Step(30, 600, 2**30, 0)] * len(program.network.parameters)
    return [[product.name for product in hop] for hop in program.training_products(steps, first=first)]


def test_guards_are_cut_in_one_hop_and_opened_in_the_next():
    assert names(Program(NETWORK, 4, 8, guards=GUARDS)) == [
        ["layers.0 output", "norm", "error quotient"],
        ["layers.2 delta", "layers.2 back", "layers.0 output size", "norm quotient"],
        ["layers.0 step", "layers.2 step", "error", "layers.0 output size quotient"],
    ]
    assert names(Program(NETWORK, 2, 8, guards=GUARDS)) == [
        ["layers.0 output", "error quotient"],
        ["layers.2 input", "layers.0 output size", "norm"],
        ["layers.2 delta", "layers.0 output size quotient", "norm quotient"],
        ["layers.2 back"],
        ["layers.0 delta"],
        ["layers.0 step", "layers.2 step", "error"],
    ]


def test_nothing_is_carried_into_the_first_round():
    program = Program(NETWORK, 4, 8, guards=GUARDS)
    assert "error quotient" not in names(program, first=True)[0]
    assert program.carried == ("error",)


def test_a_round_of_one_hop_opens_its_guards_in_the_next():
    linear = Program(
        mlp((5, 3), input_bits=4, weight_bits=18), 4, 8, guards=(GUARDS[0], Guard("norm", 40, 20, 44.0, (1,)))
    )
    assert linear.carried == ("error", "norm")
    assert names(linear) == [["layers.0 step", "error", "norm", "error quotient", "norm quotient"]]


def test_degrees_stay_within_the_limit():
    """Every product is of values whose degrees are known: with S4 the deepest ones are e·Wᵀ and xᵀ·δ, with S2 any."""
    for layers, shape in (
        ((Conv2d(2, 3), Square(), SumPool(2), Flatten(), Dense(4), Square(), Dense(3)), (6, 6, 1)),
        ((Square(), Square(), Dense(3), Square()), (4,)),
        ((Dense(4), Dense(4), Square(), Square(), Dense(2)), (3,)),
    ):
        for degree in (2, 4):
            program = Program(Network(layers, shape, 4, 18), degree, 8)
            assert program.num_hops >= 2
            assert len(program.gradient_scales) == sum(isinstance(layer, Conv2d | Dense) for layer in layers)


def test_an_other_degree_is_refused():
    with pytest.raises(UsageError, match="degree 2 or 4, not 3"):
        Program(NETWORK, 3, 8)


def test_the_gradient_is_that_of_the_open_mode():
    """Without cutting, the weight hop of S4 on reals holds the open mode's gradient."""
    program = Program(NETWORK, 4, 8)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(0, 17, (1, 8, 5), generator=generator)
    targets = torch.nn.functional.one_hot(torch.randint(0, 3, (1, 8), generator=generator), 3)
    weights, reals = NETWORK.initial_weights(PublicStream(1)), Reals()
    state = reals.embed(weights).unsqueeze(1)
    steps = [Step(30, 1, 2**30, 0)] * 2
    running = program.training(reals, steps, reals.embed(inputs), reals.embed(targets), state, state)
    products = next(running)
    while not products[0].total:
        products = running.send([product.elements / 2.0**product.shift for product in products])
    open_mode = NETWORK.gradient(reals, weights, reals.embed(inputs), reals.embed(targets))[0, 0]
    real = open_mode / NETWORK.gradient_scales
    found = torch.cat(
        [
            -2 * product.elements[0, 0] / 2.0**scale
            for product, scale in zip(products, program.gradient_scales, strict=True)
        ]
    )
    assert torch.allclose(found, real, rtol=1e-9, atol=1e-12)


def test_a_quotient_above_its_limit_ends_the_round():
    program = Program(NETWORK, 4, 8, guards=GUARDS)
    running = program.training(Reals(), [Step(30, 1, 2**30, 0)] * 2, *zeros(8), zeros(8)[2])
    products = next(running)
    sent = [[0] if product.shift is None else product.elements for product in products]
    products = running.send(sent)
    assert [product.name for product in products if product.shift is None] == ["norm quotient"]
    with pytest.raises(Diverged, match=r"norm reaches 1\.1 times its limit"):
        running.send([[21] if product.shift is None else product.elements for product in products])


def zeros(rows):
    shapes = (rows, 5), (rows, 3), (NETWORK.num_parameters,)
    return [torch.zeros((1, 1, *shape), dtype=torch.float64) for shape in shapes]


def test_walking_needs_no_values():
    assert len(walk(dataclasses.replace(Program(NETWORK, 2, 8)).validation(Reals(), *zeros(8)))) == 5
