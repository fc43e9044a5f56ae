"""Operations on float64 residues on a GPU are torch's, bit for bit. Without a GPU, Triton's interpreter runs them."""

import os

import pytest
import torch

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from dresfl.kernels import residues  # noqa: E402
from dresfl.kernels.float_triton import elementwise, reduce_  # noqa: E402

from .test_int8_triton import numpy_scalars  # noqa: E402, F401

DEVICE = "cuda" if CUDA else "cpu"
MODULI = torch.tensor([16777183.0, 16777199.0, 16777213.0], dtype=torch.float64)
OPERATIONS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}


def integers(shape, most, seed=0):
    drawn = torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(torch.float64)


def on_device(*tensors):
    return (x.to(DEVICE) for x in tensors)


@pytest.mark.parametrize("shape", [(3, 2, 700), (3, 1), (3, 0)])
def test_a_reduction_is_torchs(shape):
    x = integers(shape, 2**53 - 2**25)
    wanted = residues.reduce_(x.clone(), MODULI, 1 / MODULI)
    assert reduce_(*on_device(x.clone(), MODULI, 1 / MODULI)).cpu().equal(wanted)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("right", [(3, 2, 5, 70), (3, 1, 1, 70), (3, 1, 1, 1)])
def test_an_operation_is_torchs(operation, right):
    a, b = integers((3, 2, 5, 70), 2**23 + 2, 1), integers(right, 2**23 + 2, 2)
    wanted = residues.reduce_(OPERATIONS[operation](a, b), MODULI, 1 / MODULI)
    assert elementwise(operation, *on_device(a, b, MODULI, 1 / MODULI)).cpu().equal(wanted)
    assert residues.combine(operation, a, b, MODULI, 1 / MODULI).equal(wanted)


def test_transposed_factors_are_read_in_their_order():
    a, b = integers((3, 6, 4), 2**23, 3).swapaxes(1, 2), integers((3, 4, 6), 2**23, 4)
    wanted = residues.reduce_((a * b).contiguous(), MODULI, 1 / MODULI)
    assert elementwise("mul", *on_device(a, b, MODULI, 1 / MODULI)).cpu().equal(wanted)


@pytest.mark.parametrize("right", [(3, 5, 1, 70), (3, 2, 5, 1), (1, 2, 5, 70)])
def test_other_broadcasts_are_left_to_torch(right):
    a, b = integers((3, 2, 5, 70), 9), integers(right, 9)
    assert elementwise("add", *on_device(a, b, MODULI, 1 / MODULI)) is None


@pytest.mark.parametrize("inner", [5, 384, 301, 300])
@pytest.mark.parametrize("shared", [False, True])
def test_a_long_product_at_once_is_the_one_in_steps(inner, shared):
    left, right = integers((3, 2, 4, inner), 2**23, 5), integers((3, 2, inner, 7), 2**23, 6)
    right = right[0, 0] if shared else right
    step = residues.exact_inner_length(2**23, 2**23)
    wanted = residues.matmul(left, right, MODULI, 1 / MODULI, 2**23, 2**23)
    found = residues.matmul_at_once(left, right, MODULI, 1 / MODULI, step)
    assert residues.canonical_(found, MODULI).equal(residues.canonical_(wanted, MODULI))
