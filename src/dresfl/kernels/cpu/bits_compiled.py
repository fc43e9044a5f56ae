"""Compiled sums over packed shares of bits: `dresfl.kernels.cpu.bits` says of what.

For use only where Numba is installed. Nothing here checks its arguments: `bits` does. Every kernel releases the GIL.
Addresses are integers. All sums are exact: a symmetric residue is at most 2^23 and a factor below 2^21, so that 256
products stay below 2^53 in float64, and 1024 such sums below 2^63.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from .packed_compiled import _jit, _pointer

_Function = TypeVar("_Function", bound=Callable[..., Any])

_WORDS = 256  # unpacked together
_SUMS = 1024  # of so many words each, before they are reduced


def _jit_sums(function: _Function) -> _Function:
    """Compile sums of exact integers: in whatever order they are added, the result is the same."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc"}}
    try:
        made: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep compiled code in: compile once per process
        made = numba.njit(**options)(function)
    return made


@_jit
def _unpack(address: int, count: int, modulus: float, buffer: np.ndarray, values: np.ndarray) -> None:
    """Symmetric residues of `count` packed words of 3 bytes, count ≤ 256. buffer (192,) uint32, values (256,)."""
    source, room = numba.carray(_pointer(address), 3 * count, np.uint8), buffer.view(np.uint8)
    for i in range(3 * count):
        room[i] = source[i]
    half = modulus / 2
    for i in range((count + 3) // 4):
        a, b, c = buffer[3 * i], buffer[3 * i + 1], buffer[3 * i + 2]
        values[4 * i] = np.float64(np.int32(a & np.uint32(0xFFFFFF)))
        values[4 * i + 1] = np.float64(np.int32((a >> np.uint32(24)) | ((b & np.uint32(0xFFFF)) << np.uint32(8))))
        values[4 * i + 2] = np.float64(np.int32((b >> np.uint32(16)) | ((c & np.uint32(0xFF)) << np.uint32(16))))
        values[4 * i + 3] = np.float64(np.int32(c >> np.uint32(8)))
    for i in range(count):
        values[i] -= modulus if values[i] > half else 0.0


@_jit
def _squares(values: np.ndarray, count: int, modulus: float, inverse: float, out: np.ndarray) -> None:
    """x² − x modulo p of symmetric residues, symmetric again, up to a slack of one."""
    for i in range(count):
        x = values[i]
        y = x * x - x
        out[i] = y - modulus * np.rint(y * inverse)


@_jit_sums
def _dot(values: np.ndarray, address: int, count: int) -> float:
    """Σ_i values[i]·factors[i], i < count ≤ 256, of the int32 factors at an address."""
    factors = numba.carray(_pointer(address), count, np.int32)
    total = 0.0
    for i in range(count):
        total += values[i] * np.float64(factors[i])
    return total


@_jit_sums
def _sum(values: np.ndarray, first: int, last: int) -> float:
    total = 0.0
    for i in range(first, last):
        total += values[i]
    return total


@_jit
def bit_sums(
    rows: int, channels: int, columns: int, labels: int, octets: int, p: int,
    squares: int, column_factors: int, row_factors: int, square_sums: int,
    linear: int, linear_factors: int, linear_sums: int,
) -> None:  # fmt: skip
    """square_sums (M,squares) and linear_sums (M,linear) int64 += what `bits.bit_sums` says, in [0,p).

    octets (rows,M,columns,3). labels: the first column of a label. column_factors (squares,columns+1), row_factors
    (squares,rows), linear_factors (linear,rows,columns) int32. p (M,) int64.
    """
    moduli = numba.carray(_pointer(p), channels, np.int64)
    of_rows = numba.carray(_pointer(row_factors), (squares, rows), np.int32)
    of_columns = numba.carray(_pointer(column_factors), (squares, columns + 1), np.int32)
    square_totals = numba.carray(_pointer(square_sums), (channels, squares), np.int64)
    linear_totals = numba.carray(_pointer(linear_sums), (channels, linear), np.int64)
    buffer = np.zeros(3 * _WORDS // 4, dtype=np.uint32)
    values, polynomial = np.empty(_WORDS), np.empty(_WORDS)
    inner = np.empty(squares, dtype=np.int64)
    for r in range(rows):
        for m in range(channels):
            modulus = np.float64(moduli[m])
            inverse = 1.0 / modulus
            inner[:] = 0
            ones, since = -1.0, 0
            for first in range(0, columns, _WORDS):
                width = min(_WORDS, columns - first)
                _unpack(octets + ((r * channels + m) * columns + first) * 3, width, modulus, buffer, values)
                _squares(values, width, modulus, inverse, polynomial)
                if first + width > labels:
                    ones += _sum(values, max(labels - first, 0), width)
                for s in range(squares):
                    inner[s] += np.int64(_dot(polynomial, column_factors + 4 * (s * (columns + 1) + first), width))
                for s in range(linear):
                    place = (s * rows + r) * columns + first
                    linear_totals[m, s] += np.int64(_dot(values, linear_factors + 4 * place, width))
                since += 1
                if since == _SUMS:
                    since = 0
                    for s in range(squares):
                        inner[s] %= moduli[m]
                    for s in range(linear):
                        linear_totals[m, s] %= moduli[m]
            rest = np.int64(ones) % moduli[m]
            for s in range(squares):
                whole = (inner[s] + rest * np.int64(of_columns[s, columns])) % moduli[m]
                square_totals[m, s] = (square_totals[m, s] + whole * np.int64(of_rows[s, r])) % moduli[m]
            for s in range(linear):
                linear_totals[m, s] %= moduli[m]
