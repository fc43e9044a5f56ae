"""Sums over packed shares of bits, held against Python integers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dresfl.kernels.cpu import bits

LARGE = (16777183, 16777199, 16777213)


def packed(x, size):
    octets = (x[..., None] >> (8 * np.arange(size)) & 255).astype(np.uint8)
    return octets.reshape(*x.shape[:2], -1)


def expected(x, labels, moduli, sigma, rho, factors):
    """The module's formulas, term by term."""
    (rows, channels, columns), squares, sums = x.shape, [], []
    for m, p in enumerate(moduli[:channels]):
        of_squares = []
        for s in range(len(sigma)):
            total = 0
            for r in range(rows):
                values = [int(v) for v in x[r, m]]
                inner = sum(int(sigma[s, j]) * (v * v - v) for j, v in enumerate(values))
                total += int(rho[s, r]) * (inner + int(sigma[s, columns]) * (sum(values[labels:]) - 1))
            of_squares.append(total % p)
        squares.append(of_squares)
        sums.append(
            [
                sum(int(c[r, j]) * int(x[r, m, j]) for r, j in itertools.product(range(rows), range(columns))) % p
                for c in factors
            ]
        )
    return squares, sums


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 600), st.integers(0, 3), st.integers(0, 3), st.booleans(), st.integers(0, 2**32)
)
def test_sums_are_exact(rows, columns, squares, linear, extreme, seed):
    generator = np.random.default_rng(seed)
    x = np.stack([generator.integers(0, p, (rows, columns)) for p in LARGE], 1)
    if extreme:  # the largest magnitudes that there are
        x[:] = np.array([p // 2 + 1 for p in LARGE])[:, None]
    labels = int(generator.integers(0, columns + 1))
    sigma, rho = generator.integers(0, 2**21, (squares, columns + 1)), generator.integers(0, 2**21, (squares, rows))
    factors = generator.integers(0, 2**21, (linear, rows, columns))
    if extreme:
        sigma[:], rho[:], factors[:] = 2**21 - 1, 2**21 - 1, 2**21 - 1
    arguments = packed(x, 3), labels, LARGE, 3, sigma.astype(np.int32), rho.astype(np.int32), factors.astype(np.int32)
    found = bits.bit_sums(*arguments)
    assert (found[0].tolist(), found[1].tolist()) == expected(x, labels, LARGE, sigma, rho, factors)


def test_more_columns_than_are_summed_before_a_reduction():
    """More than 2^19 columns of the largest magnitude: without a reduction on the way, 63 bits would not hold them."""
    columns = 2**19 + 3
    p = LARGE[-1:]
    x = np.full((1, 1, columns), p[0] // 2)
    factors = np.full((1, 1, columns), 2**21 - 1, dtype=np.int32)
    sigma, rho = np.full((1, columns + 1), 2**21 - 1, dtype=np.int32), np.ones((1, 1), dtype=np.int32)
    found = bits.bit_sums(packed(x, 3), columns, p, 3, sigma, rho, factors)
    value, factor = p[0] // 2, 2**21 - 1
    assert found[0].tolist() == [[factor * (columns * (value * value - value) - 1) % p[0]]]
    assert found[1].tolist() == [[factor * columns * value % p[0]]]


@pytest.mark.parametrize("moduli", [(101, 103), (65519, 65521)])
def test_residues_of_fewer_bytes(moduli):
    generator, size = np.random.default_rng(1), 1 if moduli[-1] < 256 else 2
    x = np.stack([generator.integers(0, p, (2, 9)) for p in moduli], 1)
    sigma, rho = generator.integers(0, 2**21, (2, 10)), generator.integers(0, 2**21, (2, 2))
    factors = generator.integers(0, 2**21, (2, 2, 9))
    found = bits.bit_sums(packed(x, size), 7, moduli, size, sigma, rho, factors)
    assert (found[0].tolist(), found[1].tolist()) == expected(x, 7, moduli, sigma, rho, factors)
