"""Several steps inside the field are the same steps over the rationals, and their degree is sufficient and tight."""

import math
import random
from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.coding.lagrange import LagrangeCode, lagrange_matrix
from dresfl.errors import UsageError
from dresfl.field import Integers, Outline, ResidueField, Shapes, choose_moduli, num_value_moduli
from dresfl.model import Conv2d, Dense, Flatten, LocalSteps, Network, Quadratic, Square, SumPool, mlp
from reference import local_sgd
from reference.flint_field import FlintField

STACKS = {
    "dense": ((Dense(2),), (3,)),
    "two dense": ((Dense(2), Dense(2)), (2,)),
    "dense with its own bits": ((Dense(2, weight_bits=3),), (3,)),
    "one square": ((Dense(2), Square(), Dense(2, weight_bits=2)), (2,)),
    "one quadratic": ((Dense(1), Quadratic(), Dense(2)), (2,)),
    "square first": ((Square(), Dense(2)), (2,)),
    "square last": ((Dense(2), Square()), (2,)),
    "conv": ((Conv2d(1, 2, padding=1), Flatten(), Dense(2)), (2, 2, 1)),
    "conv and square": ((Conv2d(1, 2), Square(), SumPool(2), Flatten(), Dense(1)), (3, 3, 1)),
}


@cache
def large_field(bits):
    """F_p for a prime that holds so many bits: it takes a while to see that one is a prime."""
    return FlintField(next(2**k - c for k, c in ((61, 1), (200, 75), (440, 33), (607, 1), (1279, 1)) if k > bits))


def network_of(name, input_bits=2, weight_bits=3):
    layers, shape = STACKS[name]
    return Network(layers, shape, input_bits, weight_bits)


def drawn(network, steps, batch, shards, rng):
    """Weights (P,), and rows (s·B,K,W): inputs, then targets."""
    weights = torch.tensor([rng.randint(-9, 9) for _ in range(network.num_parameters)])
    width = network.input_size + network.num_classes
    rows = torch.tensor([rng.randint(-4, 4) for _ in range(steps * batch * shards * width)])
    return weights, rows.view(steps * batch, shards, width)


def expected_move(local, weights, rows, multiplier):
    """Σ_k of the moves that the shards make on their own rows, over the rationals."""
    network, size = local.network, local.network.input_size
    start = [Fraction(int(w), int(s)) for w, s in zip(weights, network.weight_scales, strict=True)]
    rate, batch = Fraction(multiplier, 2**local.rate_shift), rows.shape[0] // local.num_steps
    total = [Fraction(0)] * len(start)
    for shard in range(rows.shape[1]):
        own = rows[:, shard].tolist()
        parts = [own[first : first + batch] for first in range(0, len(own), batch)]
        batches = [([row[:size] for row in part], [row[size:] for row in part]) for part in parts]
        moved = local_sgd.move(network.layers, network.input_shape, network.input_bits, start, rate, batches)
        total = [a + b for a, b in zip(total, moved, strict=True)]
    return total


def as_fractions(local, integers):
    """Decoded integers over the powers of two that the coordinator divides by."""
    scales = [bits for p, bits in zip(local.network.parameters, local.scales, strict=True) for _ in range(sum_of(p))]
    return [Fraction(value, 2**bits) for value, bits in zip(integers, scales, strict=True)]


def sum_of(p):
    return p.bias.stop - p.weight.start


def answers_in(field, local, weights, multiplier, coded):
    size = local.network.input_size
    return local.move(field, weights, multiplier, coded[..., :size], coded[..., size:])


@st.composite
def coded_rounds(draw):
    """A network, s local steps, and N, K, T with R of the N surviving in some order."""
    name, steps = draw(
        st.sampled_from(
            [(name, s) for name in STACKS for s in ((1, 2) if "quad" in name or "square" in name else (1, 2, 3, 4))]
        )
    )
    network = network_of(name, draw(st.integers(0, 3)), draw(st.integers(1, 4)))
    shards, colluders = draw(st.sampled_from([(1, 1), (1, 0), (2, 1), (1, 2)]))
    batch, multiplier = draw(st.integers(1, 2)), draw(st.integers(0, 5))
    local = LocalSteps(network, steps, draw(st.integers(0, 6)), batch, shards, 5)
    needed = local.degree * (shards + colluders - 1) + 1
    clients = needed + draw(st.integers(0, 3))
    rng = random.Random(draw(st.integers(0, 2**32)))
    return local, multiplier, (clients, shards, colluders), batch, rng


