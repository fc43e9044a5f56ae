"""Exact modular products of int8 residues on the tensor cores of a GPU, in Triton.

Notation: p an odd prime below 256, one per channel; r a residue held *symmetric*, |r| ≤ (p−1)/2 ≤ 125, as int8.
(m,n) @ (n,k): n is the inner axis, the one summed over. M channels, N matrices in each (clients, for instance).

A product is summed exactly in int32 (n·125² < 2^31), reduced modulo p while it is still in registers, and
leaves the chip as int8: a byte per value each way, no intermediate in memory.

Three kernels:

- `_portable_product`: one output tile per program, for small products and GPUs other than Hopper. The Triton
  interpreter runs it on a CPU, where the tests compare it with int64 products.
- `_hopper_product`: the fast one (Gluon, Triton's lower level). One warp keeps four stages of tiles on their way from
  memory, two warpgroups multiply 64 rows each, and while one reduces and stores the other may still multiply.
  Plain Triton waits for each tensor-core product before it issues the next for int8 operands; this does not.
- `_inner_major_copy`: int8 tensor cores read both factors along the inner axis. A factor whose inner axis is not
  contiguous and 16-byte aligned is first copied into that form, at the speed of memory; an in-kernel transpose
  was 4 to 15 times slower. Keep weights stored as (k,n), passed as `.mT`, and the forward pass copies nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .gpu import MAX_INNER

try:
    import triton
    import triton.language as tl
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
    from triton.tools.tensor_descriptor import TensorDescriptor

    from .outer_triton import fits as _use_outer
    from .outer_triton import outer_product
except ImportError as error:
    raise ImportError("the int8 kernel needs Triton 3.6 (pip install triton==3.6.0)") from error

_COPY_TILE = 128


class _Tile(NamedTuple):
    """The shape of one output tile, (rows × columns) with `step` inner elements at a time, and how to run it."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


# Rows are those of one warpgroup; two of them share a tile of 128 × 256.
_HOPPER = _Tile(rows=64, columns=256, step=128, warps=4, stages=4)

# Tiles that follow each other go down this many tile rows before the next tile column, to meet in the L2 cache.
_GROUP = 16


@triton.jit
def _tile_at(tile: tl.tensor, tiles_m: tl.tensor, tiles_k: tl.tensor, GROUP: tl.constexpr) -> Any:
    """The matrix, tile row and tile column of the tile-th tile."""
    matrix = tile // (tiles_m * tiles_k)
    within = tile % (tiles_m * tiles_k)
    group = within // (GROUP * tiles_k)
    rows = min(tiles_m - group * GROUP, GROUP)
    within = within % (GROUP * tiles_k)
    return matrix, group * GROUP + within % rows, within // rows


@triton.jit
def _residues(total: tl.tensor, p: tl.tensor) -> Any:
    """Int32 totals -> symmetric residues modulo p, as int8.

    Adding 1.5·2^23 to a float32 |x| < 2^22 rounds x to an integer and leaves it in the low bits of the float's own
    bits: x = bits − 0x4B400000. That saves the slow conversions, and the low 22 bits of the constant are zero,
    so it drops out of every product with a multiple of 2^10, and out of the last byte.

    Round 1, modulo 1024p: |total|·2^-10/p < 2^20 and float32 is off by less than 768 in units of total, so
    |rest| < 512p + 768 < 2^17. Round 2, modulo p: rest is exact in float32 and rest/p, at most 768 (p = 3), off by
    less than 2^-12, while p odd keeps rest/p at least 1/(2p) > 2^-9 away from every half: the rounding is exact.
    """
    magic: tl.constexpr = 12582912.0
    magic_bits: tl.constexpr = 0x4B400000
    inverse = 1.0 / p.to(tl.float32)
    bits = (total.to(tl.float32) * (inverse * 0.0009765625) + magic).to(tl.int32, bitcast=True)
    rest_bits = total + magic_bits - (p * 1024) * bits
    rest = rest_bits.to(tl.float32, bitcast=True) - magic
    bits = (rest * inverse + magic).to(tl.int32, bitcast=True)
    return (rest_bits - p * bits).to(tl.int8)


