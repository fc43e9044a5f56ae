"""What a network and a code do with int8 residues besides large products, on a GPU, one pass each, in Triton.

Notation as in `int8_triton`: residues are symmetric, |r| ≤ (p−1)/2 ≤ 125, one prime below 256 for each channel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .int8_triton import _residues

_BLOCK = 2048

MOST_ROWS = 63  # of the left factor, and of the right one, that `few_rows_product` is made for
FEWEST_COLUMNS = 2**12


@triton.jit
def _few_rows(
    left: tl.tensor,
    right: tl.tensor,
    out: tl.tensor,
    moduli: tl.tensor,
    rows: tl.tensor,
    inner: tl.tensor,
    columns: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    channel = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    p = tl.load(moduli + channel)
    for row in range(rows):
        total = tl.zeros((BLOCK,), tl.int32)
        for k in range(inner):
            factor = tl.load(left + (channel * rows + row) * inner + k).to(tl.int32)
            values = tl.load(right + (channel * inner + k) * columns + place, mask=inside, other=0)
            total += factor * values.to(tl.int32)
        tl.store(out + (channel * rows + row) * columns + place, _residues(total, p), mask=inside)


def has_few_rows(left: Tensor, right: Tensor, moduli: Tensor) -> bool:
    """Whether `few_rows_product` serves this product: a matrix of few rows times one of few rows and many columns."""
    if not left.dim() == right.dim() == 3 or not left.shape[0] == right.shape[0] == len(moduli):
        return False
    few = min(left.shape) > 0 and max(left.shape[1:]) <= MOST_ROWS and left.shape[2] == right.shape[1]
    return few and right.shape[2] >= FEWEST_COLUMNS


def few_rows_product(left: Tensor, right: Tensor, moduli: Tensor) -> Tensor:
    """left (M,m,n) @ right (M,n,k) for a few rows m and n, and many columns: what encoding and decoding are."""
    (channels, rows, inner), columns = left.shape, right.shape[2]
    out = torch.empty((channels, rows, columns), dtype=torch.int8, device=right.device)
    grid = (triton.cdiv(columns, _BLOCK), channels)
    _few_rows[grid](left.contiguous(), right.contiguous(), out, moduli, rows, inner, columns, BLOCK=_BLOCK)
    return out


@triton.jit
def _elementwise(
    left: tl.tensor,
    right: tl.tensor,
    out: tl.tensor,
    moduli: tl.tensor,
    columns: tl.tensor,
    right_columns: tl.tensor,
    OPERATION: tl.constexpr,
    REPEATED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    channel = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    p = tl.load(moduli + channel)
    a = tl.load(left + channel * columns + place, mask=inside, other=0).to(tl.int32)
    place_right = place % right_columns if REPEATED else place
    b = tl.load(right + channel * right_columns + place_right, mask=inside, other=0).to(tl.int32)
    if OPERATION == 0:
        total = a + b
    elif OPERATION == 1:
        total = a - b
    else:
        total = a * b
    tl.store(out + channel * columns + place, _residues(total, p), mask=inside)


_OPERATIONS = {"add": 0, "sub": 1, "mul": 2}


def elementwise(operation: str, left: Tensor, right: Tensor, moduli: Tensor) -> Tensor | None:
    """left + right, left − right or left · right, reduced: (M,...), and right of that shape, (M,1,...,n) or (M,1,...).

    None where right broadcasts in another way.
    """
    channels, columns = left.shape[0], left.numel() // left.shape[0]
    last = left.shape[-1]
    right_columns = right.numel() // channels if right.shape[0] == channels else 0
    alike = right.shape == left.shape
    repeated = right.dim() == left.dim() and right_columns in (1, last) and right.shape[-1] == right_columns
    if not (alike or repeated) or channels != len(moduli) or columns >= 2**31 - _BLOCK:
        return None
    out = torch.empty(left.shape, dtype=torch.int8, device=left.device)
    grid = (triton.cdiv(columns, _BLOCK), channels)
    factors = left.contiguous(), right.contiguous()
    how = {"OPERATION": _OPERATIONS[operation], "REPEATED": not alike, "BLOCK": _BLOCK}
    _elementwise[grid](*factors, out, moduli, columns, right_columns, **how)
    return out
