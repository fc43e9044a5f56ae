"""Residues as they travel: (M,n) little-endian integers in [0, p), 1 to 3 bytes each, channel-major. Nothing is copied.

A message of residues takes 3 bytes where a tensor takes 8. So what came is checked by reading it, stays as it came, and
is unpacked a few columns at a time when it is needed. Compiled where Numba is installed, else NumPy and torch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dresfl.kernels import cpu
from dresfl.kernels import residues as _residues

_compiled: Any = None
if cpu._compiled is not None:
    from . import packed_compiled

    _compiled = packed_compiled

Octets = npt.NDArray[np.uint8]

_BLOCK = 2**16  # residues looked at together where nothing is compiled
_EXACT = _residues.exact_inner_length(1, 1)


def octets_of(packed: bytes | bytearray | memoryview) -> Octets:
    """The bytes as an array that shares their memory."""
    return np.frombuffer(packed, dtype=np.uint8)


def is_sound(packed: Octets, moduli: Tensor, size: int) -> bool:
    """Whether every residue (M,n) in `packed` is below its modulus. It is only read."""
    columns = packed.size // (len(moduli) * size)
    if _compiled is not None:
        return not _compiled.count_wrong(len(moduli), columns, size, packed.ctypes.data, moduli.data_ptr())
    for channel, modulus in zip(packed.reshape(len(moduli), columns, size), moduli.tolist(), strict=True):
        if any(bool((_words(part) >= modulus).any()) for part in _blocks(channel)):
            return False
    return True


def _blocks(channel: Octets) -> list[Octets]:
    return [channel[start : start + _BLOCK] for start in range(0, len(channel), _BLOCK)]


def _words(part: Octets) -> npt.NDArray[np.int64]:
    """(n,size) bytes as integers (n,)."""
    shifts = 8 * np.arange(part.shape[-1])
    words: npt.NDArray[np.int64] = (part.astype(np.int64) << shifts).sum(-1)
    return words


def unpack_columns(packed: Octets, first: int, last: int, moduli: Tensor, size: int) -> Tensor:
    """The canonical residues (M,last−first) of these columns, which are sound."""
    part = packed.reshape(len(moduli), -1, size)[:, first:last]
    words = torch.from_numpy(_words(part)).to(torch.float64)
    return _residues.canonical_(words, moduli)


def combine_columns(
    answers: Sequence[Octets], coefficients: Tensor, first: int, last: int, moduli: Tensor, inverses: Tensor, size: int
) -> Tensor:
    """Σ_j coefficients[m,j]·(answer j)[m, first:last], reduced: coefficients (M,R) -> (M,last−first) float64.

    The answers are sound, and |coefficients| ≤ p/2 + SLACK.
    """
    largest = float(moduli.max())
    step = int(_EXACT / (largest * (largest / 2 + 1 + _residues.SLACK)))
    if _compiled is None or step < 2:
        pieces = torch.stack([unpack_columns(answer, first, last, moduli, size) for answer in answers], 1)  # (M,R,n)
        bound = int(largest // 2) + 1 + _residues.SLACK
        return _residues.matmul(coefficients.unsqueeze(1), pieces, moduli, inverses, bound, bound)[:, 0]
    addresses = np.array([answer.ctypes.data for answer in answers], dtype=np.int64)
    out, coefficients = torch.empty((len(moduli), last - first), dtype=torch.float64), coefficients.contiguous()
    columns = answers[0].size // (len(moduli) * size)
    _compiled.combine(
        first, last, len(moduli), columns, size, len(answers), step - 1, addresses.ctypes.data,
        coefficients.data_ptr(), moduli.data_ptr(), inverses.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out


def pack_columns(residues: Tensor, moduli: Tensor, size: int, out: Octets, first: int = 0) -> None:
    """Write residues (M,n), |r| < p, into `out`, packed (M,columns), from column `first` on."""
    place = out.reshape(len(moduli), -1, size)
    if _compiled is None or not residues.numel():
        words = torch.where(residues < 0, residues + moduli.view(-1, 1), residues).to(torch.int32).contiguous()
        octets = words.view(torch.uint8).view(*words.shape, 4)[..., :size].numpy()
        place[:, first : first + words.shape[1]] = octets
        return
    if residues.stride(1) != 1:
        residues = residues.contiguous()
    _compiled.pack_columns(
        len(moduli), residues.shape[1], residues.stride(0), size, residues.data_ptr(), moduli.data_ptr(),
        place.shape[1], first, out.ctypes.data,
    )  # fmt: skip
