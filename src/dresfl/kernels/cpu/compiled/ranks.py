"""Ranks of many small matrices modulo one prime."""

import numba
import numpy as np

from .vectors import compiled, pointer


@compiled
def ranks(first: int, last: int, rows: int, columns: int, p: float, inverse: float, matrices: int, out: int) -> None:
    """out (C,) int64: the ranks of matrices (C,rows,columns) of residues |r| ≤ p/2, which are overwritten.

    Elimination without division: row ← row·pivot − head·pivot row, then one reduction, for the rows that need it.
    """
    found = numba.carray(pointer(out), last, np.int64)
    unused = np.empty(rows, np.bool_)
    for c in range(first, last):
        base = matrices + 8 * c * rows * columns
        matrix = numba.carray(pointer(base), (rows, columns), np.float64)
        unused[:] = True
        rank = 0
        for column in range(columns):
            chosen = -1
            for row in range(rows):
                if unused[row] and matrix[row, column] != 0.0:
                    chosen = row
                    break
            if chosen < 0:
                continue
            unused[chosen] = False
            rank += 1
            rest = columns - column - 1
            pivot = matrix[chosen, column]
            source = numba.carray(pointer(base + 8 * (chosen * columns + column + 1)), rest, np.float64)
            for row in range(chosen + 1, rows):
                head = matrix[row, column]
                if unused[row] and head != 0.0:
                    target = numba.carray(pointer(base + 8 * (row * columns + column + 1)), rest, np.float64)
                    for i in range(rest):
                        value = target[i] * pivot - head * source[i]
                        target[i] = value - p * np.rint(value * inverse)
        found[c] = rank
