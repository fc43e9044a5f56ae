"""Compiled kernels on packed residues, as they travel: (M,n,size) little-endian bytes, channel-major.

For use only where Numba is installed. Nothing here checks its arguments: `dresfl.kernels.cpu.packed` does. Every kernel
releases the GIL. Addresses are integers. Words are put together byte by byte, since 3 bytes lie at odd addresses.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _jit(function: _Function) -> _Function:
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
    try:
        made: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep compiled code in: compile once per process
        made = numba.njit(**options)(function)
    return made


@intrinsic  # type: ignore[untyped-decorator]  # Numba's have no types
def _pointer(typing: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.intp), emit


@_jit
def count_wrong(channels: int, columns: int, size: int, octets: int, p: int) -> int:
    """How many residues are not below their modulus p (M,) float64."""
    moduli = numba.carray(_pointer(p), channels, np.float64)
    wrong = np.int64(0)
    for m in range(channels):
        modulus = np.uint32(moduli[m])
        row = numba.carray(_pointer(octets + m * columns * size), columns * size, np.uint8)
        if size == 1:
            for i in range(columns):
                wrong += np.uint32(row[i]) >= modulus
        elif size == 2:
            for i in range(columns):
                word = np.uint32(row[2 * i]) | np.uint32(row[2 * i + 1]) << np.uint32(8)
                wrong += word >= modulus
        else:
            for i in range(columns):
                word = np.uint32(row[3 * i]) | np.uint32(row[3 * i + 1]) << np.uint32(8)
                wrong += (word | np.uint32(row[3 * i + 2]) << np.uint32(16)) >= modulus
    return int(wrong)


@_jit
def combine(
    first: int, last: int, channels: int, columns: int, size: int, count: int, step: int,
    packed: int, coefficients: int, p: int, inverses: int, out: int,
) -> None:  # fmt: skip
    """out (M,last−first) = Σ_j coefficients[m,j]·(answer j)[m, first:last], reduced after every `step` terms.

    packed: the addresses (count,) of the answers, each (M,columns,size) bytes. out: float64.
    """
    addresses = numba.carray(_pointer(packed), count, np.int64)
    factors = numba.carray(_pointer(coefficients), (channels, count), np.float64)
    moduli = numba.carray(_pointer(p), channels, np.float64)
    reciprocals = numba.carray(_pointer(inverses), channels, np.float64)
    width = last - first
    for m in range(channels):
        total = numba.carray(_pointer(out + 8 * m * width), width, np.float64)
        modulus, inverse = moduli[m], reciprocals[m]
        total[:] = 0.0
        for j in range(count):
            factor = factors[m, j]
            row = numba.carray(_pointer(addresses[j] + (m * columns + first) * size), width * size, np.uint8)
            if size == 1:
                for i in range(width):
                    total[i] += factor * np.float64(row[i])
            elif size == 2:
                for i in range(width):
                    total[i] += factor * np.float64(np.int32(row[2 * i]) | np.int32(row[2 * i + 1]) << np.int32(8))
            else:
                for i in range(width):
                    word = np.int32(row[3 * i]) | np.int32(row[3 * i + 1]) << np.int32(8)
                    total[i] += factor * np.float64(word | np.int32(row[3 * i + 2]) << np.int32(16))
            if (j + 1) % step == 0 or j + 1 == count:
                for i in range(width):
                    total[i] -= modulus * np.rint(total[i] * inverse)


@_jit
def pack_columns(
    channels: int, width: int, stride: int, size: int, x: int, p: int, columns: int, first: int, out: int
) -> None:
    """Columns first … first+width of out (M,columns,size) bytes: |x| < p as integers in [0,p), x (M,width) float64.

    stride: float64 values from one channel of x to the next.
    """
    moduli = numba.carray(_pointer(p), channels, np.float64)
    for m in range(channels):
        modulus = moduli[m]
        row = numba.carray(_pointer(x + 8 * m * stride), width, np.float64)
        octets = numba.carray(_pointer(out + (m * columns + first) * size), width * size, np.uint8)
        if size == 1:
            for i in range(width):
                octets[i] = np.uint8(np.int32(row[i] + modulus if row[i] < 0 else row[i]))
        elif size == 2:
            for i in range(width):
                word = np.int32(row[i] + modulus if row[i] < 0 else row[i])
                octets[2 * i] = np.uint8(word & 255)
                octets[2 * i + 1] = np.uint8(word >> 8)
        else:
            for i in range(width):
                word = np.int32(row[i] + modulus if row[i] < 0 else row[i])
                octets[3 * i] = np.uint8(word & 255)
                octets[3 * i + 1] = np.uint8(word >> 8 & 255)
                octets[3 * i + 2] = np.uint8(word >> 16)