@triton.jit
def _portable_product(
    left: tl.tensor,
    right: tl.tensor,
    out: tl.tensor,
    moduli: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    repeat: tl.tensor,
    left_channel: tl.tensor,
    left_repeat: tl.tensor,
    right_channel: tl.tensor,
    right_repeat: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """One output tile of left (…,n) times the transpose of right (…,n), both as rows of one long matrix.

    Matrix r of channel c starts at row c·`left_channel` + r·`left_repeat` of `left`; a factor shared by
    channels or matrices has zeros there. Rows past a matrix's end hold another's: they are computed, not stored.
    """
    matrix, i, j = _tile_at(tl.program_id(0), tl.cdiv(m, ROWS), tl.cdiv(k, COLUMNS), GROUP)
    channel = matrix // repeat
    left_row = channel * left_channel + matrix % repeat * left_repeat + i * ROWS
    right_row = channel * right_channel + matrix % repeat * right_repeat + j * COLUMNS
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.int32)
    for inner in tl.range(0, n, STEP):
        total = tl.dot(left.load([left_row, inner]), right.load([right_row, inner]).T, total, out_dtype=tl.int32)

    p = tl.load(moduli + channel)
    z = _residues(total, p)
    rows = i * ROWS + tl.arange(0, ROWS)[:, None]
    columns = j * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    at = matrix.to(tl.int64) * m * k + rows.to(tl.int64) * k + columns
    inside = (rows < m) & (columns < k)
    tl.store(out + at, z, mask=inside)


@gluon.jit
def _load_tiles(
    stages: tl.tuple,
    sizes: tl.tuple,
    factors: tl.tuple,
    starts: tl.tuple,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    STAGES: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """The loading warp: fill every stage as soon as both warpgroups have emptied it."""
    left_tiles, right_tiles, full, empty = stages
    tiles, m, n, k, repeat = sizes
    left, right = factors
    left_channel, left_repeat, right_channel, right_repeat = starts
    count = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        matrix, i, j = _tile_at(tile, gl.cdiv(m, 2 * ROWS), gl.cdiv(k, COLUMNS), GROUP)
        channel = matrix // repeat
        left_row = channel * left_channel + matrix % repeat * left_repeat + i * (2 * ROWS)
        right_row = channel * right_channel + matrix % repeat * right_repeat + j * COLUMNS
        for inner in range(0, n, STEP):
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), count // STAGES & 1 ^ 1)
            arrived = full.index(stage)
            mbarrier.expect(arrived, (2 * ROWS + COLUMNS) * STEP)
            tma.async_copy_global_to_shared(left, [left_row, inner], arrived, left_tiles.index(2 * stage))
            tma.async_copy_global_to_shared(left, [left_row + ROWS, inner], arrived, left_tiles.index(2 * stage + 1))
            tma.async_copy_global_to_shared(right, [right_row, inner], arrived, right_tiles.index(stage))
            count += 1


