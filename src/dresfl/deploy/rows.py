"""The rows of a client, or of the coordinator's test, from the disk."""

from pathlib import Path

import numpy as np
from torch import Tensor

from dresfl.data import (
    DataSet,
    flat_inputs,
    integer_rows,
    load,
    no_rows,
    partition,
    read_npz_arrays,
    weighted_rows,
)
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
