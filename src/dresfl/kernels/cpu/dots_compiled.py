"""Compiled sums of factors times residues: of packed residues, of packed rows, and of float64 residues.

For use only where Numba is installed. Nothing here checks its arguments: `dresfl.kernels.cpu.dots` does. Every kernel
releases the GIL. Addresses are integers. All sums are exact: a word is below 2^24 and a factor below 2^21, so that
2^17 products fit 63 bits.
"""

import numba
import numpy as np

from .packed_compiled import _jit, _pointer

_WORDS = 2048  # unpacked together: they and their factors stay in the first cache


@_jit
def _unpack(address: int, count: int, size: int, words: np.ndarray) -> None:
    """The first `count` packed words of `size` bytes from an address on."""
    octets = numba.carray(_pointer(address), count * size, np.uint8)
    if size == 1:
        for i in range(count):
            words[i] = np.int32(octets[i])
    elif size == 2:
        for i in range(count):
            words[i] = np.int32(octets[2 * i]) | np.int32(octets[2 * i + 1]) << np.int32(8)
    else:
        for i in range(count):
            low = np.int32(octets[3 * i]) | np.int32(octets[3 * i + 1]) << np.int32(8)
            words[i] = low | np.int32(octets[3 * i + 2]) << np.int32(16)


@_jit
def _dot(words: np.ndarray, address: int, count: int) -> int:
    """Σ_i words[i]·factors[i], i < count ≤ 2^17, of the int32 factors at an address."""
    factors = numba.carray(_pointer(address), count, np.int32)
    total = np.int64(0)
    for i in range(count):
        total += np.int64(words[i]) * np.int64(factors[i])
    return total  # type: ignore[return-value]


@_jit
def packed_dots(
    channels: int, columns: int, size: int, count: int, octets: int, factors: int, p: int, out: int
) -> None:
    """out (M,count) int64 += Σ_i factors[s,i]·residue[m,i], in [0,p): residues (M,columns,size) bytes.

    factors (count,columns) int32. p (M,) int64.
    """
    moduli = numba.carray(_pointer(p), channels, np.int64)
    totals = numba.carray(_pointer(out), (channels, count), np.int64)
    words = np.empty(_WORDS, dtype=np.int32)
    for first in range(0, columns, _WORDS):
        width = min(_WORDS, columns - first)
        for m in range(channels):
            _unpack(octets + (m * columns + first) * size, width, size, words)
            for s in range(count):
                totals[m, s] = (totals[m, s] + _dot(words, factors + 4 * (s * columns + first), width)) % moduli[m]


@_jit
def float_dots(channels: int, columns: int, stride: int, count: int, x: int, factors: int, p: int, out: int) -> None:
    """The same of residues x (M,columns) float64; stride: float64 values from one channel to the next."""
    moduli = numba.carray(_pointer(p), channels, np.int64)
    totals = numba.carray(_pointer(out), (channels, count), np.int64)
    words = np.empty(_WORDS, dtype=np.int32)
    for first in range(0, columns, _WORDS):
        width = min(_WORDS, columns - first)
        for m in range(channels):
            row = numba.carray(_pointer(x + 8 * (m * stride + first)), width, np.float64)
            for i in range(width):
                words[i] = np.int32(row[i])
            for s in range(count):
                totals[m, s] = (totals[m, s] + _dot(words, factors + 4 * (s * columns + first), width)) % moduli[m]


@_jit
def row_dots(
    rows: int, channels: int, columns: int, size: int, count: int, octets: int,
    column_factors: int, row_factors: int, p: int, out: int,
) -> None:  # fmt: skip
    """out (M,count) int64 += Σ_r row_factors[s,r] Σ_i column_factors[s,i]·residue[r,m,i], in [0,p).

    Residues (rows,M,columns,size) bytes, as a disk keeps them; factors int32.
    """
    moduli = numba.carray(_pointer(p), channels, np.int64)
    of_rows = numba.carray(_pointer(row_factors), (count, rows), np.int32)
    totals = numba.carray(_pointer(out), (channels, count), np.int64)
    words = np.empty(_WORDS, dtype=np.int32)
    inner = np.empty(count, dtype=np.int64)
    for r in range(rows):
        for m in range(channels):
            inner[:] = 0
            for first in range(0, columns, _WORDS):
                width = min(_WORDS, columns - first)
                _unpack(octets + ((r * channels + m) * columns + first) * size, width, size, words)
                for s in range(count):
                    inner[s] = (inner[s] + _dot(words, column_factors + 4 * (s * columns + first), width)) % moduli[m]
            for s in range(count):
                totals[m, s] = (totals[m, s] + inner[s] * np.int64(of_rows[s, r])) % moduli[m]
