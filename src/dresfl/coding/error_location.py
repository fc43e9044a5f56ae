"""Which of n values do not lie on the polynomial that the others lie on: Reed–Solomon error location, prime by prime.

Notation: x_1..x_n the points, R the threshold, A the most errors, n ≥ R + 2A. The syndromes of values y are

    S_k = Σ_j v_j x_j^k y_j,   k = 0 … n−R−1,   v_j = 1 / Π_{i≠j} (x_j − x_i)

All of them are 0 if and only if y is a polynomial of degree < R at the points. Errors e_j make S_k = Σ_j (v_j e_j)
x_j^k, a sequence whose shortest linear recurrence has exactly the erring x_j as roots: Berlekamp and Massey find it
from 2A syndromes. Then S'_k = S_{k+1} − x·S_k are the syndromes without the value at x. So what was found is checked by
the syndromes that are left, and the same positions serve all combinations and all primes.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dresfl.errors import UsageError

Integers = npt.NDArray[np.int64]

_LARGEST_MODULUS = 2**25  # so that a sum of 2^13 products stays below 2^63
_TERMS = 2**13
_CACHED_CHECKS = 256


def locate_errors(
    moduli: Sequence[int], points: Sequence[int], values: npt.ArrayLike, threshold: int, max_errors: int
) -> tuple[int, ...] | None:
    """Where values deviate: the fewest positions without which all lie on polynomials of degree < threshold.

    The coordinator runs it on the answers of a round, every client on what was published about a dealer.
    values (M,t,n): t rows of values for each modulus, integers of any sign. The positions are those of all rows and all
    moduli together, ascending. None: no `max_errors` positions or fewer explain the values. With n ≥ threshold +
    2·max_errors points there is at most one answer.

    >>> squares = [x * x % 97 for x in range(1, 8)]
    >>> locate_errors([97], range(1, 8), [[squares]], threshold=3, max_errors=2)
    ()
    >>> squares[4] += 1
    >>> locate_errors([97], range(1, 8), [[squares]], threshold=3, max_errors=2)
    (4,)
    """
    found = np.asarray(values, dtype=np.int64)
    if found.ndim != 3 or found.shape[0] != len(moduli) or found.shape[2] != len(points):
        raise UsageError(f"values of shape {found.shape} came for {len(moduli)} moduli and {len(points)} points")
    if max_errors < 0 or threshold < 1 or len(points) < threshold + 2 * max_errors:
        raise UsageError(
            f"{len(points)} points do not locate {max_errors} errors at threshold {threshold}",
            f"{threshold} + 2·{max_errors} points are needed",
        )
    check = _parity_check(tuple(moduli), tuple(points), threshold)  # (M,n−R,n)
    p = np.array(moduli, dtype=np.int64).reshape(-1, 1, 1)
    syndromes = _product(found % p, check, p)  # (M,t,n−R)
    positions: list[int] = []
    while syndromes.any():
        channel, row, _ = np.argwhere(syndromes)[0].tolist()
        new = _roots(moduli[channel], points, syndromes[channel, row].tolist(), max_errors - len(positions))
        if not new:
            return None
        for position in new:
            syndromes = (syndromes[..., 1:] - points[position] * syndromes[..., :-1]) % p
        positions += new
    return tuple(sorted(positions))


def _product(values: Integers, check: Integers, p: Integers) -> Integers:
    """values (M,t,n) times check (M,s,n), transposed, modulo p -> (M,t,s). Sums are exact in 63 bits."""
    total = np.zeros((values.shape[0], values.shape[1], check.shape[1]), dtype=np.int64)
    for start in range(0, values.shape[2], _TERMS):
        part = slice(start, start + _TERMS)
        total += values[..., part] @ check[..., part].swapaxes(1, 2) % p
    return total % p


@lru_cache(maxsize=_CACHED_CHECKS)  # the same clients answer many rounds
def _parity_check(moduli: tuple[int, ...], points: tuple[int, ...], threshold: int) -> Integers:
    """(M,n−R,n): v_j x_j^k, whose product with values gives their syndromes."""
    if max(moduli) > _LARGEST_MODULUS:
        raise UsageError(f"errors are located modulo primes up to {_LARGEST_MODULUS}, not {max(moduli)}")
    if len(set(points)) != len(points) or not 0 < min(points) <= max(points) < min(moduli):
        raise UsageError("points must be distinct, positive and below every modulus")
    p, x = np.array(moduli, dtype=np.int64).reshape(-1, 1), np.array(points, dtype=np.int64)
    gaps = np.ones((len(moduli), len(points)), dtype=np.int64)
    for place, point in enumerate(points):
        differences = x - point
        differences[place] = 1
        gaps = gaps * differences % p
    rows = [[pow(gap, -1, modulus) for gap in row] for row, modulus in zip(gaps.tolist(), moduli, strict=True)]
    check = np.empty((len(moduli), len(points) - threshold, len(points)), dtype=np.int64)
    power = np.array(rows, dtype=np.int64)
    for k in range(check.shape[1]):
        check[:, k] = power
        power = power * x % p
    check.setflags(write=False)
    return check


def _roots(modulus: int, points: Sequence[int], syndromes: list[int], most: int) -> list[int]:
    """The positions of at most `most` points whose powers the sequence sums; empty: there are none such."""
    recurrence = _shortest_recurrence(modulus, syndromes[: 2 * most])
    length = len(recurrence) - 1
    if not 1 <= length <= most:
        return []
    x, value = np.array(points, dtype=np.int64), np.zeros(len(points), dtype=np.int64)
    for coefficient in recurrence:  # x^L + c_1 x^(L−1) + … + c_L
        value = (value * x + coefficient) % modulus
    positions: list[int] = np.flatnonzero(value == 0).tolist()
    return positions if len(positions) == length else []


def _shortest_recurrence(modulus: int, sequence: list[int]) -> list[int]:
    """Berlekamp–Massey: (1, c_1, …, c_L) of least L with s_n + c_1 s_{n−1} + … + c_L s_{n−L} = 0 for all n ≥ L.

    >>> _shortest_recurrence(97, [1, 1, 2, 3, 5, 8])
    [1, 96, 96]
    """
    current, before = [1], [1]
    length, since, last = 0, 1, 1  # `before` was the recurrence when the length last grew, with discrepancy `last`
    for place, value in enumerate(sequence):
        past = sequence[place - 1 :: -1] if place else []
        wrong = (value + sum(c * s for c, s in zip(current[1:], past, strict=False))) % modulus
        if wrong:
            factor = wrong * pow(last, -1, modulus) % modulus
            shifted = [0] * since + [factor * b for b in before]
            width = max(len(current), len(shifted))
            mended = [
                (a - b) % modulus
                for a, b in zip(
                    current + [0] * (width - len(current)), shifted + [0] * (width - len(shifted)), strict=True
                )
            ]
            if 2 * length <= place:
                length, before, last, since = place + 1 - length, current, wrong, 0
            current = mended
        since += 1
    return (current + [0] * (length + 1 - len(current)))[: length + 1]
