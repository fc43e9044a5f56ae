"""Residues to integers: mixed-radix digits, and the nearest float64."""

import numba
import numpy as np

from .vectors import compiled, pointer, read

_BLOCK = 256  # columns whose digits of all channels stay in the first-level cache


@compiled
def mixed_radix(
    first: int, last: int, channels: int, columns: int, digits: int, p: int, inverses: int, garner: int
) -> None:  # fmt: skip
    """Garner's conversion, in place: residues (M,n), |r| ≤ p/2 + 2 -> symmetric mixed-radix digits."""
    matrix = numba.carray(pointer(digits), (channels, columns), np.float64)
    for low in range(first, last, _BLOCK):
        high = min(low + _BLOCK, last)
        modulus, row = read(p), matrix[0, low:high]  # the first residue, once canonical, is the first digit
        half = (modulus - 1) / 2
        for i in range(row.size):
            value = row[i]
            value = value - modulus if value > half else value
            row[i] = value + modulus if value < -half else value
        for source in range(channels - 1):
            known = matrix[source, low:high]
            for m in range(source + 1, channels):
                modulus, inverse = read(p + 8 * m), read(inverses + 8 * m)
                factor, half, row = read(garner + 8 * (source * channels + m)), (modulus - 1) / 2, matrix[m, low:high]
                for i in range(row.size):
                    value = (row[i] - known[i]) * factor
                    value -= modulus * np.rint(value * inverse)
                    value = value - modulus if value > half else value
                    row[i] = value + modulus if value < -half else value


@compiled
def nearest(
    first: int, last: int, channels: int, columns: int, limbs: int, digits: int, radix: int, out: int
) -> None:  # fmt: skip
    """out (n,) = Σ_i d_i·P_i rounded once: digits (M,n), radix (L,M) of 24-bit limbs; `field.lifting` explains it."""
    matrix = numba.carray(pointer(digits), (channels, columns), np.float64)
    results = numba.carray(pointer(out), columns, np.float64)
    table = np.empty((limbs, _BLOCK), np.float64)
    scales = np.array([2.0 ** (24.0 * (limb - 3)) for limb in range(limbs)])
    for low in range(first, last, _BLOCK):
        size = min(_BLOCK, last - low)
        table[:] = 0.0
        for limb in range(limbs):
            row = table[limb, :size]
            for m in range(channels):
                factor, source = read(radix + 8 * (limb * channels + m)), matrix[m, low : low + size]
                for i in range(size):
                    row[i] += factor * source[i]
        top = table[limbs - 1, :size]
        for sweep in range(2):  # carries; then, of the negative ones, the absolute value, and carries again
            if sweep == 1:
                for i in range(size):
                    results[low + i] = -1.0 if top[i] < 0 else 1.0
                signs = results[low : low + size]
                for limb in range(limbs):
                    row = table[limb, :size]
                    for i in range(size):
                        row[i] *= signs[i]
            for limb in range(limbs - 1):
                row, above = table[limb, :size], table[limb + 1, :size]
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
            results[low + i] *= (high * 2.0**48 + rest) * scales[lead]
