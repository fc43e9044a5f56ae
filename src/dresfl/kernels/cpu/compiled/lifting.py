"""Residues to integers: combined, as mixed-radix digits, and as the nearest float64, a block of columns at a time."""

from typing import Any

import numba
import numpy as np

from .vectors import compiled, pointer, read

_BLOCK = 128  # columns whose digits of all channels, and their limbs, stay in the first-level cache


@compiled
def _digits(matrix: Any, p: int, inverses: int, garner: int) -> None:
    """Garner's conversion, in place: residues (M,n), |r| ≤ p/2 + 2 -> symmetric mixed-radix digits."""
    channels = matrix.shape[0]
    modulus, row = read(p), matrix[0]  # the first residue, once canonical, is the first digit
    half = (modulus - 1) / 2
    for i in range(row.size):
        value = row[i]
        value = value - modulus if value > half else value
        row[i] = value + modulus if value < -half else value
    for source in range(channels - 1):
        known = matrix[source]
        for m in range(source + 1, channels):
            modulus, inverse = read(p + 8 * m), read(inverses + 8 * m)
            factor, half, row = read(garner + 8 * (source * channels + m)), (modulus - 1) / 2, matrix[m]
            for i in range(row.size):
                value = (row[i] - known[i]) * factor
                value -= modulus * np.rint(value * inverse)
                value = value - modulus if value > half else value
                row[i] = value + modulus if value < -half else value


@compiled
def _nearest(matrix: Any, table: Any, scales: Any, radix: int, results: Any) -> None:
    """results (n,) = Σ_i d_i·P_i rounded once: digits (M,n), table (L,n) to work in; `field.lifting` explains it."""
    (channels, size), limbs = matrix.shape, table.shape[0]
    table[:] = 0.0
    for limb in range(limbs):
        row = table[limb]
        for m in range(channels):
            factor, source = read(radix + 8 * (limb * channels + m)), matrix[m]
            for i in range(size):
                row[i] += factor * source[i]
    top = table[limbs - 1]
    for sweep in range(2):  # carries; then, of the negative ones, the absolute value, and carries again
        if sweep == 1:
            for i in range(size):
                results[i] = -1.0 if top[i] < 0 else 1.0
            for limb in range(limbs):
                row = table[limb]
                for i in range(size):
                    row[i] *= results[i]
        for limb in range(limbs - 1):
            row, above = table[limb], table[limb + 1]
            for i in range(size):
                carry = np.floor(row[i] * 2.0**-24)
                row[i] -= carry * 2.0**24
                above[i] += carry
    for i in range(size):
        lead = limbs - 1
        while lead > 0 and table[lead, i] == 0.0:
            lead -= 1
        high = table[lead, i] * 2.0**24 + (table[lead - 1, i] if lead > 0 else 0.0)
        rest = (table[lead - 2, i] * 2.0**24 if lead > 1 else 0.0) + (table[lead - 3, i] if lead > 2 else 0.0)
        below = lead - 4
        while below >= 0 and table[below, i] == 0.0:
            below -= 1
        if below >= 0 and np.int64(rest) % 2 == 0:
            rest += 1.0  # the sticky bit
        results[i] *= (high * 2.0**48 + rest) * scales[lead]


@compiled
def _scales(limbs: int) -> Any:
    return np.array([2.0 ** (24.0 * (limb - 3)) for limb in range(limbs)])


@compiled
def mixed_radix(
    first: int, last: int, channels: int, columns: int, digits: int, p: int, inverses: int, garner: int
) -> None:  # fmt: skip
    """The symmetric mixed-radix digits of residues (M,n), in place, of columns first ≤ i < last."""
    matrix = numba.carray(pointer(digits), (channels, columns), np.float64)
    for low in range(first, last, _BLOCK):
        _digits(matrix[:, low : min(low + _BLOCK, last)], p, inverses, garner)


