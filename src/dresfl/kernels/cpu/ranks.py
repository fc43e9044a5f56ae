"""Ranks of many small matrices modulo one prime; compiled where Numba is installed, else NumPy."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dresfl.kernels import cpu

from .sharing import share

LARGEST_MODULUS = 2**24

_PARALLEL_ELEMENTS = 2**14


def ranks(matrices: NDArray[Any], p: int) -> NDArray[np.int64]:
    """The ranks (C,) modulo a prime p < 2^24 of matrices (C,rows,columns) of residues |r| ≤ p/2, in float64.

    Elimination without division: row ← row·pivot − head·pivot row, then one reduction. Products stay below 2^48, and
    |r| ≤ p/2 + 1 afterwards, so that r is 0 modulo p exactly if it is 0. The matrices are overwritten.
    """
    if p >= LARGEST_MODULUS:
        raise ValueError(f"a modulus below 2^24 expected, {p} came")
    count, rows, columns = matrices.shape
    if cpu._compiled is None or not matrices.size:
        return _in_steps(matrices.transpose(1, 2, 0).copy(), p)
    values, found = torch.from_numpy(np.ascontiguousarray(matrices)), torch.empty(count, dtype=torch.int64)
    large = matrices.size >= _PARALLEL_ELEMENTS
    share(cpu._compiled.ranks, count, large, (rows, columns, float(p), 1.0 / p), values, found)
    ranks_found: NDArray[np.int64] = found.numpy()
    return ranks_found


def _in_steps(matrices: NDArray[Any], p: int) -> NDArray[np.int64]:
    """The same for matrices (rows,columns,C), all of them one step at a time."""
    rows, columns, count = matrices.shape
    found = np.zeros(count, dtype=np.int64)
    if not rows:
        return found
    unused = np.ones((rows, count), dtype=np.bool_)
    every = np.arange(count)
    for column in range(columns):
        heads = matrices[:, column]
        usable = (heads != 0) & unused
        row = usable.argmax(0)
        has_pivot = usable[row, every]
        found += has_pivot
        unused[row[has_pivot], every[has_pivot]] = False
        rest = matrices[:, column + 1 :]
        pivot = np.where(has_pivot, heads[row, every], 1.0)
        pivot_row = rest[row, :, every].T * has_pivot  # (columns left,C)
        changed = rest * pivot - heads[:, None, :] * pivot_row
        changed -= p * np.rint(changed * (1.0 / p))
        matrices[:, column + 1 :] = changed  # used rows become what they may: they are not looked at again
    return found