@gluon.jit
def _multiply_tiles(
    stages: tl.tuple,
    sizes: tl.tuple,
    outputs: tl.tuple,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    STAGES: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """One of the two multiplying warpgroups: the upper or lower ROWS rows of every tile."""
    left_tiles, right_tiles, full, empty = stages
    tiles, m, n, k, repeat = sizes
    out, moduli = outputs
    # 128 is the widest int8 instruction Triton emits that divides the tile.
    sums: tl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32])
    # 16 contiguous bytes a thread, 64 a row; values only move between the lanes of a warp.
    lines: tl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [0, 8], [8, 0], [0, 64], [0, 128]],
        lane_bases=[[0, 16], [0, 32], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[ROWS, COLUMNS],
    )
    count = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        matrix, i, j = _tile_at(tile, gl.cdiv(m, 2 * ROWS), gl.cdiv(k, COLUMNS), GROUP)
        total = gl.zeros((ROWS, COLUMNS), gl.int32, sums)
        for inner in range(0, n, STEP):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), count // STAGES & 1)
            factor = right_tiles.index(stage).permute((1, 0))
            total = warpgroup_mma(left_tiles.index(2 * stage + HALF), factor, total, is_async=True)
            # The product just issued runs on while the one before it is waited for and its stage handed back.
            total = warpgroup_mma_wait(num_outstanding=1, deps=(total,))
            if inner > 0:
                mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), count=1)
            count += 1
        total = warpgroup_mma_wait(num_outstanding=0, deps=(total,))
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), count=1)

        p = gl.load(moduli + matrix // repeat)
        z = gl.convert_layout(_residues(total, p), lines)
        rows = i * (2 * ROWS) + HALF * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, lines))[:, None]
        columns = j * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, lines))[None, :]
        at = matrix.to(gl.int64) * m * k + rows.to(gl.int64) * k + columns
        inside = (rows < m) & (columns < k)
        gl.store(out + at, z, mask=inside)


