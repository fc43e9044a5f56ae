"""A user's arrays as checked rows: NumPy arrays, torch tensors and lists in, data sets out."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dresfl.data import DataSet
from dresfl.errors import DataError
from dresfl.model import Network

Array = npt.ArrayLike | torch.Tensor
Rows = tuple[Array, Array]  # inputs (m, ...) and labels (m,), or real targets (m,) or (m,C)


def to_dataset(rows: Rows, network: Network, name: str) -> DataSet:
    """Inputs and labels, or real targets, as flat rows for a network.

    Wrong shapes, labels, NaN and infinity are refused by name. A network that ends in one value has classes 0 and 1.
    """
    if not isinstance(rows, Sequence) or len(rows) != 2:
        raise DataError(
            f"{name} is not a pair of inputs and labels", "give a list with one pair (inputs, labels) for each client"
        )
    if network.task == "regression":
        return DataSet.regression(to_inputs(rows[0], network, name), _targets(rows[1], network, name), name)
    inputs, labels = to_inputs(rows[0], network, name), _numbers(rows[1], f"{name}: labels")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{name}: labels have type {labels.dtype} and shape {labels.shape}, one integer for each row is wanted",
            "number the classes from 0; one-hot labels become integers with labels.argmax(1)",
        )
    found = DataSet(inputs, labels.astype(np.int64), network.num_labels, name)
    return found if network.one_hot else found.signed()


def _targets(values: Array, network: Network, name: str) -> npt.NDArray[np.float32]:
    """Real targets as (m,C)."""
    targets, count = _numbers(values, f"{name}: targets"), network.num_classes
    targets = targets[:, None] if targets.ndim == 1 else targets
    if targets.dtype.kind not in "fiu" or targets.ndim != 2 or targets.shape[1] != count:
        raise DataError(
            f"{name}: targets have type {targets.dtype} and shape {targets.shape}, numbers of shape (rows, {count}) "
            "are wanted",
            "give every row as many targets as the network ends in values",
        )
    return np.ascontiguousarray(targets, dtype=np.float32)


def to_inputs(values: Array, network: Network, name: str) -> npt.NDArray[np.float32]:
    """Inputs as flat rows (m,F). Each row has the network's input shape, or is flat already."""
    inputs = _numbers(values, f"{name}: inputs")
    shape, wanted = inputs.shape[1:], network.input_shape
    fits = shape == wanted or (1 in (len(shape), len(wanted)) and math.prod(shape) == network.input_size)
    if inputs.dtype.kind not in "fiub" or not shape or not fits:
        raise DataError(
            f"{name}: inputs have type {inputs.dtype} and shape {inputs.shape}, numbers of shape "
            f"(rows, {', '.join(map(str, wanted))}) are wanted",
            "give every row the network's input shape; a single row is inputs[:1]; images have their channels last",
        )
    return np.ascontiguousarray(inputs.reshape(len(inputs), network.input_size), dtype=np.float32)


def check_range(data: DataSet, network: Network, shift: float) -> None:
    """Refuse inputs and targets beyond the range that the network's arithmetic was made for."""
    reach = max(float(data.inputs.max()) + shift, -float(data.inputs.min()) - shift)
    if reach > 0 and math.log2(reach) > network.input_magnitude:
        raise DataError(
            f"{data.name}: an input reaches {reach:.6g}, the network is made for {2.0**network.input_magnitude:.6g}",
            "scale the inputs to [0, 1] or [-1, 1], or give Network the input_magnitude log2(largest input)",
        )
    largest = 0.0 if data.targets is None else float(np.abs(data.targets).max())
    if largest > 0 and math.log2(largest) > network.target_magnitude:
        raise DataError(
            f"{data.name}: a target reaches {largest:.6g}, the network is made for {2.0**network.target_magnitude:.6g}",
            "scale the targets to [-1, 1], or give Network the target_magnitude log2(largest target)",
        )


def _numbers(values: Array, what: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
    except ValueError as error:
        raise DataError(f"{what} are no array: {error}", "give every row the same number of values") from error