@given(coded_rounds())
def test_coded_moves_are_plain_sgd_over_the_rationals(setting):
    """Over one large prime by python-flint, and over small primes: the exact integers are the same, and right."""
    local, multiplier, (clients, shards, colluders), batch, rng = setting
    weights, rows = drawn(local.network, local.num_steps, batch, shards, rng)
    expected = expected_move(local, weights, rows, multiplier)
    widest = max(abs(v) * 2 ** max(local.scales) for v in expected)
    bits = math.ceil(widest).bit_length() + 2
    survivors = rng.sample(range(clients), local.degree * (shards + colluders - 1) + 1)

    def decoded(field):
        code = LagrangeCode(field, clients, shards, colluders, local.degree)
        shape = colluders, *rows.shape[::2]
        masks = field.embed(torch.tensor([rng.getrandbits(50) for _ in range(math.prod(shape))]).view(shape))
        shares = code.encode(field.embed(rows.swapaxes(0, 1)), masks, survivors)
        return code.decode_sum(answers_in(field, local, weights, multiplier, shares), survivors)

    large = large_field(next(k for k in (199, 439, 606, 1278) if k >= bits))
    assert as_fractions(local, large.lift(decoded(large))) == expected
    moduli = choose_moduli(bits, more_than=clients + shards + colluders)
    if math.prod(moduli).bit_length() <= 900:
        small = ResidueField(moduli, num_value_moduli(moduli, bits))
        assert as_fractions(local, small.lift_exact(decoded(small))) == expected


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("steps", [1, 2])
def test_degree_is_sufficient_and_tight(name, steps):
    network = network_of(name)
    local = LocalSteps(network, steps, rate_shift=3, batch_size=2)
    needed, rng = local.degree + 1, random.Random(name)
    weights, rows = drawn(network, steps, 2, 1, rng)
    field = large_field(200)
    code = LagrangeCode(field, needed, 1, 1, local.degree)
    shares = code.encode(field.embed(rows.swapaxes(0, 1)), field.random((1, *rows.shape[::2]), rng))
    answers = answers_in(field, local, weights, 1, shares)  # (1,N,P)
    expected = expected_move(local, weights, rows, 1)
    assert as_fractions(local, field.lift(code.decode_sum(answers, range(needed)))) == expected
    fewer = lagrange_matrix(field, code.client_points[:-1], code.data_points)
    wrong = field.sum(field.matmul(fewer, answers[:, :-1]), 1)
    assert as_fractions(local, field.lift(wrong)) != expected


@pytest.mark.parametrize(("squares", "degrees"), [(0, (2, 4, 6, 8)), (1, (4, 24, 124)), (2, (8, 112))])
def test_degrees_of_dense_networks_follow_the_formula(squares, degrees):
    network = mlp([2] * (squares + 2), input_bits=4, weight_bits=10)
    assert tuple(LocalSteps(network, s + 1, 0, 1).degree for s in range(len(degrees))) == degrees
    before = 0
    for degree in degrees:
        assert degree == 2 ** (squares + 1) + (2 ** (squares + 2) - 3) * before
        before = degree


def test_one_step_is_the_gradient_times_its_rate():
    network, rng = network_of("one square"), random.Random(3)
    local = LocalSteps(network, 1, rate_shift=7, batch_size=4)
    weights, rows = drawn(network, 1, 4, 1, rng)
    exact, size = Integers(), network.input_size
    coded = exact.embed(rows.swapaxes(0, 1))
    gradient = network.gradient(exact, weights, coded[..., :size], coded[..., size:])
    moved = answers_in(exact, local, weights, 5, coded)
    assert (moved == 5 * gradient).all()
    assert local.scales == tuple(2 * network.out_scale - p.place.weight_bits + 7 for p in network.parameters)


def test_a_rate_of_zero_moves_nothing():
    local = LocalSteps(network_of("one square"), 2, rate_shift=7, batch_size=4)
    weights, rows = drawn(local.network, 2, 4, 1, random.Random(3))
    assert not answers_in(Integers(), local, weights, 0, Integers().embed(rows.swapaxes(0, 1))).any()


def test_move_scales_are_the_powers_of_two_of_each_layer():
    local = LocalSteps(network_of("one square"), 2, rate_shift=7, batch_size=4)
    first, second = local.network.parameters
    assert local.scales[0] != local.scales[1]
    scales = local.move_scales
    assert (scales[: first.bias.stop] == 2.0 ** local.scales[0]).all()
    assert (scales[second.weight.start :] == 2.0 ** local.scales[1]).all()


def test_shapes_alone_are_enough_to_plan():
    local = LocalSteps(network_of("conv and square"), 2, rate_shift=7, batch_size=4)
    inputs, targets = Outline((1, 5, 8, 9)), Outline((1, 5, 8, 1))
    weights = torch.zeros(local.network.num_parameters, dtype=torch.int64)
    assert local.move(Shapes(), weights, 1, inputs, targets).shape == (1, 5, local.network.num_parameters)


@pytest.mark.parametrize(
    "bad", [{"num_steps": 0}, {"rate_shift": -1}, {"batch_size": 0}, {"num_shards": 0}, {"largest_multiplier": -1}]
)
def test_impossible_steps_are_refused(bad):
    with pytest.raises(UsageError, match="cannot be computed"):
        LocalSteps(**{"network": network_of("dense"), "num_steps": 2, "rate_shift": 3, "batch_size": 2, **bad})


def test_rows_that_make_no_batches_are_refused():
    local = LocalSteps(network_of("dense"), 2, rate_shift=3, batch_size=2)
    inputs, targets = Outline((1, 1, 3, 3)), Outline((1, 1, 3, 2))
    with pytest.raises(UsageError, match="3 rows cannot be 2 mini-batches"):
        local.move(Shapes(), torch.zeros(8, dtype=torch.int64), 1, inputs, targets)
