"""Sums of factors times residues, one number a channel: what checks of many residues at once compute.

Factors are integers in [0, 2^FACTOR_BITS), the same for every channel; results are canonical, in [0, p). Compiled where
Numba is installed, else NumPy or torch.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dresfl.kernels import cpu
from dresfl.kernels import residues as _residues

from .packed import Octets, unpack_columns

_compiled: Any = None
if cpu._compiled is not None:
    from . import dots_compiled

    _compiled = dots_compiled

Factors = npt.NDArray[np.int32]
Sums = npt.NDArray[np.int64]

FACTOR_BITS = 21
_TOGETHER = 128  # products |r|·f < 2^(24 + FACTOR_BITS) that a float64 sum holds exactly
_BLOCK = 2**14  # columns at a time where nothing is compiled


def packed_dots(packed: Octets, factors: Factors, moduli: Tensor, size: int) -> Sums:
    """Σ_i factors[s,i]·residue[m,i] of packed residues (M,n): factors (S,n) -> (M,S)."""
    channels, (count, columns) = len(moduli), factors.shape
    if _compiled is None:
        return _sum_blocks(lambda first, last: unpack_columns(packed, first, last, moduli, size), factors, moduli)
    out, p, factors = np.zeros((channels, count), dtype=np.int64), _integers(moduli), np.ascontiguousarray(factors)
    _compiled.packed_dots(
        channels, columns, size, count, packed.ctypes.data, factors.ctypes.data, p.ctypes.data, out.ctypes.data
    )
    return out


def tensor_dots(residues: Tensor, factors: Factors, moduli: Tensor) -> Sums:
    """The same of residues (M,n) in a tensor, on any device, symmetric or canonical; moduli: on the host."""
    channels, (count, columns) = len(moduli), factors.shape
    usable = residues.dtype == torch.float64 and residues.device.type == "cpu" and residues.stride(1) == 1
    if _compiled is None or not usable or not residues.numel():
        return _sum_blocks(lambda first, last: residues[:, first:last], factors, moduli)
    out, p, factors = np.zeros((channels, count), dtype=np.int64), _integers(moduli), np.ascontiguousarray(factors)
    _compiled.float_dots(
        channels, columns, residues.stride(0), count, residues.data_ptr(), factors.ctypes.data, p.ctypes.data,
        out.ctypes.data,
    )  # fmt: skip
    return out


def row_dots(rows: Octets, column_factors: Factors, row_factors: Factors, moduli: Tensor, size: int) -> Sums:
    """Σ_r row_factors[s,r] Σ_i column_factors[s,i]·residue[r,m,i] of packed rows (r,M,n·size) -> (M,S).

    column_factors (S,n), row_factors (S,r).
    """
    channels, (count, columns), num_rows = len(moduli), column_factors.shape, row_factors.shape[1]
    p = _integers(moduli)
    if _compiled is None:
        total = np.zeros((channels, count), dtype=np.int64)
        for number in range(num_rows):
            inner = packed_dots(rows[number].reshape(-1), column_factors, moduli, size)  # (M,S)
            total += inner * row_factors[:, number] % p[:, None]
        return total % p[:, None]
    rows, out = np.ascontiguousarray(rows), np.zeros((channels, count), dtype=np.int64)
    column_factors, row_factors = np.ascontiguousarray(column_factors), np.ascontiguousarray(row_factors)
    _compiled.row_dots(
        num_rows, channels, columns, size, count, rows.ctypes.data, column_factors.ctypes.data,
        row_factors.ctypes.data, p.ctypes.data, out.ctypes.data,
    )  # fmt: skip
    return out


def _integers(moduli: Tensor) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = moduli.numpy().astype(np.int64)
    return found


def _sum_blocks(columns_of: Any, factors: Factors, moduli: Tensor) -> Sums:
    """The sums from residues (M,last−first) that `columns_of` gives; on the device where these are."""
    total = torch.zeros((), dtype=torch.float64)
    p = moduli
    for first in range(0, factors.shape[1], _BLOCK):
        last = min(first + _BLOCK, factors.shape[1])
        part = columns_of(first, last).to(torch.float64)  # (M,n)
        total, p = total.to(part.device), p.to(part.device)
        right = torch.from_numpy(factors[:, first:last].astype(np.float64)).to(part.device)  # (S,n)
        pad = -(last - first) % _TOGETHER
        groups = torch.nn.functional.pad(part, (0, pad)).view(len(moduli), -1, _TOGETHER)  # (M,g,128)
        weights = torch.nn.functional.pad(right, (0, pad)).view(len(right), -1, _TOGETHER)  # (S,g,128)
        sums = torch.einsum("mgi,sgi->mgs", groups, weights)
        reduced = _residues.reduce_(sums, p, 1.0 / p).sum(1)  # (M,S)
        total = _residues.reduce_(total + reduced, p, 1.0 / p)
    return np.asarray(total.cpu().numpy().astype(np.int64) % _integers(moduli)[:, None])
