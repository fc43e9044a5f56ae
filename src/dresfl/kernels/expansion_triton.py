"""Seeds to residues on a GPU, in Triton: the blinding and the bounded integers of `field.random`, bit for bit.

The streams are those of `chacha_triton`, and rejection works as there: the host never waits for a count.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chacha_triton import _MASK_TILE, _MASK_WARPS, _TILE, _WARPS, _blocks, _divide, _num_blocks

_BLINDING, _BOUNDED = 10, 11  # field.random.Domain, a layer above this one

_ELEMENTS = 1024  # integers that a program reduces

_MOST_SEEDS = 2**16  # so many products of two residues stay below 2^64
MOST_SUMMED_LIMBS = 254  # so many products of a word and a residue, and a folded sum, stay below 2^64

_SUM_TILE = 32  # blocks of a program that sums bounded integers; it holds their sums for all channels
_SUM_WARPS = 4


@triton.jit
def _sums_kernel(
    moduli: tl.tensor,
    keys: tl.tensor,
    coefficients: tl.tensor,
    sums: tl.tensor,
    num_seeds: tl.tensor,
    count: tl.tensor,
    nonce0: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    channel = tl.program_id(1)
    counter = tl.program_id(0) * TILE + tl.arange(0, TILE)
    place = counter.to(tl.int64)[:, None] * 16 + tl.arange(0, 16)[None, :]
    valid = place < count
    nonce1 = tl.zeros((TILE,), tl.uint32) + channel.to(tl.uint32)
    p = tl.load(moduli + channel).to(tl.uint32)
    reciprocal = tl.full((), 0xFFFFFFFF, tl.uint32) // p  # floor(2^32/p), as an odd p does not divide 2^32
    largest = tl.where(valid, reciprocal * p - 1, 0xFFFFFFFF)
    first = tl.cast(nonce0, tl.uint32)
    last = first + 255  # the next would be another domain's stream; it has probability below 2^−2000

    total = tl.zeros((TILE, 16), tl.uint64)
    for seed in range(num_seeds):
        row = counter.to(tl.int64) * 0 + seed
        attempt = first
        block = _blocks(keys, row, counter.to(tl.uint32), attempt, nonce1, TILE)
        while (tl.max(tl.max((block > largest).to(tl.int32), 1), 0) > 0) & (attempt < last):
            attempt += 1
            again = _blocks(keys, row, counter.to(tl.uint32), attempt, nonce1, TILE)
            block = tl.where(block > largest, again, block)
        _, residue = _divide(block, p, reciprocal)
        coefficient = tl.load(coefficients + channel * num_seeds + seed).to(tl.uint64)
        total += residue.to(tl.uint64) * coefficient  # below 2^48: 2^16 of them fit

    residue = (total % p.to(tl.uint64)).to(tl.uint32)
    residue = tl.where(residue > p // 2, residue - p, residue).to(tl.int32, bitcast=True)
    tl.store(sums + channel.to(tl.int64) * count + place, residue.to(sums.dtype.element_ty), mask=valid)


@triton.jit
def _words_kernel(
    keys: tl.tensor,
    words: tl.tensor,
    num_rows: tl.tensor,
    count: tl.tensor,
    blocks: tl.tensor,
    blocks_reciprocal: tl.tensor,
    nonce0: tl.tensor,
    top: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    limb = tl.program_id(1)
    block = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.uint32)
    row, counter = _divide(block, tl.cast(blocks, tl.uint32), tl.cast(blocks_reciprocal, tl.uint32))
    row = row.to(tl.int64)
    inside = row < num_rows
    nonce1 = tl.zeros((TILE,), tl.uint32) + limb.to(tl.uint32)
    word = _blocks(keys, tl.minimum(row, num_rows - 1), counter, tl.cast(nonce0, tl.uint32), nonce1, TILE)
    word = tl.where(limb == tl.num_programs(1) - 1, word & tl.cast(top, tl.uint32), word)
    place = counter.to(tl.int64)[:, None] * 16 + tl.arange(0, 16)[None, :]
    target = (limb.to(tl.int64) * num_rows + row[:, None]) * count + place
    tl.store(words + target, word.to(tl.int32, bitcast=True), mask=inside[:, None] & (place < count))


@triton.jit
def _bounded_kernel(
    words: tl.tensor,
    moduli: tl.tensor,
    powers: tl.tensor,
    residues: tl.tensor,
    size: tl.tensor,
    num_limbs: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    channel = tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    valid = at < size
    p = tl.load(moduli + channel).to(tl.uint32)
    reciprocal = tl.full((), 0xFFFFFFFF, tl.uint32) // p
    total = tl.zeros((TILE,), tl.uint64)
    for limb in range(num_limbs):
        word = tl.load(words + at + limb * tl.cast(size, tl.int64), mask=valid, other=0).to(tl.uint32, bitcast=True)
        _, residue = _divide(word, p, reciprocal)
        total += residue.to(tl.uint64) * tl.load(powers + channel * num_limbs + limb).to(tl.uint64)
    residue = (total % p.to(tl.uint64)).to(tl.uint32)
    residue = tl.where(residue > p // 2, residue - p, residue).to(tl.int32, bitcast=True)
    tl.store(residues + channel.to(tl.int64) * size + at, residue.to(residues.dtype.element_ty), mask=valid)


@triton.jit
def _bounded_sums_kernel(
    moduli: tl.tensor,
    keys: tl.tensor,
    factors: tl.tensor,
    sums: tl.tensor,
    num_moduli: tl.tensor,
    num_seeds: tl.tensor,
    num_limbs: tl.tensor,
    count: tl.tensor,
    first_block: tl.tensor,
    skipped: tl.tensor,
    nonce0: tl.tensor,
    top: tl.tensor,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    block = tl.program_id(0) * TILE + tl.arange(0, TILE)
    counter = block.to(tl.uint32) + tl.cast(first_block, tl.uint32)
    place = block.to(tl.int64)[:, None] * 16 + tl.arange(0, 16)[None, :] - skipped
    channel = tl.arange(0, CHANNELS)
    there = channel < num_moduli
    p = tl.load(moduli + channel, mask=there, other=3).to(tl.uint64)[:, None, None]
    radix = tl.full((), 2**32, tl.uint64) % p
    low = tl.full((), 0xFFFFFFFF, tl.uint64)
    first = tl.cast(nonce0, tl.uint32)
    cut = tl.cast(top, tl.uint32)

    total = tl.zeros((CHANNELS, TILE, 16), tl.uint64)
    for seed in range(num_seeds):
        row = block.to(tl.int64) * 0 + seed
        for limb in range(num_limbs):
            nonce1 = tl.zeros((TILE,), tl.uint32) + tl.cast(limb, tl.uint32)
            word = _blocks(keys, row, counter, first, nonce1, TILE)
            word = tl.where(limb == num_limbs - 1, word & cut, word)
            at = (channel * num_seeds + seed) * num_limbs + limb
            factor = tl.load(factors + at, mask=there, other=0).to(tl.uint64)
            total += tl.expand_dims(word.to(tl.uint64), 0) * factor[:, None, None]  # below 2^56
        total = (total >> 32) * radix + (total & low)  # the same modulo p, below 2^56 + 2^32

    residue = (total % p).to(tl.int64)
    modulus = p.to(tl.int64)
    residue = tl.where(residue > modulus // 2, residue - modulus, residue)
    target = channel.to(tl.int64)[:, None, None] * count + tl.expand_dims(place, 0)
    inside = there[:, None, None] & tl.expand_dims((place >= 0) & (place < count), 0)
    tl.store(sums + target, residue.to(sums.dtype.element_ty), mask=inside)


def _check_keys(keys: Tensor, dtype: torch.dtype) -> None:
    if keys.dtype != torch.int32 or keys.dim() != 2 or keys.shape[1] != 8:
        raise ValueError(f"keys (S,8) int32 expected, {tuple(keys.shape)} {keys.dtype} came")
    if dtype not in (torch.int8, torch.float64):
        raise ValueError(f"residues are int8 or float64, not {dtype}")


def uniform_sums(moduli: Tensor, keys: Tensor, coefficients: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Σ_s coefficients[m,s]·r_s[m,j] as symmetric residues (M,count), as `ResidueField.uniform_sum`.

    moduli (M,) odd primes below 2^24, int32 or int64, on the keys' device; keys (S,8) int32; coefficients (M,S),
    residues of any integer type or float64. dtype: int8 (for primes below 256) or float64.
    """
    _check_keys(keys, dtype)
    (num_seeds, _), num_moduli = keys.shape, moduli.shape[0]
    if tuple(coefficients.shape) != (num_moduli, num_seeds) or num_seeds > _MOST_SEEDS:
        raise ValueError(f"coefficients ({num_moduli},{num_seeds}) expected, {tuple(coefficients.shape)} came")
    blocks = _num_blocks(count, 1)
    sums = torch.zeros((num_moduli, count), dtype=dtype, device=keys.device)
    if sums.numel() and num_seeds:
        factors = coefficients.to(torch.int64) % moduli.to(torch.int64).view(-1, 1)
        _sums_kernel[(triton.cdiv(blocks, _MASK_TILE), num_moduli)](
            moduli.contiguous(),
            keys.contiguous(),
            factors.to(torch.int32),
            sums,
            num_seeds,
            count,
            _BLINDING * 256,
            TILE=_MASK_TILE,
            num_warps=_MASK_WARPS,
        )
    return sums