@compiled
def nearest(
    first: int, last: int, channels: int, columns: int, limbs: int, digits: int, radix: int, out: int
) -> None:  # fmt: skip
    """out (n,) = Σ_i d_i·P_i rounded once: digits (M,n), radix (L,M) of 24-bit limbs."""
    matrix = numba.carray(pointer(digits), (channels, columns), np.float64)
    results = numba.carray(pointer(out), columns, np.float64)
    table, scales = np.empty((limbs, _BLOCK), np.float64), _scales(limbs)
    for low in range(first, last, _BLOCK):
        high = min(low + _BLOCK, last)
        _nearest(matrix[:, low:high], table[:, : high - low], scales, radix, results[low:high])


@compiled
def _combine(rows: Any, low: int, count: int, m: int, factors: int, terms: int, p: float, inverse: float, out: Any) -> None:
    """out (n,) = Σ_j factors[j]·row j of channel m, columns from `low` on, reduced after every `terms` terms."""
    for j in range(count):
        source = numba.carray(pointer(rows[j, 0] + m * rows[j, 1] + low * 8), out.size, np.float64)
        factor = read(factors + 8 * j)
        if j == 0:
            for i in range(out.size):
                out[i] = factor * source[i]
        else:
            for i in range(out.size):
                out[i] += factor * source[i]
        if (j + 1) % terms == 0 or j + 1 == count:
            for i in range(out.size):
                out[i] -= p * np.rint(out[i] * inverse)


@compiled
def combine_rows(
    first: int, last: int, channels: int, count: int, results: int, columns: int, terms: int,
    rows: int, factors: int, p: int, inverses: int, out: int,
) -> None:  # fmt: skip
    """out (M,S,n) = Σ_j factors[m,s,j]·row j, reduced, in blocks first ≤ b < last of 4·_BLOCK columns.

    rows (R,2) int64: the address of row j, (M,n) contiguous along n, and the bytes from channel to channel.
    """
    table = numba.carray(pointer(rows), (count, 2), np.int64)
    found = numba.carray(pointer(out), (channels, results, columns), np.float64)
    for block in range(first, last):
        low, high = block * 4 * _BLOCK, min((block + 1) * 4 * _BLOCK, columns)
        for m in range(channels):
            modulus, inverse = read(p + 8 * m), read(inverses + 8 * m)
            for s in range(results):
                place = factors + 8 * (m * results + s) * count
                _combine(table, low, count, m, place, terms, modulus, inverse, found[m, s, low:high])


@compiled
def decode_lift(
    first: int, last: int, channels: int, count: int, value_channels: int, columns: int, limbs: int, terms: int,
    rows: int, factors: int, p: int, inverses: int, garner: int, radix: int, out: int, exceeded: int,
) -> None:  # fmt: skip
    """out (n,): Σ_j factors[m,j]·row j, lifted, in blocks first ≤ b < last of _BLOCK columns; rows as in `combine_rows`.

    exceeded (blocks,) int64: how many values of each block have a digit beyond the first `value_channels`.
    """
    table = numba.carray(pointer(rows), (count, 2), np.int64)
    results = numba.carray(pointer(out), columns, np.float64)
    counts = numba.carray(pointer(exceeded), (columns + _BLOCK - 1) // _BLOCK, np.int64)
    room, limb_room, scales = np.empty((channels, _BLOCK)), np.empty((limbs, _BLOCK)), _scales(limbs)
    for block in range(first, last):
        low, high = block * _BLOCK, min((block + 1) * _BLOCK, columns)
        digits = room[:, : high - low]
        for m in range(channels):
            modulus, inverse = read(p + 8 * m), read(inverses + 8 * m)
            _combine(table, low, count, m, factors + 8 * m * count, terms, modulus, inverse, digits[m])
        _digits(digits, p, inverses, garner)
        wrong = 0
        for i in range(high - low):
            beyond = False
            for m in range(value_channels, channels):
                beyond |= digits[m, i] != 0.0
            wrong += beyond
        counts[block] = wrong
        _nearest(digits, limb_room[:, : high - low], scales, radix, results[low:high])


BLOCK = _BLOCK
