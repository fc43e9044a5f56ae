"""Integers to int8 residues modulo many primes in one pass, on a GPU, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .int8_triton import _residues as residues_of_totals

_BLOCK = 1024


@triton.jit
def _embed_kernel(
    integers: tl.tensor,
    residues: tl.tensor,
    moduli: tl.tensor,
    count: tl.tensor,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    x = tl.load(integers + place, mask=inside, other=0).to(tl.int32)
    row = residues + place  # a channel on each turn: offsets from the start would outgrow 32 bits
    for channel in range(CHANNELS):
        p = tl.load(moduli + channel)
        tl.store(row, residues_of_totals(x, p), mask=inside)
        row += count


def embed_int8(integers: Tensor, moduli: Tensor) -> Tensor:
    """integers (...), |x| < 2^31, and moduli (M,) int32 on one GPU -> symmetric residues (M,...) int8."""
    flat = integers.to(moduli.device).contiguous().view(-1)
    out = torch.empty((len(moduli), flat.numel()), dtype=torch.int8, device=moduli.device)
    if flat.numel():
        grid = (triton.cdiv(flat.numel(), _BLOCK),)
        _embed_kernel[grid](flat, out, moduli, flat.numel(), CHANNELS=len(moduli), BLOCK=_BLOCK)
    return out.view(len(moduli), *integers.shape)
