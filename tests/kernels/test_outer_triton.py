"""Products with a short inner axis agree with int64 ones, on a GPU or in the Triton interpreter."""

import pytest
import torch

from .test_int8_triton import PRIMES, moduli_of, numpy_scalars, product, symmetric, uniform  # noqa: F401

# those lines skip where there is no Triton, and set up its interpreter before it is imported
from dresfl.kernels import int8_triton, outer_triton  # isort: skip
from dresfl.kernels.int8_triton import matmul_int8  # isort: skip


@pytest.fixture(autouse=True)
def always_outer(monkeypatch):
    monkeypatch.setattr(int8_triton, "_use_outer", lambda *_: True)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (128, 64, 128), (256, 64, 144), (130, 17, 63), (150, 100, 200), (1500, 8, 16)]
)
def test_every_shape(m, n, k):
    left, right = uniform((5, m, n), PRIMES), uniform((5, n, k), PRIMES, seed=1)
    got = matmul_int8(left, right, moduli_of(PRIMES))
    assert torch.equal(got.cpu().long(), product(left, right, PRIMES))


@pytest.mark.parametrize("n", [64, 128])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums(n, sign):
    ends = torch.tensor([p // 2 for p in PRIMES], dtype=torch.int8).view(-1, 1, 1).to(moduli_of(PRIMES).device)
    left, right = ends.expand(5, 4, n), (sign * ends).expand(5, n, 16)
    got = matmul_int8(left, right, moduli_of(PRIMES))
    assert torch.equal(got.cpu().long(), product(left, right, PRIMES))


def test_transposed_factors_of_several_clients():
    rows, deltas = uniform((5, 3, 20, 40), PRIMES), uniform((5, 3, 20, 24), PRIMES, seed=1)
    got = matmul_int8(rows.swapaxes(-1, -2), deltas, moduli_of(PRIMES))
    exact = rows.swapaxes(-1, -2).cpu().long() @ deltas.cpu().long()
    assert torch.equal(got.cpu().long(), symmetric(exact, PRIMES))


def test_every_sum_is_reduced_exactly():
    """Every sum that 128 products modulo 251 can have, as one product of two numbers each."""
    p = 251
    left = torch.arange(-125, 126, dtype=torch.int8).view(1, -1, 1).to(moduli_of((p,)).device)
    for n in (1, 2, 127):  # the same product n times
        repeated = left.expand(1, 251, n)
        right = left.mT.expand(1, n, 251)
        got = matmul_int8(repeated, right, moduli_of((p,)))
        assert torch.equal(got.cpu().long(), symmetric(repeated.cpu().long() @ right.cpu().long(), (p,)))


def test_which_products_it_serves():
    assert outer_triton.fits(29, 9, 25088, 64, 4096)
    assert not outer_triton.fits(29, 9, 25088, 129, 4096)
    assert not outer_triton.fits(29, 9, 25088, 64, 10)
