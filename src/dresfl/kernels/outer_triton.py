"""Exact modular products of int8 residues with a short inner axis, on a GPU, in Triton: the weight gradients.

Such a product is limited by its output: it should be written once, at the speed of a copy. Two things make the
reduction cheap enough for that, compared with `int8_triton`:

- The sums start from the bits of the float32 1.5·2^23. While |sum| < 2^22, the sum's own bits are those of the float
  1.5·2^23 + sum, and no conversion is needed.
- n ≤ 128 keeps |sum| ≤ n·((p−1)/2)² below 2^21, and |sum/p| below n·p/4. Float32 finds that quotient to within
  (n·p/4)·2^−23, and p odd keeps it at least 1/(2p) away from every half. n·p² < 2^24, so one rounding is exact.

A program makes several tiles of one column of tiles, so that the right factor is read once and the stores of one tile
go on while the next is made.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

MAX_INNER = 128


@triton.jit
def _outer_product(
    left: tl.tensor,
    right: tl.tensor,
    out: tl.tensor,
    moduli: tl.tensor,
    m: tl.tensor,
    k: tl.tensor,
    repeat: tl.tensor,
    left_channel: tl.tensor,
    left_repeat: tl.tensor,
    right_channel: tl.tensor,
    right_repeat: tl.tensor,
    groups: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    TILES: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """TILES tiles below each other of left (…,n) times the transpose of right (…,n), both as rows of one long matrix.

    Matrix r of channel c starts at row c·`left_channel` + r·`left_repeat` of `left`. BLOCKS: `out` is a descriptor of
    all matrices as one, whose tiles end where a matrix ends; else it is an address.
    """
    columns = tl.cdiv(k, COLUMNS)
    program = tl.program_id(0)
    j = program % columns  # neighbours share the left factor
    group = program // columns % groups
    matrix = program // (columns * groups)
    channel = matrix // repeat
    left_row = channel * left_channel + matrix % repeat * left_repeat
    right_row = channel * right_channel + matrix % repeat * right_repeat + j * COLUMNS
    factor = right.load([right_row, 0]).T

    p = tl.load(moduli + channel)
    magic: tl.constexpr = 12582912.0
    magic_bits: tl.constexpr = 0x4B400000
    inverse = 1.0 / p.to(tl.float32)
    first = group * TILES
    count = tl.minimum(tl.cdiv(m, ROWS) - first, TILES)
    for tile in tl.range(0, count, num_stages=STAGES):
        i = (first + tile) * ROWS
        start = tl.full((ROWS, COLUMNS), magic_bits, tl.int32)
        total = tl.dot(left.load([left_row + i, 0]), factor, start, out_dtype=tl.int32)
        sums = total.to(tl.float32, bitcast=True) - magic
        quotients = (sums * inverse + magic).to(tl.int32, bitcast=True)
        z = (total - p * quotients).to(tl.int8)  # the last byte is right: the constant has none
        if BLOCKS:
            out.store([matrix * m + i, j * COLUMNS], z)
        else:
            rows = i + tl.arange(0, ROWS)[:, None]
            places = j * COLUMNS + tl.arange(0, COLUMNS)[None, :]
            at = matrix.to(tl.int64) * m * k + rows.to(tl.int64) * k + places
            tl.store(out + at, z, mask=(rows < m) & (places < k))


def outer_product(
    left: Tensor,
    right: Tensor,
    moduli: Tensor,
    out: Tensor,
    left_steps: tuple[int, int],
    right_steps: tuple[int, int],
    *,
    rows: int = 64,
    columns: int = 256,
    tiles: int = 16,
    warps: int = 4,
    stages: int = 4,
) -> None:
    """left (M,N,m,n) times the transpose of right (M,N,k,n) into out (M,N,m,k), contiguous; n ≤ MAX_INNER.

    The factors are rows in memory, `steps` rows from channel to channel and from matrix to matrix, as `int8_triton`
    prepares them. The keywords say how the work is cut: this way was the fastest of 35 on an H200.
    """
    (channels, repeat, m, k), n = out.shape, left.shape[3]
    left_rows = (channels - 1) * left_steps[0] + (repeat - 1) * left_steps[1] + m
    right_rows = (channels - 1) * right_steps[0] + (repeat - 1) * right_steps[1] + k
    inner = 64 if n <= 64 else 128
    factors = (
        TensorDescriptor(left, [left_rows, n], [left.stride(2), 1], [rows, inner]),
        TensorDescriptor(right, [right_rows, n], [right.stride(2), 1], [columns, inner]),
    )
    matrices = channels * repeat
    blocks = m % rows == 0 and k % 16 == 0 and out.data_ptr() % 16 == 0 and matrices * m < 2**31
    target = TensorDescriptor(out, [matrices * m, k], [k, 1], [rows, columns]) if blocks else out
    groups = math.ceil(m / (rows * tiles))
    programs = matrices * groups * math.ceil(k / columns)
    _outer_product[(programs,)](
        *factors, target, moduli, m, k, repeat, *left_steps, *right_steps, groups,
        ROWS=rows, COLUMNS=columns, INNER=inner, TILES=tiles, STAGES=stages, BLOCKS=blocks, num_warps=warps,
    )  # fmt: skip


def fits(channels: int, repeat: int, m: int, n: int, k: int) -> bool:
    """Whether this kernel serves a product of this size: a short inner axis, and an output that is worth it."""
    return n <= MAX_INNER and channels * repeat * m * k >= 2**22 and min(m, k) >= 64 and torch.version.hip is None
