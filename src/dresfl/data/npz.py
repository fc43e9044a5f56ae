"""Arrays from a NumPy archive, whoever made it: no pickle is read, and no more memory is taken than there are bytes."""

import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dresfl.errors import DataError

_LARGEST_RATIO = 1032  # of deflate

# What NumPy and zipfile raise on damaged archives, those with a password, and those of an unknown compression.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    AttributeError,
    KeyError,
    MemoryError,
    OverflowError,
    RuntimeError,  # NotImplementedError and RecursionError are such
    SyntaxError,
    TypeError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npz_arrays(path: Path, *needed: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a NumPy archive, among which the needed ones must be."""
    try:
        with zipfile.ZipFile(path) as members:
            _check_sizes(members, _LARGEST_RATIO * path.stat().st_size)
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if missing := [name for name in needed if name not in arrays]:
            raise ValueError(f"it has no {' and no '.join(missing)}")
    except _UNREADABLE as error:
        raise DataError(
            f"cannot read rows from {path}: {error}",
            "check the path; save them with numpy.savez('rows.npz', inputs=…, labels=…)",
        ) from error
    return arrays


def _check_sizes(members: zipfile.ZipFile, room: int) -> None:
    """ValueError unless all are arrays, whose headers promise no more bytes than there can be: NumPy believes them."""
    for name in members.namelist():
        with members.open(name) as member:
            version = np.lib.format.read_magic(member)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(member)
        if math.prod(shape) * dtype.itemsize > room:
            raise ValueError(f"{name} promises an array of shape {shape}, which cannot be there")
