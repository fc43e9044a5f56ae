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

from dresfl.data import DataSet, flat_inputs, integer_rows, load, no_rows, partition, weighted_rows
from dresfl.errors import DataError
from dresfl.federation import Agreement
from dresfl.model import Network

from .settings import ClientData, Test


def own_rows(data: ClientData, agreement: Agreement, index: int) -> tuple[Tensor, Tensor]:
    """The integer inputs (m,F) and targets (m,C) that a client shares, checked against the agreement."""
    network = agreement.described_network
    if data.helper:
        return no_rows(network.input_size, network.num_classes)
    if data.file:
        own = read_npz(Path(data.file), network)
        rows = np.arange(own.num_rows)
    else:
        own = _fitting(load(data.dataset, data.folder or None).train, network)
        parts = partition(own.strata, agreement.num_clients, data.partition, alpha=data.alpha, seed=agreement.seed)
        rows = parts[index]
    check_data_set(own, agreement)
    return integer_rows(own, agreement.quantizer, weighted_rows(own, rows, agreement.class_weights))


def _fitting(data: DataSet, network: Network) -> DataSet:
    """A known data set as the network wants it: two classes as −1 and 1, if it ends in one value."""
    return data.signed() if network.num_classes == 1 and data.targets is None else data


def test_rows(test: Test, agreement: Agreement) -> DataSet | None:
    """The rows that the coordinator evaluates on, if it has any."""
    if test.file:
        found = read_npz(Path(test.file), agreement.described_network)
    elif test.dataset:
        found = _fitting(load(test.dataset, test.folder or None).test, agreement.described_network)
    else:
        return None
    check_data_set(found, agreement)
    return found


def read_npz(path: Path, network: Network) -> DataSet:
    """Rows from a NumPy archive: `inputs` (m,…) of any real type, `labels` (m,) of integers.

    For a regression: `targets`, (m,) or (m,C), in the place of the labels.
    """
    second = "targets" if network.task == "regression" else "labels"
    arrays = read_npz_arrays(path, "inputs", second)
    inputs, wanted = arrays["inputs"], arrays[second]
    kinds = "fiu" if network.task == "regression" else "iu"
    if wanted.dtype.kind not in kinds or inputs.dtype.kind not in "fiu":
        kind = "numbers" if network.task == "regression" else "integers"
        raise DataError(f"{path}: inputs must be numbers and {second} {kind}", "convert them before saving")
    with np.errstate(over="ignore"):  # what becomes infinite is refused as such
        inputs = inputs.astype(np.float32)
        if network.task == "regression":
            targets = wanted.reshape(len(wanted), -1) if wanted.ndim else wanted
            return DataSet.regression(inputs, targets.astype(np.float32), path.name)
    return _fitting(DataSet(inputs, wanted.astype(np.int64).ravel(), network.num_labels, path.name), network)


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
    regression = network.task == "regression"
    if (flat_inputs(data).shape[1], data.num_outputs, data.is_regression) != (
        network.input_size,
        network.num_classes,
        regression,
    ):
        has = f"with {data.num_outputs} targets" if data.is_regression else f"in {data.num_classes} classes"
        wants = "targets of a regression" if regression else "classes"
        raise DataError(
            f"{data.name}: rows of {flat_inputs(data).shape[1]} values {has}; the agreement "
            f"has {network.input_size} and {network.num_classes if regression else network.num_labels} {wants}",
            "all clients must prepare their rows alike",
        )
    largest = float(np.abs(data.targets).max()) if data.targets is not None else 0.0
    if regression and largest > agreement.target_bound:
        raise DataError(
            f"{data.name}: a target reaches {largest:.6g}, beyond the agreed target_bound of "
            f"{agreement.target_bound:.6g}",
            "scale or clip the targets as agreed, or agree on a larger bound",
        )
    reach = max(float(data.inputs.max()) + agreement.shift, -float(data.inputs.min()) - agreement.shift)
    if reach > agreement.input_bound:
        raise DataError(
            f"{data.name}: an input reaches {reach:.6g}, beyond the agreed input_bound of {agreement.input_bound:.6g}",
            "scale or clip the rows as agreed, or agree on a larger bound",
        )
