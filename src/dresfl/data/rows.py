"""A data set's rows as clients share them: flat, as integers, with one-hot or real targets."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.quantize import Quantizer

from .dataset import DataSet
from .pieces import map_rows


def flat_inputs(data: DataSet) -> Tensor:
    """A data set's inputs as (rows,F)."""
    return torch.from_numpy(data.inputs).flatten(1)


def integer_type(data: DataSet, quantizer: Quantizer) -> torch.dtype:
    """The narrower of int16 and int32 that holds the integers of all inputs."""
    low, high = quantizer.integers(torch.tensor(data.extremes, dtype=torch.float32)).tolist()
    return torch.int16 if low >= -(2**15) and high < 2**15 else torch.int32


def check_class_weights(weights: Sequence[int], num_labels: int) -> None:
    """UsageError unless each class has a whole number of at least 1, or there are none. A regression has 0 labels."""
    if weights and (len(weights) != num_labels or any(type(weight) is not int or weight < 1 for weight in weights)):
        raise UsageError(
            f"class_weights = {list(weights)} are no weights of {num_labels} classes",
            "give each class a whole number, 1 or more; a regression has no classes",
        )


def weighted_rows(data: DataSet, rows: npt.NDArray[np.int64], weights: Sequence[int]) -> npt.NDArray[np.int64]:
    """Some rows of a client, each as often as its class weighs: so batches draw it that many times as often.

    >>> two = DataSet(np.eye(2, 3, dtype=np.float32), np.array([0, 1]), num_classes=2, name="two")
    >>> weighted_rows(two, np.array([0, 1]), (1, 3)).tolist()
    [0, 1, 1, 1]
    """
    if not weights:
        return rows
    check_class_weights(weights, 0 if data.is_regression else data.num_classes)
    return np.repeat(rows, np.array(weights, np.int64)[data.labels[rows]])


def no_rows(num_inputs: int, num_targets: int) -> tuple[Tensor, Tensor]:
    """What a client without rows shares: integer inputs (0,F) and targets (0,C)."""
    return torch.empty(0, num_inputs, dtype=torch.int32), torch.empty(0, num_targets, dtype=torch.int32)


def integer_rows(
    data: DataSet, quantizer: Quantizer, rows: npt.NDArray[np.int64], dtype: torch.dtype = torch.int32
) -> tuple[Tensor, Tensor]:
    """Some rows as a client shares them: integer inputs (m,F) and targets (m,C), one-hot or rounded."""
    inputs, chosen = flat_inputs(data), torch.from_numpy(rows)
    out = torch.empty(len(rows), inputs.shape[1], dtype=dtype)

    def work(piece: slice) -> None:
        out[piece] = quantizer.integers(inputs[chosen[piece]])

    map_rows(work, *out.shape)
    if data.targets is not None:
        return out, quantizer.target_integers(torch.from_numpy(data.targets[rows]))
    targets = torch.nn.functional.one_hot(torch.from_numpy(data.labels[rows]), data.num_classes)
    return out, targets.to(torch.int32)
