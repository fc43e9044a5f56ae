"""Parts of the coordinator's step on a GPU in one pass each, in Triton: the same bits as torch's operations.

Every operation is a single IEEE operation in float64, in the order that the torch form has. So multiplications and
additions are not fused (`enable_fp_fusion=False`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_LEVELS = 16  # values that one sum of squares adds: four levels of the tree

FEWEST = 2**20  # values from which these kernels are worth a compilation


@triton.jit
def _step_kernel(
    integers: tl.tensor,
    update: tl.tensor,
    scales: tl.tensor,
    noise: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    before = tl.load(integers + place, mask=inside, other=0).to(tl.float64)
    scaled = tl.load(update + place, mask=inside, other=0) * tl.load(scales + place, mask=inside, other=0)
    down = tl.floor(scaled)
    up = (tl.load(noise + place, mask=inside, other=0) < scaled - down).to(tl.float64)
    tl.store(out + place, before - (down + up), mask=inside)


def stepped_integers(integers: Tensor, update: Tensor, scales: Tensor, noise: Tensor) -> Tensor:
    """integers − Q(scales·update) as float64, all (P,) on one GPU; `quantize` says what Q is."""
    count = update.numel()
    out = torch.empty_like(update)
    grid = (triton.cdiv(count, _BLOCK),)
    tensors = (x.contiguous() for x in (integers, update, scales, noise))
    _step_kernel[grid](*tensors, out, count, BLOCK=_BLOCK, enable_fp_fusion=False)
    return out


@triton.jit
def _square_at(values: tl.tensor, place: tl.tensor, count: tl.tensor, inside: tl.tensor) -> tl.tensor:
    value = tl.load(values + place, mask=inside & (place < count), other=0.0)
    return value * value


@triton.jit
def _squares_kernel(
    values: tl.tensor, out: tl.tensor, count: tl.tensor, part: tl.tensor, BLOCK: tl.constexpr
) -> None:  # fmt: skip
    """out[i] = the sum of the squares at i + j·part, j < 16, added as four levels of a tree."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < part
    total = tl.zeros((BLOCK,), tl.float64)
    for j in tl.static_range(2):
        third = tl.zeros((BLOCK,), tl.float64)
        for k in tl.static_range(2):
            second = tl.zeros((BLOCK,), tl.float64)
            for m in tl.static_range(2):
                low = i + (j + 2 * k + 4 * m) * part
                pair = _square_at(values, low, count, inside) + _square_at(values, low + 8 * part, count, inside)
                second = pair if m == 0 else second + pair
            third = second if k == 0 else third + second
        total = third if j == 0 else total + third
    tl.store(out + i, total, mask=inside)


def squares_by_sixteen(values: Tensor) -> Tensor:
    """The first four levels of the balanced tree of squares of values (P,): (size/16,), size the next power of two."""
    count = values.numel()
    part = (1 << max(0, (count - 1).bit_length())) // _LEVELS
    out = torch.empty(part, dtype=torch.float64, device=values.device)
    _squares_kernel[(triton.cdiv(part, _BLOCK),)](
        values.contiguous(), out, count, part, BLOCK=_BLOCK, enable_fp_fusion=False
    )
    return out
