"""The rows of a client, or of the coordinator's test, from the disk."""

import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dresfl.data import DataSet, flat_inputs, integer_rows, load, partition
from dresfl.errors import DataError
from dresfl.federation import Agreement

from .settings import ClientData, Test


def own_rows(data: ClientData, agreement: Agreement, index: int) -> tuple[Tensor, Tensor]:
    """The integer inputs (m,F) and one-hot targets (m,C) that a client shares, checked against the agreement."""
    if data.file:
        own = read_npz(Path(data.file), agreement.network.num_classes)
        rows = np.arange(own.num_rows)
    else:
        own = load(data.dataset, data.folder or None).train
        parts = partition(own.labels, agreement.num_clients, data.partition, alpha=data.alpha, seed=agreement.seed)
        rows = parts[index]
    check_data_set(own, agreement)
    return integer_rows(own, agreement.quantizer, rows)


def test_rows(test: Test, agreement: Agreement) -> DataSet | None:
    """The rows that the coordinator evaluates on, if it has any."""
    if test.file:
        found = read_npz(Path(test.file), agreement.network.num_classes)
    elif test.dataset:
        found = load(test.dataset, test.folder or None).test
    else:
        return None
    check_data_set(found, agreement)
    return found


def read_npz(path: Path, num_classes: int) -> DataSet:
    """Rows from a NumPy archive: `inputs` (m,…) of any real type, `labels` (m,) of integers."""
    arrays = read_npz_arrays(path, "inputs", "labels")
    inputs, labels = arrays["inputs"], arrays["labels"]
    if not np.issubdtype(labels.dtype, np.integer) or inputs.dtype.kind not in "fiu":
        raise DataError(f"{path}: inputs must be numbers and labels integers", "convert them before saving")
    with np.errstate(over="ignore"):  # what becomes infinite is refused as such
        inputs = inputs.astype(np.float32)
    return DataSet(inputs, labels.astype(np.int64).ravel(), num_classes, path.name)


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


def check_data_set(data: DataSet, agreement: Agreement) -> None:
    """Refuse rows that the agreement is not made for: their size, their classes, and the bound on their values."""
    network = agreement.network
    if flat_inputs(data).shape[1] != network.input_size or data.num_classes != network.num_classes:
        raise DataError(
            f"{data.name}: rows of {flat_inputs(data).shape[1]} values in {data.num_classes} classes; the agreement "
            f"has {network.input_size} and {network.num_classes}",
            "all clients must prepare their rows alike",
        )
    reach = max(float(data.inputs.max()) + agreement.shift, -float(data.inputs.min()) - agreement.shift)
    if reach > agreement.input_bound:
        raise DataError(
            f"{data.name}: an input reaches {reach:.6g}, beyond the agreed input_bound of {agreement.input_bound:.6g}",
            "scale or clip the rows as agreed, or agree on a larger bound",
        )
