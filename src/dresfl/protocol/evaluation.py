"""How well integer weights classify a test set. Whoever holds the test set runs this."""

from typing import final

import numpy as np
import torch
from torch import Tensor

from dresfl.data import DataSet, integer_rows, integer_type
from dresfl.field import Reals
from dresfl.model import Network
from dresfl.quantize import Quantizer

# Values of the widest layer that an evaluation computes at a time, in float64.
_EVALUATED_AT_A_TIME = {"cpu": 2**21, "cuda": 2**26}


@final
class Evaluation:
    """A test set as integers. It is made once, and kept on each device where weights are evaluated."""

    def __init__(self, network: Network, quantizer: Quantizer, test: DataSet) -> None:
        self._network, self._quantizer, self._test = network, quantizer, test
        self._rows: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def accuracy(self, weights: Tensor) -> float:
        """The share of the test set that the integer weights classify right, computed where the weights are."""
        network = self._network
        rows, labels = self._rows_on(weights.device)
        widest = max(p.layer.positions(p.place.in_shape) * sum(p.fan) for p in network.parameters)
        step = max(1, _EVALUATED_AT_A_TIME[weights.device.type] // widest)
        right = torch.zeros((), dtype=torch.int64, device=weights.device)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            inputs = rows[part].to(torch.float64)
            outputs = network.outputs(Reals(), weights, inputs.view(1, 1, *inputs.shape))[0, 0]
            right += (outputs.argmax(1) == labels[part]).sum()
        return int(right) / len(rows)

    def _rows_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._rows:
            test, dtype = self._test, integer_type(self._test, self._quantizer)
            rows, _ = integer_rows(test, self._quantizer, np.arange(test.num_rows), dtype)
            self._rows[device] = rows.to(device), torch.from_numpy(test.labels).to(device)
        return self._rows[device]