def bounded_residues(moduli: Tensor, powers: Tensor, keys: Tensor, bits: int, count: int, dtype: torch.dtype) -> Tensor:
    """Uniform integers in [0, 2^bits) as symmetric residues (M,S,count), as `ResidueField.bounded`.

    powers (M,limbs) int32: 2^(32 i) modulo each prime, in [0, p), one for every 32 bits begun. The words, 4·limbs bytes
    for every integer, are held in between.
    """
    _check_keys(keys, dtype)
    num_rows, num_moduli, limbs = keys.shape[0], moduli.shape[0], -(-bits // 32)
    if tuple(powers.shape) != (num_moduli, limbs):
        raise ValueError(f"powers ({num_moduli},{limbs}) expected, {tuple(powers.shape)} came")
    blocks = _num_blocks(count, num_rows)
    residues = torch.empty((num_moduli, num_rows, count), dtype=dtype, device=keys.device)
    if residues.numel():
        words = torch.empty((limbs, num_rows, count), dtype=torch.int32, device=keys.device)
        _words_kernel[(triton.cdiv(num_rows * blocks, _TILE), limbs)](
            keys.contiguous(),
            words,
            num_rows,
            count,
            blocks,
            (2**32 - 1) // blocks,
            _BOUNDED * 256,
            2 ** (bits - 32 * (limbs - 1)) - 1,
            TILE=_TILE,
            num_warps=_WARPS,
        )
        size = num_rows * count
        _bounded_kernel[(triton.cdiv(size, _ELEMENTS), num_moduli)](
            words, moduli.contiguous(), powers.contiguous(), residues, size, limbs, TILE=_ELEMENTS, num_warps=_WARPS
        )
    return residues


def bounded_sums(
    moduli: Tensor,
    powers: Tensor,
    keys: Tensor,
    coefficients: Tensor,
    bits: int,
    first: int,
    count: int,
    dtype: torch.dtype,
) -> Tensor:
    """Σ_s coefficients[m,s]·x_s[first + j] as symmetric residues (M,count), as `ResidueField.bounded_sum`.

    powers (M,limbs) as for `bounded_residues`, at most MOST_SUMMED_LIMBS. Each word is made once, for all channels, and
    none is held.
    """
    _check_keys(keys, dtype)
    (num_seeds, _), num_moduli, limbs = keys.shape, moduli.shape[0], -(-bits // 32)
    if tuple(powers.shape) != (num_moduli, limbs) or limbs > MOST_SUMMED_LIMBS:
        raise ValueError(f"powers ({num_moduli},{limbs}) expected, {tuple(powers.shape)} came")
    if tuple(coefficients.shape) != (num_moduli, num_seeds):
        raise ValueError(f"coefficients ({num_moduli},{num_seeds}) expected, {tuple(coefficients.shape)} came")
    skipped = first % 16
    blocks = _num_blocks(skipped + count, 1)
    sums = torch.zeros((num_moduli, count), dtype=dtype, device=keys.device)
    if sums.numel() and num_seeds:
        p = moduli.to(torch.int64).view(-1, 1, 1)
        factors = coefficients.to(torch.int64).unsqueeze(2) % p * powers.to(torch.int64).unsqueeze(1) % p  # (M,S,limbs)
        _bounded_sums_kernel[(triton.cdiv(blocks, _SUM_TILE),)](
            moduli.contiguous(),
            keys.contiguous(),
            factors.to(torch.int32).contiguous(),
            sums,
            num_moduli,
            num_seeds,
            limbs,
            count,
            first // 16,
            skipped,
            _BOUNDED * 256,
            2 ** (bits - 32 * (limbs - 1)) - 1,
            TILE=_SUM_TILE,
            CHANNELS=triton.next_power_of_2(num_moduli),
            num_warps=_SUM_WARPS,
        )
    return sums
