"""Reals become integers by the stated formula, or are refused."""

import math
import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import DataError, HeadroomAlarm, UsageError
from dresfl.field import Domain, PublicStream
from dresfl.quantize import (
    Quantizer,
    gradient_reals,
    stepped_integers,
    stochastic_round,
    update_integers,
    weight_integers,
    weight_reals,
)


@given(
    bits=st.integers(0, 16),
    shift=st.integers(-64, 64).map(lambda s: s / 64),
    numerators=st.lists(st.integers(-(2**20), 2**20), min_size=1),
)
def test_integers_are_the_rounded_scaled_shifted_inputs(bits, shift, numerators):
    inputs = [n / 2**18 for n in numerators]
    got = Quantizer(bits, shift).integers(torch.tensor(inputs, dtype=torch.float64))
    assert got.dtype == torch.int32
    assert got.tolist() == [round((Fraction(x) + Fraction(shift)) * 2**bits) for x in inputs]


@given(
    bits=st.integers(0, 16),
    inputs=st.lists(st.floats(-15, 15, width=32) | st.integers(-30, 30).map(lambda n: n / 2), min_size=1),
    dtype=st.sampled_from([torch.float16, torch.float32]),
)
def test_float16_and_float32_inputs_give_the_integers_of_float64(bits, inputs, dtype):
    few_bits = torch.tensor(inputs, dtype=dtype)
    got = Quantizer(bits).integers(few_bits)
    assert got.dtype == torch.int32
    assert torch.equal(got, Quantizer(bits).integers(few_bits.double()))
    assert got.tolist() == [round(Fraction(x) * 2**bits) for x in few_bits.tolist()]


def test_rounding_is_to_nearest_and_ties_to_even():
    inputs = torch.tensor([0.49, 0.5, 0.51, 1.5, 2.5, -0.5, -0.51, -1.5, -2.5])
    assert Quantizer(0).integers(inputs).tolist() == [0, 0, 1, 2, 2, 0, -1, -2, -2]


def test_shift_moves_data_before_scaling():
    assert Quantizer(input_bits=3, shift=2.0).integers(torch.tensor([-1.0, 0.0])).tolist() == [8, 16]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.float64])
def test_inputs_of_any_type(dtype):
    got = Quantizer(4, 1.0).integers(torch.tensor([[0, 255]], dtype=dtype))
    assert got.tolist() == [[16, 4096]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 4])
def test_nan_and_infinity_are_refused(bad, place):
    inputs = torch.zeros(5)
    inputs[place] = bad
    with pytest.raises(DataError, match="NaN or infinite"):
        Quantizer(4).integers(inputs)


@pytest.mark.parametrize("bits", [0, 4, 16])
@pytest.mark.parametrize("sign", [1, -1])
def test_inputs_too_large_are_refused(bits, sign):
    edge = sign * 2.0 ** (20 - bits)
    inside = torch.tensor([0.0, edge * (1 - 2**-30)], dtype=torch.float64)
    assert Quantizer(bits).integers(inside).tolist() == [0, sign * 2**20]
    with pytest.raises(DataError, match="does not fit"):
        Quantizer(bits).integers(torch.tensor([0.0, edge]))
    with pytest.raises(DataError, match="does not fit"):
        Quantizer(bits, shift=edge).integers(torch.tensor([0.0]))


def test_no_inputs():
    assert Quantizer(4).integers(torch.empty(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("bits", [-1, 17])
def test_input_bits_out_of_range_are_refused(bits):
    with pytest.raises(UsageError, match="input_bits"):
        Quantizer(bits)


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1), st.integers(1, 24))
def test_weight_reals_and_integers_are_inverse(integers, bits):
    scales = torch.full((len(integers),), 2.0**bits, dtype=torch.float64)
    reals = weight_reals(torch.tensor(integers), scales)
    assert reals.dtype == torch.float64
    assert reals.tolist() == [x / 2**bits for x in integers]
    back = weight_integers(reals, scales)
    assert back.dtype == torch.int64
    assert back.tolist() == integers


@given(st.lists(st.tuples(st.floats(-100, 100), st.integers(1, 24)), min_size=1))
def test_weight_integers_round_to_nearest(drawn):
    weights, bits = zip(*drawn, strict=True)
    scales = torch.tensor([2.0**b for b in bits], dtype=torch.float64)
    got = weight_integers(torch.tensor(weights, dtype=torch.float64), scales)
    assert got.tolist() == [round(Fraction(w) * 2**b) for w, b in drawn]


