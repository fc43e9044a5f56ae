"""Sums over shares of bits, for proofs that they are bits: of x² − x, of the ones in a label, and of x itself.

    squares[m,s] = Σ_r ρ[s,r]·( Σ_j σ[s,j]·(x[r,m,j]² − x[r,m,j]) + σ[s,n]·(Σ_{j ≥ labels} x[r,m,j] − 1) )   mod p_m
    linear[m,s]  = Σ_r Σ_j c[s,r,j]·x[r,m,j]                                                                 mod p_m

x: rows of n residues a channel, packed as a disk keeps them. All factors are integers in [0, 2^FACTOR_BITS). Compiled
where Numba is installed and residues have three bytes, else NumPy.
"""

from typing import Any

import numpy as np

from dresfl.kernels import cpu

from .dots import Factors, Sums
from .packed import Octets

_compiled: Any = None
if cpu._compiled is not None:
    from . import bits_compiled

    _compiled = bits_compiled


def bit_sums(
    rows: Octets,
    labels: int,
    moduli: tuple[int, ...],
    size: int,
    column_factors: Factors,
    row_factors: Factors,
    linear_factors: Factors,
) -> tuple[Sums, Sums]:
    """The sums (M,S) and (M,U) in [0,p), of packed rows (r,M,n·size).

    labels: the first column of the label; n: a row has none. column_factors σ (S,n+1), row_factors ρ (S,r),
    linear_factors c (U,r,n).
    """
    (count, columns), num_rows, channels = column_factors.shape, row_factors.shape[1], len(moduli)
    linear, columns, p = linear_factors.shape[0], columns - 1, np.array(moduli, dtype=np.int64)
    if _compiled is None or size != 3:
        return _in_numpy(rows, labels, p, size, column_factors, row_factors, linear_factors)
    rows = np.ascontiguousarray(rows)
    column_factors, row_factors, linear_factors = (
        np.ascontiguousarray(factors, dtype=np.int32) for factors in (column_factors, row_factors, linear_factors)
    )
    squares, sums = np.zeros((channels, count), dtype=np.int64), np.zeros((channels, linear), dtype=np.int64)
    _compiled.bit_sums(
        num_rows, channels, columns, labels, rows.ctypes.data, p.ctypes.data,
        count, column_factors.ctypes.data, row_factors.ctypes.data, squares.ctypes.data,
        linear, linear_factors.ctypes.data, sums.ctypes.data,
    )  # fmt: skip
    return squares, sums


def _in_numpy(
    rows: Octets,
    labels: int,
    p: Sums,
    size: int,
    column_factors: Factors,
    row_factors: Factors,
    linear_factors: Factors,
) -> tuple[Sums, Sums]:
    """The same, a row and a channel at a time. A product of a factor and a residue has 45 bits: 2^17 of them fit."""
    columns = column_factors.shape[1] - 1
    squares = np.zeros((len(p), column_factors.shape[0]), dtype=np.int64)
    sums = np.zeros((len(p), linear_factors.shape[0]), dtype=np.int64)
    of_rows, of_columns = row_factors.astype(np.int64), column_factors.astype(np.int64)
    for r in range(rows.shape[0]):
        words = rows[r].reshape(len(p), columns, size).astype(np.int64) << (8 * np.arange(size))
        for m, x in enumerate(words.sum(-1)):
            polynomial = np.append(x * (x - 1) % p[m], (x[labels:].sum() - 1) % p[m])  # (n+1,)
            squares[m] += of_rows[:, r] * ((polynomial * of_columns % p[m]).sum(1) % p[m])
            sums[m] += (x * linear_factors[:, r] % p[m]).sum(1)
            squares[m] %= p[m]
            sums[m] %= p[m]
    return squares, sums
