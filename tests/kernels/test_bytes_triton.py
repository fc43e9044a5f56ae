"""Elementwise operations and narrow products of bytes agree with int64 ones, on a GPU or in the Triton interpreter."""

import pytest
import torch

from .test_int8_triton import PRIMES, moduli_of, numpy_scalars, product, symmetric, uniform  # noqa: F401

# that line skips where there is no Triton, and sets up its interpreter before it is imported
from dresfl.kernels import bytes_triton  # isort: skip

OPERATIONS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", [(5, 2, 3, 7), (5, 1, 1, 7), (5, 1, 1, 1)])
def test_elementwise(operation, shape):
    left, right = uniform((5, 2, 3, 7), PRIMES), uniform(shape, PRIMES, seed=1)
    found = bytes_triton.elementwise(operation, left, right, moduli_of(PRIMES))
    exact = OPERATIONS[operation](left.cpu().long(), right.cpu().long())
    assert torch.equal(found.cpu().long(), symmetric(exact, PRIMES))


def test_elementwise_of_every_pair():
    p = 251
    every = torch.arange(-125, 126, dtype=torch.int8, device=moduli_of((p,)).device)
    left, right = every.repeat_interleave(251).view(1, -1), every.repeat(251).view(1, -1)
    for operation, exact in OPERATIONS.items():
        found = bytes_triton.elementwise(operation, left, right, moduli_of((p,)))
        assert torch.equal(found.cpu().long(), symmetric(exact(left.cpu().long(), right.cpu().long()), (p,)))


def test_other_broadcasts_are_left_to_others():
    left, right = uniform((5, 2, 3, 7), PRIMES), uniform((5, 2, 3, 1), PRIMES)
    assert bytes_triton.elementwise("add", left, right, moduli_of(PRIMES)) is None


def test_which_products_have_few_rows():
    moduli = moduli_of(PRIMES)
    many = uniform((5, 2, 4096), PRIMES)
    assert bytes_triton.has_few_rows(uniform((5, 9, 2), PRIMES), many, moduli)
    assert not bytes_triton.has_few_rows(uniform((5, 64, 2), PRIMES), many, moduli)
    assert not bytes_triton.has_few_rows(uniform((5, 9, 2), PRIMES), many[..., :4095], moduli)
    assert not bytes_triton.has_few_rows(uniform((5, 9, 3), PRIMES), many, moduli)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (9, 2, 3000), (1, 9, 2048), (3, 20, 50)])
def test_products_of_few_rows(rows, inner, columns):
    left, right = uniform((5, rows, inner), PRIMES), uniform((5, inner, columns), PRIMES, seed=1)
    found = bytes_triton.few_rows_product(left, right, moduli_of(PRIMES))
    assert torch.equal(found.cpu().long(), product(left, right, PRIMES))
