"""Operations on float64 residues with their reduction in one pass, on a GPU, in Triton: the same bits as torch's steps.

Notation as in `residues`: x − p·round(x·(1/p)), for integers |x| < 2^53 − 2^25. Torch takes four passes over memory for
a product and its reduction, and a launch for each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .lift_triton import _rounded

_BLOCK = 1024


@triton.jit
def _reduced(x: tl.tensor, p: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    return x - _rounded(x * inverse) * p


@triton.jit
def _reduce_kernel(
    values: tl.tensor, moduli: tl.tensor, inverses: tl.tensor, columns: tl.tensor, BLOCK: tl.constexpr
) -> None:  # fmt: skip
    channel = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    x = tl.load(values + channel * columns + place, mask=inside, other=0.0)
    x = _reduced(x, tl.load(moduli + channel), tl.load(inverses + channel))
    tl.store(values + channel * columns + place, x, mask=inside)


@triton.jit
def _elementwise_kernel(
    left: tl.tensor,
    right: tl.tensor,
    out: tl.tensor,
    moduli: tl.tensor,
    inverses: tl.tensor,
    columns: tl.tensor,
    right_columns: tl.tensor,
    OPERATION: tl.constexpr,
    REPEATED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    channel = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    a = tl.load(left + channel * columns + place, mask=inside, other=0.0)
    place_right = place % right_columns if REPEATED else place
    b = tl.load(right + channel * right_columns + place_right, mask=inside, other=0.0)
    if OPERATION == 0:
        total = a + b
    elif OPERATION == 1:
        total = a - b
    else:
        total = a * b
    total = _reduced(total, tl.load(moduli + channel), tl.load(inverses + channel))
    tl.store(out + channel * columns + place, total, mask=inside)


_OPERATIONS = {"add": 0, "sub": 1, "mul": 2}


def _grid(columns: int, channels: int) -> tuple[int, int]:
    return triton.cdiv(columns, _BLOCK), channels


def reduce_(x: Tensor, moduli: Tensor, inverses: Tensor) -> Tensor:
    """`residues.reduce_` of contiguous x (M,...) float64, in place."""
    columns = x.numel() // len(moduli)
    if columns:
        _reduce_kernel[_grid(columns, len(moduli))](x, moduli, inverses, columns, BLOCK=_BLOCK, enable_fp_fusion=False)
    return x


def elementwise(operation: str, left: Tensor, right: Tensor, moduli: Tensor, inverses: Tensor) -> Tensor | None:
    """left + right, left − right or left · right, reduced: (M,...), and right of that shape, (M,1,...,n) or (M,1,...).

    None where right broadcasts in another way.
    """
    channels = len(moduli)
    if left.shape[0] != channels or right.shape[0] != channels or not left.numel():
        return None
    columns, right_columns, last = left.numel() // channels, right.numel() // channels, left.shape[-1]
    alike = right.shape == left.shape
    repeated = right.dim() == left.dim() and right_columns in (1, last) and right.shape[-1] == right_columns
    if not (alike or repeated):
        return None
    out = torch.empty(left.shape, dtype=torch.float64, device=left.device)
    factors = left.contiguous(), right.contiguous()
    how = {"OPERATION": _OPERATIONS[operation], "REPEATED": not alike, "BLOCK": _BLOCK, "enable_fp_fusion": False}
    _elementwise_kernel[_grid(columns, channels)](*factors, out, moduli, inverses, columns, right_columns, **how)
    return out
