"""The float64 kernels are exact up to their stated bounds."""

import random

import flint
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.kernels import SLACK, canonical_, exact_inner_length, matmul, reduce_

PRIMES = (3, 5, 7, 23, 251, 257, 65521, 4194301, 6780383, 16777213)
LIMIT = 2**53 - 2**25


def per_prime(primes):
    moduli = torch.tensor(primes, dtype=torch.float64)
    return moduli, 1 / moduli


def bound_of(primes):
    return max(primes) // 2 + 1 + SLACK


def near(bound, shape, rng, signs=(1, -1)):
    values = [rng.choice(signs) * (bound - rng.randrange(4)) for _ in range(int(np.prod(shape)))]
    return torch.tensor(values, dtype=torch.float64).view(shape)


def flint_product(left, right, p):
    """left (m,n) @ right (n,k) modulo p, as a list."""
    a = flint.nmod_mat(*left.shape, [int(x) for x in left.flatten()], p)
    b = flint.nmod_mat(*right.shape, [int(x) for x in right.flatten()], p)
    return [int(x) for x in (a * b).entries()]


def assert_residues(result, primes, expected):
    """Each channel symmetric within the slack, integer-valued, and equal to `expected` modulo its prime."""
    for channel, p, want in zip(result, primes, expected, strict=True):
        assert channel.eq(channel.round()).all()
        assert channel.abs().max() <= p / 2 + SLACK
        assert [int(x) % p for x in channel.flatten().tolist()] == [x % p for x in want]


@pytest.mark.parametrize("primes", [(16777213,), (4194301,), (3, 251, 16777183, 16777213), (6780383, 16777213)])
@pytest.mark.parametrize("signs", [(1,), (-1,), (1, -1)])
@pytest.mark.parametrize("past", [0, 1, 127, 128, 255])
def test_matmul_is_exact_at_the_bound(primes, signs, past):
    rng = random.Random(repr((primes, signs, past)))
    bound = bound_of(primes)
    inner = exact_inner_length(bound, bound) + past
    left = near(bound, (len(primes), 2, inner), rng)
    right = near(bound, (len(primes), inner, 3), rng, signs) * (left[:, :1].sign().swapaxes(1, 2))
    got = matmul(left, right, *per_prime(primes), bound, bound)
    assert_residues(got, primes, [flint_product(x, y, p) for x, y, p in zip(left, right, primes, strict=True)])


def test_matmul_of_constant_extremes_agrees_with_python_integers():
    p = 16777213
    bound = bound_of((p,))
    for inner in (127, 128, 381, 382):
        for sign in (1, -1):
            left = torch.full((1, 1, inner), float(bound), dtype=torch.float64)
            right = torch.full((1, inner, 1), float(sign * bound), dtype=torch.float64)
            got = matmul(left, right, *per_prime((p,)), bound, bound)
            assert_residues(got, (p,), [[sign * inner * bound * bound]])


@pytest.mark.parametrize("right_bound", [1, 1000, 2**20, 2**29, 2**30 - 200])
def test_matmul_with_one_right_factor_for_all_channels(right_bound):
    rng = random.Random(right_bound)
    primes = (251, 4194301, 16777213)
    left_bound = bound_of(primes)
    step = exact_inner_length(left_bound, right_bound)
    inner = min(400, 3 * step + 1)
    left = near(left_bound, (3, 2, 4, inner), rng)
    right = torch.tensor([[rng.randint(-right_bound, right_bound) for _ in range(2)] for _ in range(inner)])
    right[0], right[-1] = right_bound, -right_bound
    right = right.to(torch.float64)
    got = matmul(left, right, *per_prime(primes), left_bound, right_bound)
    assert got.shape == (3, 2, 4, 2)
    expected = [flint_product(x.reshape(8, inner), right, p) for x, p in zip(left, primes, strict=True)]
    assert_residues(got, primes, expected)


