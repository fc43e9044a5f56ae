"""Cuts of clear values on a GPU, one pass each, in Triton: what `ResidueSystem.floor_shift` and its callers do in many.

Notation: p_0 < … < p_{M−1} the moduli, P_i = p_0⋯p_{i−1}, x = Σ_i d_i·P_i with symmetric mixed-radix digits d_i.

1. d_g = x·P_g^{−1} − Σ_{i<g} d_i·(P_i·P_g^{−1}) mod p_g. The sum stays below M·2^47 and is reduced once, as in
   `lift_triton`.
2. x modulo 2^t is Σ_i d_i·P_i modulo 2^64, in integers that wrap around, and then its low t bits.
3. An integer below 2^62 enters a residue as three limbs of 24 bits.

The dither of a cut is a sum of n integers of t bits, each of one or two words of ChaCha20. It is a sum of integers, so
threads may add to it in any order.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chacha_triton import _blocks, _divide
from .lift_triton import _constant, _remainder, _symmetric

_BLOCK = 128
_TILE = 128  # blocks of ChaCha20, one to a thread
_LIMB = 24
_MOST_CHANNELS = 16

# Sums from which a thread adds up all terms of its places, instead of a thread for each block of each term.
FEWEST_WHOLE = 2**17


class CutTables(NamedTuple):
    """What the kernels know about the moduli. Plain numbers: they end as constants in the kernel's code."""

    moduli: tuple[int, ...]
    entry: tuple[int, ...]  # (M,) P_g^{−1} mod p_g, symmetric
    step: tuple[int, ...]  # (M·M,) −P_i·P_g^{−1} mod p_g at g·M + i for i < g, symmetric
    radix: tuple[int, ...]  # (M,) P_g modulo 2^64, signed
    sizes: tuple[float, ...]  # (M,) about P_g
    second: tuple[int, ...]  # (M,) 2^24 mod p_g, symmetric
    third: tuple[int, ...]  # (M,) 2^48 mod p_g, symmetric


@lru_cache(maxsize=8)
def cut_tables(moduli: tuple[int, ...]) -> CutTables:
    """The constants of one residue system: moduli ascending odd primes up to 2^24."""
    if len(moduli) > _MOST_CHANNELS or moduli[-1] > 2**_LIMB:
        raise ValueError(f"at most {_MOST_CHANNELS} moduli up to 2^{_LIMB} can be cut, not {len(moduli)}")
    products = [math.prod(moduli[:g]) for g in range(len(moduli))]  # P_g
    inverses = [pow(product, -1, p) for product, p in zip(products, moduli, strict=True)]
    step = [
        _symmetric(-products[i] * inverses[g], p) if i < g else 0
        for g, p in enumerate(moduli)
        for i in range(len(moduli))
    ]
    return CutTables(
        moduli,
        entry=tuple(_symmetric(inverse, p) for inverse, p in zip(inverses, moduli, strict=True)),
        step=tuple(step),
        radix=tuple(_symmetric(product, 2**64) for product in products),
        sizes=tuple(float(product) for product in products),
        second=tuple(_symmetric(2**_LIMB, p) for p in moduli),
        third=tuple(_symmetric(4**_LIMB, p) for p in moduli),
    )


@triton.jit
def _limbs(x: tl.tensor) -> tuple[tl.tensor, ...]:
    """int64 |x| < 2^62 as x = a + b·2^24 + c·2^48, a and b in [0, 2^24)."""
    return (x & 0xFFFFFF).to(tl.float64), ((x >> 24) & 0xFFFFFF).to(tl.float64), (x >> 48).to(tl.float64)


