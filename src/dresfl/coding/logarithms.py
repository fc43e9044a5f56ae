"""The parts of Lagrange coefficients between points of a small grid in O(n log n), by discrete logarithms.

Notation: p one prime, g a primitive root of it, log d the exponent e with g^e = d modulo p, 0 ≤ e < p − 1. Nodes
x_1..x_R and targets z are integers in 0..n, n < p. The barycentric form of a Lagrange coefficient has three factors:

    ℓ_j(z) = v(z) · w_j / (z − x_j),   v(z) = Π_i (z − x_i),   w_j = 1 / Π_{i≠j} (x_j − x_i)

Written as products, all w_j together take R² factors. But log v(z) = E(z) and log w_j = −E(x_j) with

    E(y) = Σ_{i: x_i≠y} log(y − x_i)

which is a convolution: of the nodes' indicator with the logarithms of the differences −n..n. One Fourier transform
gives it at all points of the grid. The inverses of the differences come from a table.

**Exactness.** Logarithms below 2^24 enter the transform as two parts below 2^12, one real and one imaginary. The values
that come out are integers below 2^12·R. In float64 a transform of length L adds an error of about 2^−52·log2(L) of
√R·√L·2^12, so below 10^−4 for all n up to 2^17. Rounding to the nearest integer removes it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

LARGEST_GRID = 2**17  # all clients that messages can number, and their shards and masks
_PART_BITS = 12  # logarithms and exponents are cut into a high and a low part of so many bits
_PART = 2**_PART_BITS
_BYTES_AT_A_TIME = 2**26  # of transforms
_PLAIN_TO = 6  # so many terms for each point of the grid take less time than the transform


@final
@dataclass(frozen=True, eq=False)
class GridFactors:
    """The three factors of the coefficients, for S sets of R nodes: residues in [0, p)."""

    at_targets: Integers  # (M,S,targets): v(z)
    weights: Integers  # (M,S,R): w_j
    inverses: Integers  # (M,S,targets,R): 1/(z − x_j)


def grid_factors(moduli: Sequence[int], nodes: npt.ArrayLike, targets: Sequence[int]) -> GridFactors:
    """The factors for nodes (S,R) and some targets that are in none of the sets. Every party runs it.

    Points are integers from 0 to below every modulus and LARGEST_GRID. Moduli are primes below 2^24.

    >>> found = grid_factors([97], [[3, 5]], [4])
    >>> found.at_targets.tolist() == [[[96]]], found.inverses.tolist() == [[[[1, 96]]]]
    (True, True)
    """
    x, z = np.asarray(nodes, dtype=np.int64), np.array(targets, dtype=np.int64)  # (S,R), (targets,)
    grid = _grid(tuple(moduli), _reach(moduli, int(max(x.max(), z.max()))))
    sets, count = x.shape
    points = np.concatenate((x, np.broadcast_to(z, (sets, len(z)))), 1)  # (S,R+targets)
    plain = count * (count + len(z)) < _PLAIN_TO * grid.reach
    sums, step = grid.plain_sums if plain else grid.sums, max(1, _BYTES_AT_A_TIME // (16 * grid.transform.size))
    blocks = [sums(x[first : first + step], points[first : first + step]) for first in range(0, sets, step)]
    exponents = np.concatenate(blocks, 1)  # (M,S,R+targets)
    exponents[:, :, :count] *= -1
    factors = grid.powers(exponents % grid.orders[:, :, None])
    inverses = grid.inverses[:, z[:, None] - x[:, None, :] + grid.reach]
    return GridFactors(factors[:, :, count:], factors[:, :, :count], inverses)


@final
@dataclass(frozen=True, eq=False)
class _Grid:
    """The tables for points below `reach`, for every modulus."""

    reach: int
    moduli: Integers  # (M,1)
    logs: Integers  # (M,2·reach): log (d − reach) at place d; 0 at place reach
    inverses: Integers  # (M,2·reach): likewise 1/(d − reach)
    transform: npt.NDArray[np.complex128]  # (M,2·reach): of the logarithms, high parts real and low ones imaginary
    low_powers: Integers  # (M,2^12): g^i
    high_powers: Integers  # (M,2^12): g^(2^12·i)

    @property
    def orders(self) -> Integers:
        """(M,1): p − 1."""
        return self.moduli - 1

    def sums(self, nodes: Integers, points: Integers) -> Integers:
        """E at some points, for each set of nodes: (S,R), (S,n) -> (M,S,n), by a transform over the whole grid."""
        there = np.zeros((nodes.shape[0], 2 * self.reach))
        np.put_along_axis(there, nodes, 1.0, 1)
        product = np.fft.fft(there)[None] * self.transform[:, None]  # (M,S,2·reach)
        values = np.take_along_axis(np.fft.ifft(product), points[None], 2)  # (M,S,n)
        high, low = np.rint(values.real).astype(np.int64), np.rint(values.imag).astype(np.int64)
        return (high << _PART_BITS) + low

    def plain_sums(self, nodes: Integers, points: Integers) -> Integers:
        """`sums` term by term: faster for few nodes in a large grid."""
        found: Integers = self.logs[:, points[:, :, None] - nodes[:, None, :] + self.reach].sum(3)
        return found

    def powers(self, exponents: Integers) -> Integers:
        """g^e for exponents (M,...) in [0, p − 1)."""
        flat = exponents.reshape(len(self.moduli), -1)
        high = np.take_along_axis(self.high_powers, flat >> _PART_BITS, 1)
        low = np.take_along_axis(self.low_powers, flat & (_PART - 1), 1)
        return (high * low % self.moduli).reshape(exponents.shape)


def _reach(moduli: Sequence[int], largest: int) -> int:
    """The size of the grid whose tables serve points up to `largest`: few sizes, so that tables are used again."""
    return min(1 << max(4, largest.bit_length()), *moduli)


@lru_cache(maxsize=16)
def _grid(moduli: tuple[int, ...], reach: int) -> _Grid:
    roots, found = zip(*(_logarithms(p, reach) for p in moduli), strict=True)
    p = np.array(moduli, dtype=np.int64).reshape(-1, 1)
    positive = np.stack(found)  # (M,reach): of 0..reach − 1
    negative = (positive[:, :0:-1] + (p - 1) // 2) % (p - 1)  # of 1 − reach..−1, since −1 = g^((p−1)/2)
    around = np.zeros((len(moduli), 2 * reach), dtype=np.int64)  # differences modulo 2·reach
    around[:, :reach], around[:, reach + 1 :] = positive, negative
    transform = np.fft.fft((around >> _PART_BITS) + 1j * (around & (_PART - 1)))
    low = np.stack([_powers_of(g, _PART, p) for p, g in zip(moduli, roots, strict=True)])
    high = np.stack([_powers_of(pow(g, _PART, p), _PART, p) for p, g in zip(moduli, roots, strict=True)])
    logs = np.roll(around, reach, 1)
    grid = _Grid(reach, p, logs, np.empty_like(logs), transform, low, high)
    grid.inverses[:] = grid.powers(-logs % (p - 1))
    return grid


@lru_cache(maxsize=256)
def _logarithms(p: int, reach: int) -> tuple[int, Integers]:
    """A primitive root g of p, and the logarithms of 0..reach − 1 to it (0 in place of that of 0).

    Small steps and giant steps (Shanks) for the primes below `reach`; logarithms of products are sums.
    """
    g, order = _primitive_root(p), p - 1
    factors = _smallest_factors(reach)
    primes = np.flatnonzero(factors == np.arange(reach))[2:]  # without 0 and 1
    logs = np.zeros(reach, dtype=np.int64)
    if len(primes):
        count = min(order, math.isqrt(order * len(primes)) + 1)  # small steps: as many as giant ones of all primes
        small = _powers_of(g, count, p)
        rank = np.argsort(small)
        ascending = small[rank]
        giant = _powers_of(pow(g, -count, p), -(-order // count), p)
        reached = primes[:, None] * giant % p  # (primes,giant): q·g^(−count·i)
        place = np.minimum(np.searchsorted(ascending, reached), count - 1)
        turn = (ascending[place] == reached).argmax(1)  # each prime meets the small steps
        logs[primes] = (turn * count + rank[place[np.arange(len(primes)), turn]]) % order
    of_primes, rest = logs.copy(), np.arange(reach)
    logs = np.zeros(reach, dtype=np.int64)
    while rest.max() > 1:
        logs += of_primes[factors[rest]]
        rest //= np.maximum(1, factors[rest])
    logs %= order
    logs.setflags(write=False)
    return g, logs


def _powers_of(base: int, count: int, p: int) -> Integers:
    """base^0 … base^(count − 1) modulo p, by doubling.

    >>> _powers_of(3, 6, 7).tolist()
    [1, 3, 2, 6, 4, 5]
    """
    found = np.ones(1, dtype=np.int64)
    while len(found) < count:
        found = np.concatenate((found, found * pow(base, len(found), p) % p))
    return found[:count]


def _primitive_root(p: int) -> int:
    """The least g whose powers are all residues but 0.

    >>> _primitive_root(7), _primitive_root(2), _primitive_root(16777213)
    (3, 1, 5)
    """
    order, rest, divisors = p - 1, p - 1, []
    for d in range(2, math.isqrt(p) + 1):
        if rest % d == 0:
            divisors.append(d)
            while rest % d == 0:
                rest //= d
    if rest > 1:
        divisors.append(rest)
    return next(g for g in range(1, p) if all(pow(g, order // d, p) != 1 for d in divisors))


def _smallest_factors(reach: int) -> Integers:
    """The least prime factor of each number below `reach`; 0 and 1 have themselves.

    >>> _smallest_factors(10).tolist()
    [0, 1, 2, 3, 2, 5, 2, 7, 2, 3]
    """
    factors = np.arange(reach)
    for d in range(math.isqrt(reach), 1, -1):
        factors[d * d :: d] = np.minimum(factors[d * d :: d], d)
    return factors