@pytest.mark.parametrize("inner", [5, 127, 128, 300])
def test_matmul_batches_over_leading_axes(inner):
    rng = random.Random(inner)
    primes = (23, 16777213)
    bound = bound_of(primes)
    left, right = near(bound, (2, 3, 2, 4, inner), rng), near(bound, (2, 3, 2, inner, 2), rng)
    got = matmul(left, right, *per_prime(primes), bound, bound)
    assert got.shape == (2, 3, 2, 4, 2)
    for i in range(3):
        for j in range(2):
            expected = [flint_product(left[c, i, j], right[c, i, j], p) for c, p in enumerate(primes)]
            assert_residues(got[:, i, j], primes, expected)


def test_matmul_leaves_its_factors_alone():
    rng = random.Random(3)
    left, right = near(8388609, (1, 2, 300), rng), near(8388609, (1, 300, 2), rng)
    before = left.clone(), right.clone()
    matmul(left, right, *per_prime((16777213,)), 8388609, 8388609)
    assert left.equal(before[0])
    assert right.equal(before[1])


def test_matmul_over_nothing_is_zero():
    got = matmul(torch.ones(1, 2, 0).double(), torch.ones(1, 0, 3).double(), *per_prime((251,)), 128, 128)
    assert got.equal(torch.zeros(1, 2, 3, dtype=torch.float64))


def test_matmul_without_one_exact_product_is_refused():
    with pytest.raises(ValueError, match="no exact float64 product"):
        matmul(torch.ones(1, 1, 1).double(), torch.ones(1, 1, 1).double(), *per_prime((251,)), 2**23, 2**30)


@given(st.integers(0, 2**30), st.integers(0, 2**30))
def test_exact_inner_length_is_the_longest(left_bound, right_bound):
    length = exact_inner_length(left_bound, right_bound)
    largest = max(1, left_bound * right_bound)
    assert length * largest <= LIMIT < (length + 1) * largest


def test_largest_modulus_leaves_127_products():
    assert exact_inner_length(bound_of((16777213,)), bound_of((16777213,))) == 127


def extremes(p):
    """Multiples of p, half-way points and their neighbours, near 0 and near ±(2^53 − 2^25)."""
    top = (LIMIT - 1) // p
    multiples = {0, 1, 2, top, top - 1, top // 2, top // 3 | 1, top // 2 + 1}
    offsets = {0, 1, 2, p // 2 - 1, p // 2, p // 2 + 1, p - 1}
    values = {k * p + d for k in multiples for d in offsets} | {LIMIT - 1, LIMIT - 2, LIMIT - p}
    return sorted({s * v for v in values if v < LIMIT for s in (1, -1)})


@pytest.mark.parametrize("p", PRIMES)
def test_reduce_is_congruent_and_bounded_at_the_extremes(p):
    values = extremes(p)
    got = reduce_(torch.tensor([values], dtype=torch.float64), *per_prime((p,)))
    assert_residues(got, (p,), [values])


@given(st.sampled_from(PRIMES), st.lists(st.integers(1 - LIMIT, LIMIT - 1), min_size=1, max_size=50))
def test_reduce_is_congruent_and_bounded(p, values):
    got = reduce_(torch.tensor([values], dtype=torch.float64), *per_prime((p,)))
    assert_residues(got, (p,), [values])


def test_reduce_works_in_place_per_channel():
    x = torch.tensor([[[100.0], [7.0]], [[100.0], [7.0]]], dtype=torch.float64)
    assert reduce_(x, *per_prime((7, 23))) is x
    assert x.tolist() == [[[2.0], [0.0]], [[8.0], [7.0]]]


@pytest.mark.parametrize("p", PRIMES)
def test_canonical_is_the_symmetric_representative(p):
    edge = p // 2 + SLACK
    values = list(range(-edge, edge + 1)) if p < 300 else [s * (edge - d) for d in range(9) for s in (1, -1)]
    x = torch.tensor([values], dtype=torch.float64)
    assert canonical_(x, torch.tensor([float(p)], dtype=torch.float64)) is x
    assert x[0].tolist() == [(v + p // 2) % p - p // 2 for v in values]
