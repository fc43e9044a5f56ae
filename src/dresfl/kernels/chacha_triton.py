"""The randomness of `field.random` on a GPU, in Triton: the same masks and rounding noise, bit for bit.

Notation: a stream is ChaCha20 (RFC 8439) under a key of eight words, with nonce (domain·256 + attempt, index, 0) and
the block's number in the stream as counter; word w of a stream is word w mod 16 of block w // 16.

One thread computes one block, sixteen words, in registers. Rejection happens there too: as long as a tile of blocks
holds a rejected word, its blocks are computed again with the next attempt, and the new word is taken where the
old one was rejected. So the host never waits for a count, and a CUDA graph can hold every call here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_MASKS = 1  # field.random.Domain.MASKS, a layer above this one

_WORDS_PER_BLOCK = 16

# Blocks in a tile, one to a thread. A tile of masks is small, as it is computed again whole for one rejected word: of
# 24-bit primes' about one in 500 is.
_WARPS = 4
_TILE = 32 * _WARPS
_MASK_WARPS = 1
_MASK_TILE = 32 * _MASK_WARPS


@triton.jit
def _quarter_round(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor) -> tuple[tl.tensor, ...]:
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _blocks(
    keys: tl.tensor, key_row: tl.tensor, counter: tl.tensor, nonce0: tl.tensor, nonce1: tl.tensor, TILE: tl.constexpr
) -> tl.tensor:
    """The keystream blocks of a tile -> words (TILE,16) uint32. counter, nonce1 (TILE,) uint32; nonce0 uint32."""
    k0 = tl.load(keys + key_row * 8).to(tl.uint32, bitcast=True)
    k1 = tl.load(keys + key_row * 8 + 1).to(tl.uint32, bitcast=True)
    k2 = tl.load(keys + key_row * 8 + 2).to(tl.uint32, bitcast=True)
    k3 = tl.load(keys + key_row * 8 + 3).to(tl.uint32, bitcast=True)
    k4 = tl.load(keys + key_row * 8 + 4).to(tl.uint32, bitcast=True)
    k5 = tl.load(keys + key_row * 8 + 5).to(tl.uint32, bitcast=True)
    k6 = tl.load(keys + key_row * 8 + 6).to(tl.uint32, bitcast=True)
    k7 = tl.load(keys + key_row * 8 + 7).to(tl.uint32, bitcast=True)
    c0 = tl.full((TILE,), 0x61707865, tl.uint32)  # "expand 32-byte k"
    c1 = tl.full((TILE,), 0x3320646E, tl.uint32)
    c2 = tl.full((TILE,), 0x79622D32, tl.uint32)
    c3 = tl.full((TILE,), 0x6B206574, tl.uint32)
    zero = tl.zeros((TILE,), tl.uint32)
    n0 = zero + nonce0

    x0, x1, x2, x3 = c0, c1, c2, c3
    x4, x5, x6, x7 = k0, k1, k2, k3
    x8, x9, x10, x11 = k4, k5, k6, k7
    x12, x13, x14, x15 = counter, n0, nonce1, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)

    # join makes a new last axis, so the pairs joined first end up farthest apart: bits 3, 2, 1, 0 of the word's number
    even = tl.join(
        tl.join(tl.join(x0 + c0, x8 + k4), tl.join(x4 + k0, x12 + counter)),
        tl.join(tl.join(x2 + c2, x10 + k6), tl.join(x6 + k2, x14 + nonce1)),
    )
    odd = tl.join(
        tl.join(tl.join(x1 + c1, x9 + k5), tl.join(x5 + k1, x13 + n0)),
        tl.join(tl.join(x3 + c3, x11 + k7), tl.join(x7 + k3, x15)),
    )
    return tl.reshape(tl.join(even, odd), (TILE, 16))


@triton.jit
def _divide(x: tl.tensor, n: tl.tensor, reciprocal: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """x // n and x mod n, all uint32, given reciprocal = floor((2^32−1)/n).

    The high half of x·reciprocal is the quotient or one less, since x < 2^32 and the reciprocal is less than 1 short.
    """
    quotient = tl.umulhi(x, tl.zeros_like(x) + reciprocal)
    rest = x - quotient * n
    short = rest >= n
    return tl.where(short, quotient + 1, quotient), tl.where(short, rest - n, rest)


@triton.jit
def _tile_addresses(
    rows: tl.tensor, num_rows: tl.tensor, blocks: tl.tensor, blocks_reciprocal: tl.tensor, TILE: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """The row of each block in this program's tile, whether there is one, its counter and its second nonce word."""
    block = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.uint32)
    row, counter = _divide(block, tl.cast(blocks, tl.uint32), tl.cast(blocks_reciprocal, tl.uint32))
    row = row.to(tl.int64)
    inside = row < num_rows
    row = tl.minimum(row, num_rows - 1)
    nonce1 = (tl.load(rows + row) & 0xFFFFFFFF).to(tl.uint32)
    return row, inside, counter, nonce1