def test_a_gradient_is_the_scaled_mean_over_its_rows():
    integers = torch.tensor([3 * 2.0**90, -(2.0**170), 0.0], dtype=torch.float64)
    scales = torch.tensor([2.0**80, 2.0**160, 2.0**80], dtype=torch.float64)
    assert gradient_reals(integers, scales, num_rows=64).tolist() == [48.0, -16.0, 0.0]


def test_a_step_moves_weights_by_the_rounded_update():
    weights, update = torch.tensor([10, 10, -3]), torch.tensor([0.25, 0.25, -0.5], dtype=torch.float64)
    scales = torch.tensor([2.0, 2.0, 4.0], dtype=torch.float64)
    noise = torch.tensor([0.4, 0.6, 0.1], dtype=torch.float64)
    assert stepped_integers(weights, update, scales, noise).tolist() == [9.0, 10.0, -1.0]


@given(st.lists(st.floats(-(2.0**40), 2.0**40), min_size=1, max_size=50), st.integers(0, 1000))
def test_stochastic_round_is_floor_or_the_next(values, index):
    noise = PublicStream(1).uniform(Domain.ROUNDING, index, len(values))
    got = stochastic_round(torch.tensor(values, dtype=torch.float64), noise)
    assert got.dtype == torch.float64
    for value, u, integer in zip(values, noise.tolist(), got.tolist(), strict=True):
        down = math.floor(value)
        assert integer == down + (u < value - down)


def test_stochastic_round_leaves_integers_alone():
    rng = random.Random(1)
    integers = [0, 1, -1, 2**52, -(2**52), *(rng.randint(-(2**45), 2**45) for _ in range(1000))]
    values = torch.tensor(integers, dtype=torch.float64)
    for noise in (torch.full_like(values, 2.0**-33), torch.full_like(values, 1 - 2.0**-33)):
        assert stochastic_round(values, noise).tolist() == integers


def test_stochastic_round_goes_up_only_below_the_fraction():
    values = torch.tensor([0.25, 0.25, 0.25, -0.75, 3.0])
    noise = torch.tensor([0.25, 0.25 - 2**-20, 0.25 + 2**-20, 0.25, 0.0])
    assert stochastic_round(values, noise).tolist() == [0, 1, 0, -1, 3]


@pytest.mark.parametrize("value", [0.5, 0.25, 0.9, 0.003, -0.25, -7.7, 1234.1, -1e6 + 0.37])
def test_stochastic_round_is_unbiased_with_bernoulli_variance(value):
    count = 200_000
    noise = PublicStream(20).uniform(Domain.ROUNDING, abs(int(value * 1000)), count)
    got = stochastic_round(torch.full((count,), value, dtype=torch.float64), noise).to(torch.float64)
    f = value - math.floor(value)
    variance = f * (1 - f)
    assert abs(float((got - value).mean())) < 5 * math.sqrt(variance / count)
    # of (X − z)², X − ⌊z⌋ ~ Bernoulli(f): mean f(1 − f), variance f(1 − f)(1 − 2f)²
    spread = math.sqrt(variance * (1 - 2 * f) ** 2 / count)
    assert abs(float(((got - value) ** 2).mean()) - variance) < 5 * spread + 1e-9


@given(
    bits=st.integers(0, 24),
    limit=st.sampled_from((0.25, 1.0, 3.7)),
    part=st.floats(-1, 1),
    noise=st.floats(0, 1, exclude_min=True, exclude_max=True),
)
def test_updates_are_rounded_within_their_limit(bits, limit, part, noise):
    value = torch.tensor([limit * part], dtype=torch.float64)
    found = int(update_integers(value, bits, limit, torch.tensor([noise], dtype=torch.float64)))
    exact = Fraction(float(value)) * 2**bits
    assert found in (math.floor(exact), math.floor(exact) + 1)
    assert (found > exact) == (noise < exact - math.floor(exact))
    assert abs(found) <= math.ceil(limit * 2**bits)


@pytest.mark.parametrize("sign", [-1, 1])
def test_updates_beyond_their_limit_are_refused(sign):
    half = torch.full((2,), 0.5)
    with pytest.raises(HeadroomAlarm, match=r"exceeds the limit of 1"):
        update_integers(torch.tensor([0.0, 1.001 * sign]), 4, 1.0, half)
    with pytest.raises(DataError, match="NaN"):
        update_integers(torch.tensor([0.0, math.nan]), 4, 1.0, half)