@triton.jit(do_not_specialize=["shift"])
def _cut_kernel(
    residues: tl.tensor,
    added: tl.tensor,
    out: tl.tensor,
    constants: tl.tensor,
    exceeded: tl.tensor,
    count: tl.tensor,
    shift: tl.tensor,
    MODULI: tl.constexpr,
    ENTRY: tl.constexpr,
    STEP: tl.constexpr,
    RADIX: tl.constexpr,
    SIZES: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    addend = tl.load(added + place, mask=inside, other=0)
    a, b, c = _limbs(addend)
    digits: tl.tuple = ()
    whole: tl.tuple = ()
    low = tl.zeros((BLOCK,), tl.int64)
    size = tl.zeros((BLOCK,), tl.float64)
    channel = residues + place  # a channel on each turn: offsets from the start would outgrow 32 bits
    for g in tl.static_range(CHANNELS):
        x = tl.load(channel, mask=inside, other=0.0) + a + b * _constant(SECOND[g]) + c * _constant(THIRD[g])
        x = _remainder(x, MODULI[g])
        whole += (x,)
        total = x * _constant(ENTRY[g])
        for i in tl.static_range(CHANNELS):
            if i < g:
                total += digits[i] * _constant(STEP[g * CHANNELS + i])
        digit = _remainder(total, MODULI[g])
        digits += (digit,)
        low += digit.to(tl.int64) * tl.full((), RADIX[g], tl.int64)
        size += digit * _constant(SIZES[g])
        channel += count
    beyond = inside & (tl.abs(size - addend.to(tl.float64)) >= tl.load(constants + CHANNELS))
    found = tl.sum(beyond.to(tl.int64), 0)
    if found > 0:
        tl.atomic_add(exceeded, found)
    low &= (tl.full((), 1, tl.int64) << tl.cast(shift, tl.int64)) - 1
    a, b, c = _limbs(low)
    target = out + place
    for g in tl.static_range(CHANNELS):
        rest = _remainder(whole[g] - a - b * _constant(SECOND[g]) - c * _constant(THIRD[g]), MODULI[g])
        tl.store(target, _remainder(rest * tl.load(constants + g), MODULI[g]), mask=inside)
        target += count


@triton.jit(do_not_specialize=["count", "limit"])
def _above_kernel(
    residues: tl.tensor,
    exceeded: tl.tensor,
    count: tl.tensor,
    limit: tl.tensor,
    MODULI: tl.constexpr,
    ENTRY: tl.constexpr,
    STEP: tl.constexpr,
    SIZES: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    digits: tl.tuple = ()
    size = tl.zeros((BLOCK,), tl.float64)
    channel = residues + place
    for g in tl.static_range(CHANNELS):
        total = tl.load(channel, mask=inside, other=0.0) * _constant(ENTRY[g])
        for i in tl.static_range(CHANNELS):
            if i < g:
                total += digits[i] * _constant(STEP[g * CHANNELS + i])
        digit = _remainder(total, MODULI[g])
        digits += (digit,)
        size += digit * _constant(SIZES[g])
        channel += count
    found = tl.sum((inside & (size > tl.cast(limit, tl.int64).to(tl.float64))).to(tl.int64), 0)
    if found > 0:
        tl.atomic_add(exceeded, found)


@lru_cache(maxsize=256)
def _constants(moduli: tuple[int, ...], shift: int, most_bits: int, device: str) -> Tensor:
    """(M+1,) float64: 2^−t modulo each prime, and the size that no value may reach."""
    inverses = [float(_symmetric(pow(2, -shift, p), p)) for p in moduli]
    return torch.tensor([*inverses, 2.0**most_bits], dtype=torch.float64, device=device)


def cut(moduli: tuple[int, ...], residues: Tensor, added: Tensor, shift: int, most_bits: int, beyond: Tensor) -> Tensor:
    """The residues of ⌊(x + added)/2^shift⌋: residues (M,n) of x, added (n,) int64 below 2^62 -> (M,n) float64.

    beyond (1,) int64: grows by the number of |x| that reach 2^most_bits.
    """
    tables, residues, added = cut_tables(moduli), residues.contiguous(), added.contiguous()
    channels, count = residues.shape
    out = torch.empty_like(residues)
    _cut_kernel[(triton.cdiv(count, _BLOCK),)](
        residues,
        added,
        out,
        _constants(moduli, shift, most_bits, str(residues.device)),
        beyond,
        count,
        shift,
        MODULI=tables.moduli,
        ENTRY=tables.entry,
        STEP=tables.step,
        RADIX=tables.radix,
        SIZES=tables.sizes,
        SECOND=tables.second,
        THIRD=tables.third,
        CHANNELS=channels,
        BLOCK=_BLOCK,
    )
    return out


def count_above(moduli: tuple[int, ...], residues: Tensor, limit: int, beyond: Tensor) -> None:
    """Add to beyond (1,) int64 how many x are above an integer limit: residues (M,n)."""
    tables, residues = cut_tables(moduli), residues.contiguous()
    channels, count = residues.shape
    _above_kernel[(triton.cdiv(count, _BLOCK),)](
        residues,
        beyond,
        count,
        limit,
        MODULI=tables.moduli,
        ENTRY=tables.entry,
        STEP=tables.step,
        SIZES=tables.sizes,
        CHANNELS=channels,
        BLOCK=_BLOCK,
    )


@triton.jit(do_not_specialize=["words", "terms", "count", "count_reciprocal", "top_mask"])
def _scattered_kernel(
    key: tl.tensor,
    index: tl.tensor,
    sums: tl.tensor,
    words: tl.tensor,
    terms: tl.tensor,
    count: tl.tensor,
    count_reciprocal: tl.tensor,
    top_mask: tl.tensor,
    nonce0: tl.tensor,
    LIMBS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """A thread for each block of the stream: its sixteen words go to their places."""
    counter = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.uint32)
    nonce1 = tl.zeros((TILE,), tl.uint32) + (tl.load(index) & 0xFFFFFFFF).to(tl.uint32)
    block = _blocks(key, counter.to(tl.int64) * 0, counter, tl.cast(nonce0, tl.uint32), nonce1, TILE)
    word = counter[:, None] * 16 + tl.arange(0, 16)[None, :].to(tl.uint32)
    row, place = _divide(word, tl.cast(count, tl.uint32), tl.cast(count_reciprocal, tl.uint32))
    inside = word < tl.cast(words, tl.uint32)
    value = block.to(tl.int64)
    if LIMBS == 1:
        value &= tl.cast(top_mask, tl.int64)
    else:
        value = tl.where(row >= tl.cast(terms, tl.uint32), (value & tl.cast(top_mask, tl.int64)) << 32, value)
    tl.atomic_add(sums + place.to(tl.int64), value, mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=["terms", "blocks", "top_mask"])
def _whole_kernel(
    key: tl.tensor,
    index: tl.tensor,
    sums: tl.tensor,
    terms: tl.tensor,
    blocks: tl.tensor,
    start: tl.tensor,
    top_mask: tl.tensor,
    nonce0: tl.tensor,
    LIMBS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """A thread for sixteen places, where a term's words begin with a block: it adds up all terms."""
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    nonce1 = tl.zeros((TILE,), tl.uint32) + (tl.load(index) & 0xFFFFFFFF).to(tl.uint32)
    total = tl.zeros((TILE, 16), tl.int64) + tl.load(start)
    counter = column.to(tl.uint32)
    for limb in tl.static_range(LIMBS):
        for _ in range(terms):
            block = _blocks(key, column.to(tl.int64) * 0, counter, tl.cast(nonce0, tl.uint32), nonce1, TILE)
            value = block.to(tl.int64)
            if limb == LIMBS - 1:
                value &= tl.cast(top_mask, tl.int64)
            total += value << (32 * limb)
            counter += tl.cast(blocks, tl.uint32)
    place = column.to(tl.int64)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(sums + place, total, mask=(column < blocks)[:, None])


@lru_cache(maxsize=256)
def _start(integer: int, device: str) -> Tensor:
    return torch.tensor([integer], device=device)


def word_sums(key: Tensor, domain: int, index: Tensor, terms: int, bits: int, count: int, start: int) -> Tensor:
    """start + Σ_s x_s[j] (count,) int64, of `terms` integers of `bits` ≤ 62 bits, as `PublicStream.word_sums`.

    `index` is an int64 tensor of one element, read when the kernel runs.
    """
    limbs = -(-bits // 32)
    words, top_mask = limbs * terms * count, 2 ** (bits - 32 * (limbs - 1)) - 1
    if not 1 <= bits <= 62 or words >= 2**32 - 16 * _TILE:
        raise ValueError(f"{terms} integers of {bits} bits for {count} places are too many for one call")
    if index.dtype != torch.int64 or index.numel() != 1 or key.shape != (8,):
        raise ValueError("an index of one int64 and a key of 8 words expected")
    nonce = int(domain) * 256
    if count % 16 == 0 and count >= FEWEST_WHOLE:
        sums = torch.empty(count, dtype=torch.int64, device=key.device)
        blocks, first = count // 16, _start(start, str(key.device))
        grid = (triton.cdiv(blocks, _TILE),)
        _whole_kernel[grid](key, index, sums, terms, blocks, first, top_mask, nonce, LIMBS=limbs, TILE=_TILE)
        return sums
    sums = torch.full((count,), start, dtype=torch.int64, device=key.device)
    grid = (triton.cdiv(words, 16 * _TILE),)
    sizes = words, terms, count, (2**32 - 1) // count
    _scattered_kernel[grid](key, index, sums, *sizes, top_mask, nonce, LIMBS=limbs, TILE=_TILE)
    return sums
