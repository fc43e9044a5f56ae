"""The gradient of a chain of dense layers and quadratic activations on a CPU, in one compiled call."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dresfl.kernels import residues as _residues

from .sharing import share

_EXACT = _residues.exact_inner_length(1, 1)
_START = 2**24  # the most that a sum starts from
_LARGE = 2**20  # multiplications from which threads share a call


class ChainStep(NamedTuple):
    """One step of a chain, from `inputs` to `outputs` values a row.

    affine: z = x @ W + b·integer, with W (inputs,outputs) and then b from place `start` of the weights on;
    else: z = x² + integer·x. The integer is of any size.
    """

    affine: bool
    inputs: int
    outputs: int
    start: int
    integer: int


@lru_cache(maxsize=64)
def _table(steps: tuple[ChainStep, ...], kernels: Any) -> tuple[Tensor, int]:
    """The steps as the kernel reads them, (S,6) int64, and how many values the packed matrices take."""
    rows, size, below = [], 0, False
    for step in steps:
        forward = transpose = -1
        if step.affine:
            forward, size = size, size + step.inputs * _padded(step.outputs, kernels.LANES)
            if below:  # the lowest layer with weights passes nothing down
                transpose, size = size, size + step.outputs * _padded(step.inputs, kernels.LANES)
            below = True
        kind = kernels.AFFINE if step.affine else kernels.ACTIVATION
        rows.append([kind, step.inputs, step.outputs, step.start, forward, transpose])
    return torch.tensor(rows), size


def _padded(count: int, lanes: int) -> int:
    return -(-count // lanes) * lanes


class Coded(NamedTuple):
    """Coded rows: inputs (M,N,B,F) and targets (M,N,B,C)."""

    inputs: Tensor
    targets: Tensor


class Encoded(NamedTuple):
    """Coded rows that need not be in memory: Σ_j matrix[m,n,j]·rows[j], matrix (M,N,R), each row (M,B,W).

    The first `num_inputs` values of a row are inputs, the others are targets.
    """

    matrix: Tensor
    rows: Sequence[Tensor]
    num_inputs: int


def chain_gradient(
    kernels: Any,
    steps: tuple[ChainStep, ...],
    factors: Tensor,
    target_factors: Tensor,
    weights: Tensor,
    coded: Coded | Encoded,
    moduli: Tensor,
    inverses: Tensor,
    bound: int,
) -> Tensor | None:
    """∇_w ‖f(X) − t·Y‖², summed over the coded rows of N clients -> (M,N,P), reduced.

    kernels: the compiled ones. factors (M,S), target_factors (M,): the residues of the steps' integers and of t.
    weights (P,) int64. bound: no |residue| is larger. None if the weights are too large for one exact product.
    """
    table, size = _table(steps, kernels)
    weights, factors, target_factors = weights.contiguous(), factors.contiguous(), target_factors.contiguous()
    packed = torch.empty(size, dtype=torch.float64)
    largest = kernels.pack_weights(len(steps), table.data_ptr(), weights.data_ptr(), packed.data_ptr())
    public_terms, secret_terms = ((_EXACT - _START) // (bound * max(1, most)) for most in (largest, bound))
    if public_terms < 1 or secret_terms < 2:
        return None
    parameters = weights.numel()
    if isinstance(coded, Encoded):
        (channels, clients, hidden), (rows, width) = coded.matrix.shape, coded.rows[0].shape[1:]
        matrix, table_of_rows = coded.matrix.contiguous(), rows_table(coded.rows)
        strides, places = [0, 0, 8 * width] * 2, (0, 8 * coded.num_inputs)
        encoding = table_of_rows.data_ptr(), matrix.data_ptr()
    else:
        (channels, clients, rows), hidden = coded.inputs.shape[:3], 0
        strides = [8 * stride for x in coded for stride in x.stride()[:3]]
        places, encoding = (coded.inputs.data_ptr(), coded.targets.data_ptr()), (0, 0)
    out = torch.empty((channels, clients, parameters), dtype=torch.float64)
    numbers = clients, rows, len(steps), parameters, public_terms, secret_terms, *strides, hidden
    tensors = table, factors, moduli, inverses, target_factors, weights, packed
    addresses = *[tensor.data_ptr() for tensor in tensors], *places, *encoding, out.data_ptr()
    large = channels * clients * rows * parameters >= _LARGE
    share(kernels.chain_gradient, channels * clients, large, (*numbers, *addresses))
    return out


def rows_table(rows: Sequence[Tensor]) -> Tensor:
    """(R,2) int64: where each row (M,...) begins, and the bytes from one channel to the next."""
    return torch.tensor([[row.data_ptr(), 8 * row.stride(0)] for row in rows])
