"""Decode and lift in one pass over the answers, on a GPU, in Triton: the same bits as `ResidueField.lift`.

Notation: p_0 < … < p_{M−1} the moduli, R answers, P coordinates; y_mj the residue modulo p_m of answer j, λ_mj the
decoder's coefficient. Every coordinate x is fixed by s_m = Σ_j λ_mj·y_mj ≡ x (mod p_m); wanted is x as float64,
rounded once, and whether |x| ≤ (p_0⋯p_{V−1} − 1)/2, where the first V moduli carry values and the rest are headroom.

Each answer is read once and only x is written. Memory is the limit if the arithmetic is cheap enough. It is, because:

1. Consecutive moduli are multiplied up to *radices* q_0, …, q_{G−1} < 2^24 (three 8-bit primes, or one 24-bit prime,
   each), values apart from headroom. Garner's method then takes G(G+1)/2 steps where M(M+1)/2 would be needed.
2. With Q_g = q_0⋯q_{g−1}, the symmetric mixed-radix digits of x = Σ_g d_g·Q_g are

       d_g = x·Q_g^{−1} − Σ_{i<g} d_i·(Q_i·Q_g^{−1})   mod q_g,    x ≡ Σ_{m in g} s_m·e_m   mod q_g,

   e_m being 1 modulo p_m and 0 modulo the other primes of q_g. Both sums are one dot product with constants below
   2^23; it stays below 2^51, exact in float64 in any order, fused or not, and is reduced *once*. Below 2^51 the
   rounded quotient is so good that the remainder is already the unique |d| ≤ (q−1)/2 (`_remainder`).
   The s_m are not reduced at all: they enter the dot product as they are.
3. x is in range just if its value digits alone give the residue of x modulo every headroom radix.
4. Σ_g d_g·Q_g in 24-bit limbs, as in `field.lifting`, but with *balanced* limbs, |limb| ≤ 2^23: no pass for the sign.
   The four limbs from the first non-zero one on hold at least 70 bits. What lies below them is worth less than one
   unit of the last of them, so ±¼ in its place rounds the same way: boundaries of rounding are whole numbers there.

The constants are compiled into the kernel; one compilation, some seconds, serves one set of moduli and one R.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_RADIX_LIMIT = 2**24
_LIMB_BITS = 24

# A dot product below 2^51 leaves, after one reduction, the canonical remainder.
_EXACT = 2**51

# Answers, of each modulus of a radix, that are asked for before the first is used: enough to keep memory busy.
_MOST_AT_ONCE = 12

_WARPS = 4


class LiftTables(NamedTuple):
    """What `decode_lift` knows about the moduli. Plain integers: they end as constants in the kernel's code.

    Flat tuples, for the compiler's sake. G radices, the first `num_value_radices` of them for values.
    """

    moduli: tuple[int, ...]
    num_value_moduli: int
    num_value_radices: int
    radices: tuple[int, ...]  # (G,) q_g
    first: tuple[int, ...]  # (G+1,) radix g is the product of moduli first[g] .. first[g+1]−1
    entry: tuple[int, ...]  # (M,) e_m·Q_g^{−1} mod q_g, symmetric; e_m alone for headroom
    step: tuple[int, ...]  # (G·V,) −Q_i·Q_g^{−1} mod q_g at g·V + i for i < g, symmetric; −Q_i alone for headroom
    num_limbs: int
    limbs: tuple[int, ...]  # (L·V,) limb l of Q_i at l·V + i


def _symmetric(integer: int, modulus: int) -> int:
    return (integer + modulus // 2) % modulus - modulus // 2


def _grouped(moduli: Sequence[int]) -> list[list[int]]:
    """Consecutive moduli together while their product stays below 2^24."""
    groups: list[list[int]] = []
    for p in moduli:
        if groups and math.prod(groups[-1]) * p < _RADIX_LIMIT:
            groups[-1].append(p)
        else:
            groups.append([p])
    return groups


@lru_cache(maxsize=8)
def lift_tables(moduli: tuple[int, ...], num_value_moduli: int) -> LiftTables:
    """The constants of one residue system: moduli ascending odd primes below 2^24, the last ones headroom."""
    if not 0 < num_value_moduli <= len(moduli):
        raise ValueError(f"{num_value_moduli} of {len(moduli)} moduli cannot hold the values")
    if moduli[-1] >= _RADIX_LIMIT:
        raise ValueError(f"moduli must be below {_RADIX_LIMIT}, not {moduli[-1]}")
    value_groups = _grouped(moduli[:num_value_moduli])
    groups = value_groups + _grouped(moduli[num_value_moduli:])
    radices = tuple(math.prod(group) for group in groups)
    first = tuple(sum(len(group) for group in groups[:g]) for g in range(len(groups) + 1))
    num_values = len(value_groups)
    products = [math.prod(radices[:g]) for g in range(num_values)]  # Q_g

    entry: list[int] = []
    step: list[int] = []
    for g, (q, group) in enumerate(zip(radices, groups, strict=True)):
        inverse = pow(products[g], -1, q) if g < num_values else 1
        entry += [_symmetric(q // p * pow(q // p, -1, p) * inverse, q) for p in group]
        step += [_symmetric(-products[i] * inverse, q) if i < g else 0 for i in range(num_values)]

    # |x| < 2^(24·L − 1): the top limb stays balanced too. At least the four limbs that are rounded.
    num_limbs = max(4, math.prod(moduli[:num_value_moduli]).bit_length() // _LIMB_BITS + 1)
    limbs = tuple((q >> (_LIMB_BITS * limb)) % 2**_LIMB_BITS for limb in range(num_limbs) for q in products)
    if 2 * num_values * 2**23 * 2**24 >= 2**53:
        raise ValueError(f"{num_values} radices are too many to lift exactly")
    return LiftTables(moduli, num_value_moduli, num_values, radices, first, tuple(entry), tuple(step), num_limbs, limbs)


@lru_cache(maxsize=8)
def _check_exact(tables: LiftTables, num_answers: int, in_bytes: bool) -> None:
    """Every sum in the kernel stays below its bound, for the largest residues there are."""
    for g in range(len(tables.radices)):
        members = range(tables.first[g], tables.first[g + 1])
        digits = sum(
            (tables.radices[i] // 2) * abs(tables.step[g * tables.num_value_radices + i])
            for i in range(min(g, tables.num_value_radices))
        )
        if in_bytes:
            inputs = sum(num_answers * 128 * 128 * abs(tables.entry[m]) for m in members)
        else:
            inputs = sum((tables.moduli[m] // 2 + 3) * abs(tables.entry[m]) for m in members)
        if digits + inputs >= _EXACT:
            raise ValueError(f"{len(tables.moduli)} moduli and {num_answers} answers are too many to lift exactly")
    widest = num_answers * (128**2 if in_bytes else (tables.moduli[-1] // 2 + 3) ** 2)
    if widest >= (2**31 if in_bytes else 2**53 - 2**25):
        raise ValueError(f"{num_answers} answers modulo {tables.moduli[-1]} are too many to add exactly in one sum")


@triton.jit
def _constant(value: tl.constexpr) -> tl.tensor:
    # a bare Python number may be taken for float32
    return tl.full((), value, tl.float64)


@triton.jit
def _rounded(x: tl.tensor) -> tl.tensor:
    """The nearest integer, |x| < 2^51: 1.5·2^52 leaves no room for a fraction. Two fast additions; rint is slow."""
    return (x + _constant(6755399441055744.0)) - _constant(6755399441055744.0)


@triton.jit
def _remainder(x: tl.tensor, q: tl.constexpr) -> tl.tensor:
    """x mod q, canonical: |result| ≤ (q−1)/2, for odd q and integer |x| < 2^51.

    x·(1/q) is off by at most |x/q|·2^−52, so |result| ≤ q·(½ + |x/q|·2^−52) < (q+1)/2; and it is an integer.
    Up to 2^53 the same lines give |result| ≤ q/2 + 2.
    """
    return x - _rounded(x * _constant(1.0 / q)) * _constant(q * 1.0)


@triton.jit
def _exact_float(biased: tl.tensor) -> tl.tensor:
    """int32 (n + 2^31, wrapped) -> n as float64: put the 32 bits below 2^52's. Conversion instructions are slow."""
    bits = biased.to(tl.uint32, bitcast=True).to(tl.uint64) | 0x4330000000000000
    return bits.to(tl.float64, bitcast=True) - _constant(4503601774854144.0)  # 2^52 + 2^31