@triton.jit
def _residues_kernel(
    moduli: tl.tensor,
    keys: tl.tensor,
    rows: tl.tensor,
    residues: tl.tensor,
    num_moduli: tl.tensor,
    num_rows: tl.tensor,
    count: tl.tensor,
    count_reciprocal: tl.tensor,
    blocks: tl.tensor,
    blocks_reciprocal: tl.tensor,
    nonce0: tl.tensor,
    WHOLE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    row, inside, counter, nonce1 = _tile_addresses(rows, num_rows, blocks, blocks_reciprocal, TILE)
    inside = inside[:, None]
    lane = tl.arange(0, 16)[None, :]

    # WHOLE: the count is a multiple of 16, a block lies in one channel, and (TILE,1) says what (TILE,16) must otherwise
    word = counter[:, None] * 16
    if not WHOLE:
        word += lane.to(tl.uint32)
    channel, place = _divide(word, tl.cast(count, tl.uint32), tl.cast(count_reciprocal, tl.uint32))
    valid = inside & (channel < tl.cast(num_moduli, tl.uint32))
    p = tl.load(moduli + channel.to(tl.int64), mask=valid, other=3).to(tl.uint32)
    reciprocal = tl.full((), 0xFFFFFFFF, tl.uint32) // p  # floor(2^32/p), as an odd p does not divide 2^32
    largest = tl.where(valid, reciprocal * p - 1, 0xFFFFFFFF)

    attempt = tl.cast(nonce0, tl.uint32)
    last = attempt + 255  # the next would be another domain's stream; it has probability below 2^−2000
    block = _blocks(keys, row, counter, attempt, nonce1, TILE)
    while (tl.max(tl.max((block > largest).to(tl.int32), 1), 0) > 0) & (attempt < last):
        attempt += 1
        block = tl.where(block > largest, _blocks(keys, row, counter, attempt, nonce1, TILE), block)

    _, residue = _divide(block, p, reciprocal)
    residue = tl.where(residue > p // 2, residue - p, residue).to(tl.int32, bitcast=True)
    target = (channel.to(tl.int64) * num_rows + row[:, None]) * count + place.to(tl.int64)
    if WHOLE:
        target = tl.multiple_of(target, (16, 16)) + lane
    tl.store(residues + target, residue.to(residues.dtype.element_ty), mask=valid)


@triton.jit
def _noise_kernel(
    key: tl.tensor, index: tl.tensor, noise: tl.tensor, count: tl.tensor, nonce0: tl.tensor, TILE: tl.constexpr
) -> None:
    counter = tl.program_id(0) * TILE + tl.arange(0, TILE)
    nonce1 = tl.zeros((TILE,), tl.uint32) + (tl.load(index) & 0xFFFFFFFF).to(tl.uint32)
    block = _blocks(key, counter * 0, counter.to(tl.uint32), tl.cast(nonce0, tl.uint32), nonce1, TILE)
    place = counter.to(tl.int64)[:, None] * 16 + tl.arange(0, 16)[None, :]
    # (w + ½)·2^−32: the word below the bits of 2^52 makes 2^52 + w without a conversion; all exact
    value = (block.to(tl.uint64) | 0x4330000000000000).to(tl.float64, bitcast=True)
    value = (value - tl.full((), 4503599627370496.0, tl.float64) + 0.5) * 2.0**-32
    tl.store(noise + place, value, mask=place < count)


def _num_blocks(words: int, num_rows: int) -> int:
    blocks = -(-words // _WORDS_PER_BLOCK)
    if blocks * max(num_rows, _WORDS_PER_BLOCK) >= 2**31:
        raise ValueError(f"{num_rows} rows of {words} words are too many for one call: at most 2^31 blocks")
    return blocks


def uniform_residues(moduli: Tensor, keys: Tensor, rows: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Exactly uniform symmetric residues of the owners' secret keys: (M,R,count), as `ResidueField.uniform`.

    moduli (M,) odd primes, int32 or int64, on the keys' device; keys (R,8) int32; rows (R,) int64 in [0, 2^32).
    dtype: int8 (for primes below 256) or float64. Position j of channel m takes word m·count + j of the row's stream.
    """
    if keys.dtype != torch.int32 or rows.dtype != torch.int64 or keys.shape != (rows.shape[0], 8):
        raise ValueError(
            f"keys (R,8) int32 and rows (R,) int64 expected, {tuple(keys.shape)} {keys.dtype} and "
            f"{tuple(rows.shape)} {rows.dtype} came"
        )
    if dtype not in (torch.int8, torch.float64):
        raise ValueError(f"residues are int8 or float64, not {dtype}")
    num_moduli, num_rows = moduli.shape[0], rows.shape[0]
    blocks = _num_blocks(num_moduli * count, num_rows)
    residues = torch.empty((num_moduli, num_rows, count), dtype=dtype, device=keys.device)
    if residues.numel():
        _residues_kernel[(triton.cdiv(num_rows * blocks, _MASK_TILE),)](
            moduli.contiguous(),
            keys.contiguous(),
            rows.contiguous(),
            residues,
            num_moduli,
            num_rows,
            count,
            (2**32 - 1) // count,
            blocks,
            (2**32 - 1) // blocks,
            _MASKS * 256,
            WHOLE=count % _WORDS_PER_BLOCK == 0,
            TILE=_MASK_TILE,
            num_warps=_MASK_WARPS,
        )
    return residues


def rounding_noise(key: Tensor, domain: int, index: Tensor, count: int) -> Tensor:
    """`count` values (w + ½)/2^32 of a public stream, as `PublicStream.uniform`: key (8,) int32 -> (count,) float64.

    `index` in [0, 2^32) is an int64 tensor of one element on the key's device. It is read when the kernel runs, so a
    captured graph goes on to the next stream by advancing it.
    """
    if key.dtype != torch.int32 or key.shape != (8,):
        raise ValueError(f"a key (8,) int32 expected, {tuple(key.shape)} {key.dtype} came")
    if index.dtype != torch.int64 or index.numel() != 1:
        raise ValueError(f"an index of one int64 expected, {tuple(index.shape)} {index.dtype} came")
    noise = torch.empty(count, dtype=torch.float64, device=key.device)
    if count:
        _noise_kernel[(triton.cdiv(_num_blocks(count, 1), _TILE),)](
            key.contiguous(), index, noise, count, int(domain) * 256, TILE=_TILE, num_warps=_WARPS
        )
    return noise
