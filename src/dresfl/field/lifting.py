"""ψ: residues back to signed integers, without big integers, and to float64 correctly rounded.

Notation: p_0 < … < p_{M−1} moduli, P_i = p_0⋯p_{i−1}, d_i symmetric mixed-radix digits:
x = Σ_i d_i·P_i with |d_i| ≤ (p_i − 1)/2, for every |x| < p_0⋯p_{M−1}/2 in exactly one way.

1. Garner: d_i from residues, one channel after the other, all arithmetic modulo one p.
2. Each P_i is split into 24-bit limbs; Σ_i d_i·P_i then is one small float64 product, exact since
   M·2^23·2^24 < 2^53, and one sweep of carries.
3. The leading four limbs hold at least 73 significant bits. If anything lies below them, their last bit is set
   ("sticky"). One IEEE addition then rounds the whole integer correctly.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dresfl.kernels import canonical_, cpu, per_channel, reduce_

_LIMB_BITS = 24
_LIMB = 2.0**_LIMB_BITS


def garner_inverses(moduli: Sequence[int]) -> Tensor:
    """(M,M) float64: entry (i,j) is p_i^{−1} mod p_j for i < j, symmetric; else 0."""
    table = torch.zeros((len(moduli), len(moduli)), dtype=torch.float64)
    for i, p in enumerate(moduli):
        for j, q in enumerate(moduli[i + 1 :], i + 1):
            inverse = pow(p, -1, q)
            table[i, j] = inverse if inverse <= q // 2 else inverse - q
    return table


def radix_limbs(moduli: Sequence[int]) -> Tensor:
    """(L,M) float64: limb l of P_i = p_0⋯p_{i−1}, with room for the carries on top."""
    limbs = math.prod(moduli).bit_length() // _LIMB_BITS + 2
    table = torch.zeros((limbs, len(moduli)), dtype=torch.float64)
    radix = 1
    for i, p in enumerate(moduli):
        for limb in range(limbs):
            table[limb, i] = (radix >> (_LIMB_BITS * limb)) & (2**_LIMB_BITS - 1)
        radix *= p
    return table


def mixed_radix_digits(residues: Tensor, moduli: Tensor, inverses: Tensor, garner: Tensor) -> Tensor:
    """Symmetric mixed-radix digits (M,...) of symmetric residues (M,...)."""
    compiled = cpu.mixed_radix_digits(residues, moduli, inverses, garner)
    if compiled is not None:
        return compiled
    digits = canonical_(residues.clone(), moduli)
    for i in range(len(moduli) - 1):
        rest = digits[i + 1 :]
        rest -= digits[i]
        rest *= per_channel(garner[i, i + 1 :], rest)  # |rest| < 2^24 · 2^23
        canonical_(reduce_(rest, moduli[i + 1 :], inverses[i + 1 :]), moduli[i + 1 :])
    return digits


@lru_cache(maxsize=64)
def wrapped_radix(moduli: tuple[int, ...]) -> tuple[int, ...]:
    """P_i = p_0⋯p_{i−1} modulo 2^64, as signed numbers."""
    radix, found = 1, []
    for p in moduli:
        found.append((radix + 2**63) % 2**64 - 2**63)
        radix *= p
    return tuple(found)


def low_bits(digits: Tensor, radix: Sequence[int], bits: int) -> Tensor:
    """x modulo 2^bits, bits ≤ 62, of x = Σ_i d_i·P_i: digits (M,...), `wrapped_radix` -> (...) int64.

    Sums of int64 wrap around at 2^64, which leaves the low bits right.
    """
    total = torch.zeros(digits.shape[1:], dtype=torch.int64, device=digits.device)
    for digit, factor in zip(digits, radix, strict=True):
        total += digit.to(torch.int64) * factor
    return total.bitwise_and(2**bits - 1)


def _carry_(limbs: Tensor) -> Tensor:
    """Bring all limbs but the top one into [0, 2^24), in place; the sign ends in the top limb."""
    for low in range(limbs.shape[0] - 1):
        carry = (limbs[low] / _LIMB).floor_()
        limbs[low] -= carry * _LIMB
        limbs[low + 1] += carry
    return limbs


def nearest_float64(digits: Tensor, radix: Tensor) -> Tensor:
    """Σ_i d_i·P_i rounded once, to nearest even: digits (M,n), radix (L,M) -> (n,) float64."""
    compiled = cpu.nearest_float64(digits, radix)
    if compiled is not None:
        return compiled
    limbs = _carry_(radix @ digits)  # (L,M) @ (M,n) -> (L,n)
    negative = limbs[-1] < 0
    limbs = _carry_(torch.where(negative, -limbs, limbs))

    num_limbs, count = limbs.shape
    filled, places = limbs != 0, torch.arange(num_limbs, device=digits.device).unsqueeze(1)
    top = (filled * places).amax(0)
    padded = torch.cat((limbs.new_zeros((3, count)), limbs))  # limb l of the value is row l+3

    def leading(back: int) -> Tensor:
        return padded.gather(0, (top + 3 - back).unsqueeze(0)).squeeze(0)

    high = leading(0) * _LIMB + leading(1)  # < 2^48
    low = leading(2) * _LIMB + leading(3)
    sticky = (filled & (places < top - 3)).any(0) & (low.remainder(2) == 0)
    low += sticky
    magnitude = (high * _LIMB**2 + low) * _scales(num_limbs, str(top.device))[top]
    return torch.where(negative, -magnitude, magnitude)


@lru_cache(maxsize=64)
def _scales(num_limbs: int, device: str) -> Tensor:
    """2^(24(l−3)) for a leading limb l: exact powers of two."""
    powers = [2.0 ** (_LIMB_BITS * (limb - 3)) for limb in range(num_limbs)]
    return torch.tensor(powers, dtype=torch.float64, device=device)
