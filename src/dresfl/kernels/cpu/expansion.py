"""Seeds to residues, compiled: sums of uniform residues, and residues of bounded integers. `field.random` defines both.

Every function returns None where nothing is compiled for it; then torch does the steps one by one, in `field.random`.
The keystream is used as it is made: no more than a few kilobytes of it exist at a time.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from dresfl.kernels import cpu

from .sharing import share

LARGEST_MODULUS = 2**24
MOST_LIMBS = 256  # so many products of a word and a residue stay below 2^64

# Room for the words that a group leaves out: so many standard deviations more than the mean. Else it is done again.
_DEVIATIONS = 8

# Below this one thread takes less than about 0.3 ms.
_PARALLEL_WORDS = 2**18


def _fits(keys: Tensor, moduli: Tensor, inverses: Tensor) -> bool:
    if cpu._compiled is None or keys.dtype != torch.int32 or keys.device.type != "cpu" or not keys.shape[0]:
        return False
    regular = all(x.dtype == torch.float64 and x.device.type == "cpu" and x.is_contiguous() for x in (moduli, inverses))
    return regular and float(moduli.max()) < LARGEST_MODULUS


class _Constants(NamedTuple):
    """What the kernels need to know of the moduli."""

    p: Tensor  # (M,) int64
    largest: Tensor  # (M,) int64: the largest word that is used
    radix: Tensor  # (M,) float64: 2^32 modulo each p, symmetric
    rejected: float  # the largest share of words that are not used


def _constants(moduli: Tensor) -> _Constants:
    return _constants_of(tuple(moduli.tolist()))


@lru_cache(maxsize=64)  # for short sums they would take most of the time
def _constants_of(moduli: tuple[float, ...]) -> _Constants:
    p = torch.tensor([int(p) for p in moduli])
    largest = 2**32 // p * p - 1
    radix = ((2**32 + p // 2) % p - p // 2).to(torch.float64)
    return _Constants(p, largest, radix, float((2**32 - 1 - largest).max()) * 2.0**-32)


def _powers(moduli: Tensor, limbs: int) -> Tensor:
    return _powers_of(tuple(moduli.tolist()), limbs)


@lru_cache(maxsize=256)
def _powers_of(moduli: tuple[float, ...], limbs: int) -> Tensor:
    """(M,limbs) int64: 2^(32 i) modulo each p."""
    return torch.tensor([[pow(2, 32 * i, int(p)) for i in range(limbs)] for p in moduli])


def uniform_sum(
    keys: Tensor, coefficients: Tensor, count: int, nonce0: int, moduli: Tensor, inverses: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Σ_s coefficients[m,s]·w_s[m,j] modulo p_m, and the words that it leaves out: (M,count) float64, (J,3) int64.

    w_s[m,j] is word j of stream (nonce0, m) of keys (S,8). A word that is not below the largest multiple of p_m in
    [0, 2^32) is left out; its seed, channel and place are a row of the second result.
    """
    if not count or not _fits(keys, moduli, inverses):
        return None
    channels, seeds, compiled = len(moduli), keys.shape[0], cpu._compiled
    p, largest, radix, rejected = _constants(moduli)
    factors, keys = (coefficients.to(torch.int64) % p.view(-1, 1)).contiguous(), keys.contiguous()
    out = torch.empty((channels, count), dtype=torch.float64)
    groups = -(-count // compiled.GROUP)
    found = torch.empty((channels, groups), dtype=torch.int64)
    expected = compiled.GROUP * seeds * rejected
    room = int(expected + _DEVIATIONS * math.sqrt(expected)) + _DEVIATIONS
    while True:
        again = torch.empty((channels, groups, room), dtype=torch.int64)
        tensors = keys, factors, largest, moduli, inverses, radix, out, found, again
        large = channels * seeds * count >= _PARALLEL_WORDS
        share(compiled.uniform_sum, channels * groups, large, (seeds, count, nonce0, room), *tensors)
        most = int(found.max())
        if most <= room:
            break
        room = most
    if not most:
        return out, torch.empty((0, 3), dtype=torch.int64)
    channel, group, nth = (torch.arange(room) < found.unsqueeze(-1)).nonzero().unbind(1)
    place = again[channel, group, nth]
    return out, torch.stack((place // count, channel, place % count), 1)


def bounded(keys: Tensor, bits: int, count: int, nonce0: int, moduli: Tensor, inverses: Tensor) -> Tensor | None:
    """Symmetric residues (M,S,count) of Σ_i w_i·2^(32 i) < 2^bits; w_i is word j of stream (nonce0, i) of a key."""
    limbs = -(-bits // 32)
    if not count or limbs > MOST_LIMBS or not _fits(keys, moduli, inverses):
        return None
    channels, seeds, compiled = len(moduli), keys.shape[0], cpu._compiled
    powers = _powers(moduli, limbs)
    out = torch.empty((channels, seeds, count), dtype=torch.float64)
    numbers = channels, seeds, count, limbs, 2 ** (bits - 32 * (limbs - 1)) - 1, nonce0
    tensors = keys.contiguous(), powers, moduli, inverses, _constants(moduli).radix, out
    large = (limbs + channels) * seeds * count >= _PARALLEL_WORDS
    share(compiled.bounded, seeds * -(-count // compiled.GROUP), large, numbers, *tensors)
    return out


def bounded_sum(
    keys: Tensor,
    coefficients: Tensor,
    bits: int,
    first: int,
    count: int,
    nonce0: int,
    moduli: Tensor,
    inverses: Tensor,
) -> Tensor | None:
    """Σ_s coefficients[m,s]·x_s[first + j] modulo p_m: (M,count) float64; x_s are the integers of `bounded`."""
    limbs = -(-bits // 32)
    if not count or limbs > MOST_LIMBS or not _fits(keys, moduli, inverses):
        return None
    channels, seeds, compiled = len(moduli), keys.shape[0], cpu._compiled
    constants, powers = _constants(moduli), _powers(moduli, limbs)
    p = constants.p.view(-1, 1, 1)
    factors = (coefficients.to(torch.int64).unsqueeze(2) % p * powers.unsqueeze(1) % p).contiguous()  # (M,S,limbs)
    out = torch.empty((channels, count), dtype=torch.float64)
    numbers = channels, seeds, count, first, limbs, 2 ** (bits - 32 * (limbs - 1)) - 1, nonce0
    tensors = keys.contiguous(), factors, moduli, inverses, constants.radix, out
    large = (1 + channels) * limbs * seeds * count >= _PARALLEL_WORDS
    share(compiled.bounded_sum, -(-(first % 16 + count) // compiled.GROUP), large, numbers, *tensors)
    return out
