"""Residues as bytes, and back."""

import numba
import numpy as np

from .vectors import compiled, pointer, read


@compiled
def pack(first: int, last: int, channels: int, columns: int, size: int, x: int, p: int, out: int) -> None:
    """out (M,n,size) bytes: |x| < p as little-endian integers in [0,p)."""
    matrix = numba.carray(pointer(x), (channels, columns), np.float64)
    octets = numba.carray(pointer(out), (channels, columns, size), np.uint8)
    for m in range(channels):
        modulus = read(p + 8 * m)
        for i in range(first, last):
            value = matrix[m, i]
            word = np.int64(value + modulus if value < 0 else value)
            for byte in range(size):
                octets[m, i, byte] = (word >> (8 * byte)) & 255


@compiled
def unpack(channels: int, columns: int, size: int, octets: int, p: int, out: int) -> int:
    """out (M,n): the canonical residues in bytes (M,n,size). Returns how many are not below their modulus."""
    source = numba.carray(pointer(octets), (channels, columns, size), np.uint8)
    matrix = numba.carray(pointer(out), (channels, columns), np.float64)
    wrong = 0
    for m in range(channels):
        modulus = read(p + 8 * m)
        half = (modulus - 1) / 2
        for i in range(columns):
            word = np.int64(0)
            for byte in range(size):
                word |= np.int64(source[m, i, byte]) << (8 * byte)
            value = np.float64(word)
            wrong += value >= modulus
            matrix[m, i] = value - modulus if value > half else value
    return wrong
