"""One operation and its reduction, elementwise: one pass over memory each."""

import numba
import numpy as np

from .vectors import compiled, pointer, read

# Loops run over slices from 0: an index that might be negative would keep LLVM from using vectors. Results go to
# memory of their own, or back where the one operand was: on overlapping operands the loops would be scalar.
# Operands are the addresses of contiguous float64 arrays; columns first ≤ i < last of every row are worked on.


@compiled
def reduce(first: int, last: int, channels: int, columns: int, x: int, p: int, inverses: int) -> None:
    """x (M,n) reduced, in place."""
    matrix = numba.carray(pointer(x), (channels, columns), np.float64)
    for m in range(channels):
        modulus, inverse, row = read(p + 8 * m), read(inverses + 8 * m), matrix[m, first:last]
        for i in range(row.size):
            row[i] -= modulus * np.rint(row[i] * inverse)


@compiled
def embed(
    first: int, last: int, channels: int, columns: int, values: int, p: int, inverses: int, out: int
) -> None:  # fmt: skip
    """out (M,n) = values (n,) reduced."""
    part = numba.carray(pointer(values), columns, np.float64)[first:last]
    matrix = numba.carray(pointer(out), (channels, columns), np.float64)
    for m in range(channels):
        modulus, inverse, row = read(p + 8 * m), read(inverses + 8 * m), matrix[m, first:last]
        for i in range(row.size):
            row[i] = part[i] - modulus * np.rint(part[i] * inverse)


@compiled
def bytes_of_totals(first: int, last: int, channels: int, columns: int, totals: int, p: int, out: int) -> None:
    """int32 totals to symmetric residues int8: one pass in, one out."""
    matrix = numba.carray(pointer(totals), (channels, columns), np.int32)
    found = numba.carray(pointer(out), (channels, columns), np.int8)
    for m in range(channels):
        modulus, row, target = read(p + 8 * m), matrix[m, first:last], found[m, first:last]
        inverse = 1.0 / modulus
        for i in range(row.size):
            value = np.float64(row[i])  # |value| < 2^31, so the rounded quotient leaves |r| ≤ (p−1)/2
            target[i] = np.int8(value - modulus * np.rint(value * inverse))


@compiled
def combine(
    first: int, last: int, channels: int, rows: int, columns: int, b_columns: int, products: bool, sign: float,
    a: int, b: int, p: int, inverses: int, out: int,
) -> None:  # fmt: skip
    """out = a·b or a + sign·b, reduced: a and out (M,r,n), b (M,n), the same for every row, or (M,1)."""
    lefts = numba.carray(pointer(a), (channels, rows, columns), np.float64)
    rights = numba.carray(pointer(b), (channels, b_columns), np.float64)
    results = numba.carray(pointer(out), (channels, rows, columns), np.float64)
    for m in range(channels):
        modulus, inverse = read(p + 8 * m), read(inverses + 8 * m)
        for r in range(rows):
            left, result, b_row = lefts[m, r, first:last], results[m, r, first:last], rights[m]
            if b_columns > 1 or columns == 1:
                right = b_row[first:last]
                if products:
                    for i in range(result.size):
                        value = left[i] * right[i]
                        result[i] = value - modulus * np.rint(value * inverse)
                else:
                    for i in range(result.size):
                        value = left[i] + sign * right[i]
                        result[i] = value - modulus * np.rint(value * inverse)
            else:
                factor, term = (b_row[0], 0.0) if products else (1.0, sign * b_row[0])
                for i in range(result.size):
                    value = factor * left[i] + term
                    result[i] = value - modulus * np.rint(value * inverse)
