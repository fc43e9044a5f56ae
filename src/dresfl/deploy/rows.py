"""The rows of a client, or of the coordinator's test, from the disk."""

from pathlib import Path

import numpy as np
from torch import Tensor

from dresfl.data import DataSet, flat_inputs, integer_rows, load, partition, read_npz_arrays
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