# Four int8 of each of four answers, transposed so that a register holds one coordinate's four, then a 4-way dot
# product: 12 instructions for 16 products, where widening and multiplying would take 32.
_DOT4 = tl.constexpr(
    """{
    .reg .b32 a, b, c, d, e;
    prmt.b32 a, $4, $5, 0x5140;
    prmt.b32 b, $6, $7, 0x5140;
    prmt.b32 c, $4, $5, 0x7362;
    prmt.b32 d, $6, $7, 0x7362;
    prmt.b32 e, a, b, 0x5410;
    dp4a.s32.s32 $0, e, $8, $12;
    prmt.b32 e, a, b, 0x7632;
    dp4a.s32.s32 $1, e, $8, $13;
    prmt.b32 e, c, d, 0x5410;
    dp4a.s32.s32 $2, e, $8, $14;
    prmt.b32 e, c, d, 0x7632;
    dp4a.s32.s32 $3, e, $8, $15;
    }"""
)


@triton.jit
def _coefficient(word: tl.tensor, j: tl.constexpr) -> tl.tensor:
    """Signed byte j mod 4 of a word."""
    return (word << (24 - 8 * (j % 4))) >> 24


@triton.jit
def _add_answers(
    total: tl.tensor,
    channel: tl.tensor,
    stride_answer: tl.tensor,
    lane: tl.tensor,
    inside: tl.tensor,
    coefficients: tl.tensor,
    low: tl.tensor,
    last_answer: tl.tensor,
    STEP: tl.constexpr,
    EVEN: tl.constexpr,
    MASKED: tl.constexpr,
    IN_BYTES: tl.constexpr,
    ASSEMBLY: tl.constexpr,
) -> tl.tensor:
    """total + Σ_j λ_j·y_j over the answers low .. low+STEP−1 of one channel; λ_j is 0 beyond the last one."""
    word = tl.full((), 0, tl.int32)
    row = channel + low * tl.cast(stride_answer, tl.int64)
    four: tl.tuple = ()
    for j in tl.static_range(STEP):
        answer = tl.load(row + lane, mask=inside, other=0) if MASKED else tl.load(row + lane)
        if EVEN:
            row += stride_answer
        else:
            row += tl.where(low + j < last_answer, stride_answer, 0)  # stay: something finite, times 0
        if not IN_BYTES:
            total += answer * tl.load(coefficients + j)
        else:
            if j % 4 == 0:
                word = tl.load(coefficients + j // 4)
                four = ()
            four += (answer,)
            if ASSEMBLY and j % 4 == 3:
                total = tl.inline_asm_elementwise(
                    _DOT4,
                    "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r,r,r",
                    [four[0], four[1], four[2], four[3], tl.zeros_like(total) + word, total],
                    dtype=tl.int32,
                    is_pure=True,
                    pack=4,
                )
            elif not ASSEMBLY or j >= STEP - STEP % 4:
                total += answer.to(tl.int32) * _coefficient(word, j)
    return total


# Were `chunks` known to be 1, its loops would vanish, all loads of the kernel come first, and registers spill.
@triton.jit(do_not_specialize=["chunks"])
def _decode_lift_kernel(
    answers: tl.tensor,
    decoder: tl.tensor,
    values: tl.tensor,
    alarm: tl.tensor,
    count: tl.tensor,
    stride_channel: tl.tensor,
    stride_answer: tl.tensor,
    last_answer: tl.tensor,
    chunks: tl.tensor,
    STEP: tl.constexpr,
    WORDS: tl.constexpr,
    EVEN: tl.constexpr,
    MASKED: tl.constexpr,
    IN_BYTES: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    MODULI: tl.constexpr,
    RADICES: tl.constexpr,
    FIRST: tl.constexpr,
    ENTRY: tl.constexpr,
    GARNER: tl.constexpr,
    LIMBS: tl.constexpr,
    NUM_RADICES: tl.constexpr,
    NUM_VALUES: tl.constexpr,
    NUM_LIMBS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    first_place = tl.program_id(0).to(tl.int64) * BLOCK
    start = first_place
    if not MASKED:
        # the last program takes a full block too, some of it for the second time: no load needs a mask
        start = tl.minimum(start, tl.cast(count, tl.int64) - BLOCK)
    lane = tl.arange(0, BLOCK)
    place = start + lane
    inside = place < count
    in_range = place >= 0
    digits: tl.tuple = ()
    for g in tl.static_range(NUM_RADICES):
        sums: tl.tuple = ()
        for _ in tl.static_range(tl.constexpr(FIRST[g]), tl.constexpr(FIRST[g + 1])):
            if IN_BYTES:
                sums += (tl.full((BLOCK,), -2147483648, dtype=tl.int32),)  # biased, see _exact_float
            else:
                sums += (tl.zeros((BLOCK,), dtype=tl.float64),)
        chunk = tl.full((), 0, tl.int32)
        while chunk < chunks:
            grown: tl.tuple = ()
            for m in tl.static_range(tl.constexpr(FIRST[g]), tl.constexpr(FIRST[g + 1])):
                grown += (
                    _add_answers(
                        sums[m - FIRST[g]],
                        answers + start + m * tl.cast(stride_channel, tl.int64),
                        stride_answer,
                        lane,
                        inside,
                        decoder + (m * chunks + chunk) * WORDS,
                        chunk * STEP,
                        last_answer,
                        STEP,
                        EVEN,
                        MASKED,
                        IN_BYTES,
                        ASSEMBLY,
                    ),
                )
            sums = grown
            chunk += 1

        total = tl.zeros((BLOCK,), dtype=tl.float64)
        for m in tl.static_range(tl.constexpr(FIRST[g]), tl.constexpr(FIRST[g + 1])):
            if IN_BYTES:
                total += _exact_float(sums[m - FIRST[g]]) * _constant(ENTRY[m])
            else:
                # the sum may come near 2^53, so this is up to 2 off the canonical residue; below it is reduced again
                total += _remainder(sums[m - FIRST[g]], MODULI[m]) * _constant(ENTRY[m])
        for i in tl.static_range(NUM_VALUES):
            if i < g:
                total += digits[i] * _constant(GARNER[g * NUM_VALUES + i])
        digit = _remainder(total, RADICES[g])
        if g < NUM_VALUES:
            digits += (digit,)
        else:
            in_range = in_range & (digit == 0.0)

    # limbs from the lowest up, the carry of each going into the next
    limbs: tl.tuple = ()
    carry = tl.zeros((BLOCK,), dtype=tl.float64)
    for limb in tl.static_range(NUM_LIMBS):
        total = carry
        for i in tl.static_range(NUM_VALUES):
            if LIMBS[limb * NUM_VALUES + i] != 0:
                total += digits[i] * _constant(LIMBS[limb * NUM_VALUES + i])
        if limb < NUM_LIMBS - 1:
            carry = _rounded(total * _constant(2.0**-24))
            total -= carry * _constant(2.0**24)
        limbs += (total,)

    # a window of four limbs, moved down while its first limb is 0; `below`: the first non-zero limb under it
    w0, w1, w2, w3 = limbs[NUM_LIMBS - 1], limbs[NUM_LIMBS - 2], limbs[NUM_LIMBS - 3], limbs[NUM_LIMBS - 4]
    below = tl.zeros((BLOCK,), dtype=tl.float64)
    scale = tl.full((BLOCK,), 2.0 ** (24 * (NUM_LIMBS - 4)), dtype=tl.float64)
    for back in tl.static_range(NUM_LIMBS - 4):
        entering = limbs[NUM_LIMBS - 5 - back]
        empty = w0 == 0.0
        below = tl.where(empty | (below != 0.0), below, entering)
        scale = tl.where(empty, scale * _constant(2.0**-24), scale)
        w0 = tl.where(empty, w1, w0)
        w1 = tl.where(empty, w2, w1)
        w2 = tl.where(empty, w3, w2)
        w3 = tl.where(empty, entering, w3)
    sticky = tl.where(below > 0.0, 0.25, tl.where(below < 0.0, -0.25, 0.0)).to(tl.float64)
    upper = w0 * _constant(2.0**24) + w1
    lower = (w2 * _constant(2.0**24) + w3) + sticky  # never −0: sticky is +0 if anything
    value = (upper * _constant(2.0**48) + lower) * scale
    tl.store(values + start + lane, value, mask=inside)

    wrong = tl.sum((inside & (place >= first_place) & (in_range == 0)).to(tl.int32), 0)
    tl.atomic_add(alarm, wrong, mask=wrong != 0, sem="relaxed")


def _chunked(decoder: Tensor, chunks: int, step: int, in_bytes: bool) -> tuple[Tensor, int]:
    """The decoder (M,R) as (M,chunks,words), zeros behind: a float64 to a word, or four int8 to an int32 word."""
    num_moduli, num_answers = decoder.shape
    spare = chunks * step - num_answers
    padded = torch.nn.functional.pad(decoder.to(torch.int8 if in_bytes else torch.float64), (0, spare))
    if not in_bytes:
        return padded.contiguous(), step
    padded = torch.nn.functional.pad(padded.view(num_moduli, chunks, step), (0, -step % 4))
    return padded.contiguous().view(torch.int32), padded.shape[-1] // 4


def decode_lift(answers: Tensor, decoder: Tensor, tables: LiftTables) -> tuple[Tensor, Tensor]:
    """The coordinator's decode and lift: answers (M,R,P), decoder (M,R) -> values (P,) float64, alarm () int32.

    x = Σ_j decoder[m,j]·answers[m,j] (mod p_m), symmetric, rounded once to float64. `alarm` counts the coordinates
    beyond ±value_bound; if it is not 0, no value may be used (those counted mean nothing). Nothing waits for the
    device, so a CUDA graph can hold the call.

    answers: int8, symmetric, if every modulus is below 256; else float64, |r| ≤ p/2 + 2. The last axis contiguous;
    fastest if P and the other strides are multiples of 16. decoder: symmetric residues of any type.
    """
    num_moduli, num_answers, count = answers.shape
    in_bytes = answers.dtype == torch.int8
    if num_moduli != len(tables.moduli) or decoder.shape != answers.shape[:2]:
        raise ValueError(
            f"answers {tuple(answers.shape)} and decoder {tuple(decoder.shape)} do not fit {len(tables.moduli)} moduli"
        )
    if not in_bytes and answers.dtype != torch.float64:
        raise ValueError(f"answers must be int8 or float64, not {answers.dtype}")
    if in_bytes and tables.moduli[-1] >= 256:
        raise ValueError(f"residues modulo {tables.moduli[-1]} do not fit int8")
    if answers.stride(2) != 1 and count > 1:
        raise ValueError("the last axis of the answers must be contiguous")
    _check_exact(tables, num_answers, in_bytes)

    values = torch.empty(count, dtype=torch.float64, device=answers.device)
    alarm = torch.zeros((), dtype=torch.int32, device=answers.device)
    if count == 0:
        return values, alarm
    chunks = -(-num_answers // _MOST_AT_ONCE)
    step = -(-num_answers // chunks)
    coefficients, words = _chunked(decoder, chunks, step, in_bytes)
    block = (4 if in_bytes else 2) * 32 * _WARPS  # per thread: one 4-byte or one 16-byte load
    _decode_lift_kernel[(triton.cdiv(count, block),)](
        answers,
        coefficients,
        values,
        alarm,
        count,
        answers.stride(0),
        answers.stride(1),
        num_answers - 1,
        chunks,
        STEP=step,
        WORDS=words,
        EVEN=num_answers % step == 0,
        MASKED=count < block,
        IN_BYTES=in_bytes,
        ASSEMBLY=isinstance(_decode_lift_kernel, triton.JITFunction),  # the interpreter has none
        MODULI=tables.moduli,
        RADICES=tables.radices,
        FIRST=tables.first,
        ENTRY=tables.entry,
        GARNER=tables.step,
        LIMBS=tables.limbs,
        NUM_RADICES=len(tables.radices),
        NUM_VALUES=tables.num_value_radices,
        NUM_LIMBS=tables.num_limbs,
        BLOCK=block,
        num_warps=_WARPS,
        num_stages=1,
    )
    return values, alarm