@gluon.jit
def _hopper_product(
    left: tl.tensor,
    right: tl.tensor,
    out: tl.tensor,
    moduli: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    repeat: tl.tensor,
    left_channel: tl.tensor,
    left_repeat: tl.tensor,
    right_channel: tl.tensor,
    right_repeat: tl.tensor,
    matrices: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """`_portable_product` with one program per multiprocessor, its warps split into a loader and two multipliers.

    The programs share the tiles of all `matrices`; each works on STAGES steps of the inner axis at a time.
    """
    left_tiles = gl.allocate_shared_memory(gl.int8, [2 * STAGES, ROWS, STEP], left.layout)
    right_tiles = gl.allocate_shared_memory(gl.int8, [STAGES, COLUMNS, STEP], right.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    fence_async_shared()
    tiles = matrices * gl.cdiv(m, 2 * ROWS) * gl.cdiv(k, COLUMNS)
    stages = (left_tiles, right_tiles, full, empty)
    sizes = (tiles, m, n, k, repeat)
    factors = (left, right)
    starts = (left_channel, left_repeat, right_channel, right_repeat)
    outputs = (out, moduli)
    gl.warp_specialize(
        [
            (_multiply_tiles, (stages, sizes, outputs, ROWS, COLUMNS, STEP, STAGES, GROUP, 0)),
            (_multiply_tiles, (stages, sizes, outputs, ROWS, COLUMNS, STEP, STAGES, GROUP, 1)),
            (_load_tiles, (stages, sizes, factors, starts, ROWS, COLUMNS, STEP, STAGES, GROUP)),
        ],
        [4, 1],  # warps of the second multiplier and the loader
        [232, 24],  # and their registers: the sums alone take 128
    )


@triton.jit
def _inner_major_copy(
    source: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    n: tl.tensor,
    repeat: tl.tensor,
    source_channel: tl.tensor,
    source_repeat: tl.tensor,
    source_row: tl.tensor,
    source_inner: tl.tensor,
    out_row: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """Copy a tile of source, any strides, to where its inner axis is contiguous."""
    matrix, i, j = _tile_at(tl.program_id(0), tl.cdiv(rows, TILE), tl.cdiv(n, TILE), 1)
    row = i * TILE + tl.arange(0, TILE)[:, None]
    inner = j * TILE + tl.arange(0, TILE)[None, :]
    inside = (row < rows) & (inner < n)
    start = (matrix // repeat).to(tl.int64) * source_channel + (matrix % repeat).to(tl.int64) * source_repeat
    values = tl.load(
        source + start + row.to(tl.int64) * source_row + inner.to(tl.int64) * source_inner, mask=inside, other=0
    )
    tl.store(out + (matrix.to(tl.int64) * rows + row) * out_row + inner, values, mask=inside)


def _row_strides(factor: Tensor) -> tuple[int, int] | None:
    """The rows from channel to channel and matrix to matrix of (M,N,rows,n), or None if it is not rows in memory."""
    channels, repeat, _, n = factor.shape
    row = factor.stride(2)
    channel_step = factor.stride(0) if channels > 1 else 0
    repeat_step = factor.stride(1) if repeat > 1 else 0
    contiguous = factor.stride(3) == 1 or n == 1
    if not contiguous or row < n or row % 16 or channel_step % row or repeat_step % row or factor.data_ptr() % 16:
        return None
    return channel_step // row, repeat_step // row


def _inner_major(factor: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """The factor (M,N,rows,n) and its row strides; itself where the tensor cores can read it, else a copy."""
    strides = _row_strides(factor)
    if strides is not None:
        return factor, strides
    # a matrix shared along an axis is copied once
    source = factor[: 1 if factor.stride(0) == 0 else None, : 1 if factor.stride(1) == 0 else None]
    channels, repeat, rows, n = source.shape
    padded = -(-n // 16) * 16
    out = torch.empty((channels, repeat, rows, padded), dtype=torch.int8, device=factor.device)
    programs = _num_tiles(channels * repeat, rows, n, _COPY_TILE, _COPY_TILE)
    _inner_major_copy[(programs,)](source, out, rows, n, repeat, *source.stride(), padded, TILE=_COPY_TILE, num_warps=8)
    copy = out[..., :n]  # (M,N,rows,n), or 1 for an axis it is shared along
    return copy, (repeat * rows if channels > 1 else 0, rows if repeat > 1 else 0)


def _num_tiles(matrices: int, m: int, k: int, rows: int, columns: int) -> int:
    return matrices * math.ceil(m / rows) * math.ceil(k / columns)


def _portable_tile(matrices: int, m: int, k: int) -> _Tile:
    """The larger tile, unless it would pad small matrices or leave most of the GPU idle."""
    side = 64 if min(m, k) <= 64 or _num_tiles(matrices, m, k, 128, 128) < 128 else 128
    return _Tile(side, side, step=128, warps=4, stages=3)


def _use_hopper(device: torch.device, matrices: int, m: int, n: int, k: int) -> bool:
    """Whether the Hopper kernel can run here and would be the faster; the limits come from an H200."""
    # Gluon is experimental and its calls change between minor versions.
    if device.type != "cuda" or not triton.__version__.startswith("3.6."):
        return False
    tiles = _num_tiles(matrices, m, k, 2 * _HOPPER.rows, _HOPPER.columns)
    filled = matrices * m * k / (tiles * 2 * _HOPPER.rows * _HOPPER.columns)
    return torch.cuda.get_device_capability(device)[0] == 9 and tiles >= 200 and filled > 0.5 and n >= 256


def _launch(left: Tensor, right: Tensor, moduli: Tensor, out: Tensor) -> None:
    """left (M,N,m,n) times the transpose of right (M,N,k,n) into out (M,N,m,k)."""
    (channels, repeat, m, n), k = left.shape, right.shape[2]
    left, left_steps = _inner_major(left)
    right, right_steps = _inner_major(right)
    if _use_outer(channels, repeat, m, n, k):
        outer_product(left, right, moduli, out.view(channels, repeat, m, k), left_steps, right_steps)
        return
    if repeat > 1 and left_steps[1] == m and right_steps[1] == 0:
        repeat, m = 1, repeat * m  # N matrices times one: the same as one tall matrix
    matrices = channels * repeat
    left_rows = (channels - 1) * left_steps[0] + (repeat - 1) * left_steps[1] + m
    right_rows = (channels - 1) * right_steps[0] + (repeat - 1) * right_steps[1] + k
    if max(left_rows, right_rows) >= 2**31:
        raise ValueError(f"factors of {left_rows} and {right_rows} rows in all: the kernel counts rows in int32")
    hopper = _use_hopper(out.device, matrices, m, n, k)
    tile = _HOPPER if hopper else _portable_tile(matrices, m, k)
    views = (
        (left, [left_rows, n], [left.stride(2), 1], [tile.rows, tile.step]),
        (right, [right_rows, n], [right.stride(2), 1], [tile.columns, tile.step]),
    )
    if hopper:
        tiles = _num_tiles(matrices, m, k, 2 * tile.rows, tile.columns)
        programs = min(tiles, torch.cuda.get_device_properties(out.device).multi_processor_count)
        factors = [GluonDescriptor(*view, gl.NVMMASharedLayout.get_default_for(view[3], gl.int8)) for view in views]
        kernel, own = _hopper_product, {"matrices": matrices, "STAGES": tile.stages}
    else:
        programs = _num_tiles(matrices, m, k, tile.rows, tile.columns)
        factors = [TensorDescriptor(*view) for view in views]
        kernel, own = _portable_product, {"num_stages": tile.stages}
    kernel[(programs,)](
        *factors, out, moduli, m, n, k, repeat, *left_steps, *right_steps,
        ROWS=tile.rows, COLUMNS=tile.columns, STEP=tile.step, GROUP=_GROUP, num_warps=tile.warps, **own,
    )  # fmt: skip


def matmul_int8(left: Tensor, right: Tensor, moduli: Tensor) -> Tensor:
    """left @ right modulo each channel's prime.

    (M,m,n) @ (M,n,k) -> (M,m,k), or (M,N,m,n) @ (M,N,n,k) -> (M,N,m,k). Axes M and N broadcast; a 3-D factor that meets
    a 4-D one is shared by the N matrices of its channel. int8 symmetric residues in, the same out. `moduli`: (M,) int32
    on the same device, odd primes below 256. Any strides will do; the module says which need no copy.
    The caller keeps entries within (p−1)/2 in size: this is not checked, and the result is undefined beyond it.

    >>> z = matmul_int8(inputs, weights.mT, moduli)  # doctest: +SKIP
    >>> bool(((z - inputs.double() @ weights.double().mT) % moduli.view(-1, 1, 1) == 0).all())  # doctest: +SKIP
    True
    """
    flat = left.dim() == right.dim() == 3
    left4, right4 = (factor.unsqueeze(1) if factor.dim() == 3 else factor for factor in (left, right))
    if left4.dim() != 4 or right4.dim() != 4 or left4.shape[3] != right4.shape[2]:
        raise ValueError(
            f"expected (M,m,n) @ (M,n,k) or (M,N,m,n) @ (M,N,n,k), got {tuple(left.shape)} @ {tuple(right.shape)}"
        )
    if {left.dtype, right.dtype} != {torch.int8} or moduli.dtype != torch.int32:
        raise ValueError(f"expected int8 factors and int32 moduli, got {left.dtype}, {right.dtype}, {moduli.dtype}")
    if not left.device == right.device == moduli.device:
        raise ValueError(f"expected one device, got {left.device}, {right.device}, {moduli.device}")
    (m, n), k = left4.shape[2:], right4.shape[3]
    if n > MAX_INNER:
        raise ValueError(f"an inner axis of {n} can overflow int32; {MAX_INNER} is the most: split it and add")
    channels, repeat = len(moduli), max(left4.shape[1], right4.shape[1])
    if not all({1, channels} >= {x.shape[0]} and {1, repeat} >= {x.shape[1]} for x in (left4, right4)):
        raise ValueError(
            f"{tuple(left.shape)} @ {tuple(right.shape)} does not broadcast to {channels} moduli × {repeat} matrices"
        )
    shape = (channels, m, k) if flat else (channels, repeat, m, k)
    if n == 0 or 0 in shape:
        return torch.zeros(shape, dtype=torch.int8, device=left.device)
    out = torch.empty(shape, dtype=torch.int8, device=left.device)
    with torch.cuda.device(out.device.index if out.is_cuda else -1):
        left4, right4 = left4.expand(channels, repeat, m, n), right4.mT.expand(channels, repeat, k, n)
        _launch(left4, right4, moduli.contiguous(), out)
    return out
