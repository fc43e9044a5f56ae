"""Residues to integers: combined, as mixed-radix digits, and as the nearest float64, a block of columns at a time."""

from typing import Any

import numba
import numpy as np

from .vectors import compiled, pointer, read

_BLOCK = 128  # columns whose digits of all channels, and their limbs, stay in the first-level cache
BLOCK = 1024  # columns that are combined at a time: rows are read in runs of 8 KiB


# Rows are made of addresses. Of a slice of a matrix Numba does not know that its rows are contiguous, and LLVM would
# use no vectors. A matrix here is the address of its first value and the bytes from row to row.


@compiled
def _digits(matrix: int, row_bytes: int, size: int, channels: int, p: int, inverses: int, garner: int) -> None:
    """Garner's conversion, in place: residues (M,n), |r| ≤ p/2 + 2 -> symmetric mixed-radix digits."""
    modulus, row = read(p), numba.carray(pointer(matrix), size, np.float64)
    half = (modulus - 1) / 2
    for i in range(row.size):  # the first residue, once canonical, is the first digit
        value = row[i]
        value = value - modulus if value > half else value
        row[i] = value + modulus if value < -half else value
    for source in range(channels - 1):
        known = numba.carray(pointer(matrix + source * row_bytes), size, np.float64)
        for m in range(source + 1, channels):
            modulus, inverse = read(p + 8 * m), read(inverses + 8 * m)
            factor, half = read(garner + 8 * (source * channels + m)), (modulus - 1) / 2
            row = numba.carray(pointer(matrix + m * row_bytes), size, np.float64)
            for i in range(row.size):
                value = (row[i] - known[i]) * factor
                value -= modulus * np.rint(value * inverse)
                value = value - modulus if value > half else value
                row[i] = value + modulus if value < -half else value


@compiled
def _nearest(
    matrix: int, row_bytes: int, size: int, channels: int, limbs: int, table: Any, scales: Any, radix: int, out: int
) -> None:  # fmt: skip
    """out (n,) = Σ_i d_i·P_i rounded once: digits (M,n); table (L,_BLOCK) to work in; `field.lifting` explains it."""
    results = numba.carray(pointer(out), size, np.float64)
    table[:] = 0.0
    for limb in range(limbs):
        row = table[limb]
        for m in range(channels):
            factor = read(radix + 8 * (limb * channels + m))
            if factor == 0.0:
                continue  # about half of them: the first products of moduli have few limbs
            source = numba.carray(pointer(matrix + m * row_bytes), size, np.float64)
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
    for low in range(first, last, _BLOCK):
        _digits(digits + 8 * low, 8 * columns, min(_BLOCK, last - low), channels, p, inverses, garner)


@compiled
def nearest(
    first: int, last: int, channels: int, columns: int, limbs: int, digits: int, radix: int, out: int
) -> None:  # fmt: skip
    """out (n,) = Σ_i d_i·P_i rounded once: digits (M,n), radix (L,M) of 24-bit limbs."""
    table, scales = np.empty((limbs, _BLOCK), np.float64), _scales(limbs)
    for low in range(first, last, _BLOCK):
        size = min(_BLOCK, last - low)
        _nearest(digits + 8 * low, 8 * columns, size, channels, limbs, table, scales, radix, out + 8 * low)


@compiled
def combine_row(rows: Any, low: int, size: int, m: int, factors: int, p: float, inverse: float, out: int) -> None:
    """out (n,) = Σ_j factors[j]·row j of channel m, from column `low` on, reduced.

    Two rows at a time: a residue and two products of residues below 2^23 + 3 have an exact sum.
    """
    results, count = numba.carray(pointer(out), size, np.float64), rows.shape[0]
    for j in range(0, count, 2):
        second = min(j + 1, count - 1)
        factor, other_factor = read(factors + 8 * j), read(factors + 8 * second) if second > j else 0.0
        source = numba.carray(pointer(rows[j, 0] + m * rows[j, 1] + low * 8), size, np.float64)
        other = numba.carray(pointer(rows[second, 0] + m * rows[second, 1] + low * 8), size, np.float64)
        if j == 0:
            for i in range(size):
                value = factor * source[i] + other_factor * other[i]
                results[i] = value - p * np.rint(value * inverse)
        else:
            for i in range(size):
                value = results[i] + factor * source[i] + other_factor * other[i]
                results[i] = value - p * np.rint(value * inverse)


@compiled
def combine_rows(
    first: int, last: int, channels: int, count: int, results: int, columns: int,
    rows: int, factors: int, p: int, inverses: int, out: int,
) -> None:  # fmt: skip
    """out (M,S,n) = Σ_j factors[m,s,j]·row j, reduced, in blocks first ≤ b < last of BLOCK columns.

    rows (R,2) int64: the address of row j, (M,n) contiguous along n, and the bytes from channel to channel.
    """
    table = numba.carray(pointer(rows), (count, 2), np.int64)
    for block in range(first, last):
        low = block * BLOCK
        size = min(BLOCK, columns - low)
        for m in range(channels):
            modulus, inverse = read(p + 8 * m), read(inverses + 8 * m)
            for s in range(results):
                place = m * results + s
                target = out + 8 * (place * columns + low)
                combine_row(table, low, size, m, factors + 8 * place * count, modulus, inverse, target)


@compiled
def decode_lift(
    first: int, last: int, channels: int, count: int, value_channels: int, columns: int, limbs: int,
    rows: int, factors: int, p: int, inverses: int, garner: int, radix: int, out: int, exceeded: int,
) -> None:  # fmt: skip
    """out (n,): Σ_j factors[m,j]·row j, lifted, in blocks first ≤ b < last of BLOCK columns; rows as in `combine_rows`.

    exceeded (blocks,) int64: how many values of each block have a digit beyond the first `value_channels`.
    """
    table = numba.carray(pointer(rows), (count, 2), np.int64)
    counts = numba.carray(pointer(exceeded), (columns + BLOCK - 1) // BLOCK, np.int64)
    room, limb_room, scales = np.empty((channels, BLOCK)), np.empty((limbs, _BLOCK)), _scales(limbs)
    digits = room.ctypes.data
    for block in range(first, last):
        low = block * BLOCK
        size = min(BLOCK, columns - low)
        for m in range(channels):
            modulus, inverse = read(p + 8 * m), read(inverses + 8 * m)
            target = digits + 8 * BLOCK * m
            combine_row(table, low, size, m, factors + 8 * m * count, modulus, inverse, target)
        wrong = 0
        for start in range(0, size, _BLOCK):
            part, some = digits + 8 * start, min(_BLOCK, size - start)
            _digits(part, 8 * BLOCK, some, channels, p, inverses, garner)
            for i in range(start, start + some):
                beyond = False
                for m in range(value_channels, channels):
                    beyond |= room[m, i] != 0.0
                wrong += beyond
            target = out + 8 * (low + start)
            _nearest(part, 8 * BLOCK, some, channels, limbs, limb_room, scales, radix, target)
        counts[block] = wrong
    room[0, 0] = 0.0  # Numba frees an array after its last use: this is it
