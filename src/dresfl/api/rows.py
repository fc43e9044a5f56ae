"""A user's arrays as checked rows: NumPy arrays, torch tensors and lists in, data sets out."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dresfl.data import DataSet
from dresfl.errors import DataError, UsageError
from dresfl.model import Network
from dresfl.tables import Schema, Table, read_data_set

Array = npt.ArrayLike | torch.Tensor
Rows = tuple[Array, Array]  # inputs (m, ...) and labels (m,)


def to_dataset(rows: Rows, network: Network, name: str) -> DataSet:
    """Inputs and labels as flat rows for a network. Wrong shapes, labels, NaN and infinity are refused by name."""
    if not isinstance(rows, Sequence) or len(rows) != 2:
        raise DataError(
            f"{name} is not a pair of inputs and labels", "give a list with one pair (inputs, labels) for each client"
        )
    inputs, labels = to_inputs(rows[0], network, name), _numbers(rows[1], f"{name}: labels")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{name}: labels have type {labels.dtype} and shape {labels.shape}, one integer for each row is wanted",
            "number the classes from 0; one-hot labels become integers with labels.argmax(1)",
        )
    return DataSet(inputs, labels.astype(np.int64), network.num_classes, name)


def table_rows(source: Table, schema: Schema, network: Network, name: str) -> DataSet:
    """A table's rows for a network: a path, a pandas DataFrame or a pyarrow Table."""
    wanted = schema.num_features, schema.num_classes
    if wanted != (network.input_size, network.num_classes):
        raise UsageError(
            f"the schema has {wanted[0]} features and {wanted[1]} classes, the network {network.input_size} and "
            f"{network.num_classes}",
            "make it with schema.num_features and schema.num_classes",
        )
    return read_data_set(source, schema, str(source) if isinstance(source, str | Path) else name)


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
    """Refuse inputs beyond the range that the network's arithmetic was made for."""
    reach = max(float(data.inputs.max()) + shift, -float(data.inputs.min()) - shift)
    if reach > 0 and math.log2(reach) > network.input_magnitude:
        raise DataError(
            f"{data.name}: an input reaches {reach:.6g}, the network is made for {2.0**network.input_magnitude:.6g}",
            "scale the inputs to [0, 1] or [-1, 1], or give Network the input_magnitude log2(largest input)",
        )


def _numbers(values: Array, what: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
    except ValueError as error:
        raise DataError(f"{what} are no array: {error}", "give every row the same number of values") from error
