"""A data set's rows as clients share them: flat, as integers, with one-hot targets."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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


def integer_rows(
    data: DataSet, quantizer: Quantizer, rows: npt.NDArray[np.int64], dtype: torch.dtype = torch.int32
) -> tuple[Tensor, Tensor]:
    """Some rows as a client shares them: integer inputs (m,F) and one-hot targets (m,C)."""
    inputs, chosen = flat_inputs(data), torch.from_numpy(rows)
    out = torch.empty(len(rows), inputs.shape[1], dtype=dtype)

    def work(piece: slice) -> None:
        out[piece] = quantizer.integers(inputs[chosen[piece]])

    map_rows(work, *out.shape)
    targets = torch.nn.functional.one_hot(torch.from_numpy(data.labels[rows]), data.num_classes)
    return out, targets.to(torch.int32)
