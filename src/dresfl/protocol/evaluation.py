"""How well integer weights do on a test set. Whoever holds the test set runs this."""

from collections.abc import Iterator
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

    def score(self, weights: Tensor) -> float:
        """`accuracy`, or in a regression `r_squared`."""
        return self.r_squared(weights) if self._test.is_regression else self.accuracy(weights)

    def accuracy(self, weights: Tensor) -> float:
        """The share of the test set that the integer weights classify right, computed where the weights are."""
        right = torch.zeros((), dtype=torch.int64, device=weights.device)
        for outputs, labels in self._outputs(weights):
            right += (self._network.labels(outputs) == labels).sum()
        return int(right) / self._test.num_rows

    def r_squared(self, weights: Tensor) -> float:
        """R² of a regression on the test set: 1 − Σ(f − y)²/Σ(y − ȳ)², averaged over the targets.

        Where all targets are alike, it is 1 if every one is met, and else 0.
        """
        scale = 2.0**-self._network.out_scale
        errors = torch.zeros(self._test.num_outputs, dtype=torch.float64)
        for outputs, targets in self._outputs(weights):
            errors += (outputs * scale - targets).square().sum(0).cpu()
        _, targets = self._rows_on(weights.device)
        spread = (targets - targets.mean(0)).square().sum(0).cpu()
        alike = (errors == 0).to(torch.float64)
        return float(torch.where(spread > 0, 1 - errors / spread.clamp(min=1e-300), alike).mean())

    def _outputs(self, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Some rows' outputs (m,C), times 2^S, and their labels (m,) or real targets (m,C), until all have come."""
        network = self._network
        rows, wanted = self._rows_on(weights.device)
        widest = max(p.layer.positions(p.place.in_shape) * sum(p.fan) for p in network.parameters)
        step = max(1, _EVALUATED_AT_A_TIME[weights.device.type] // widest)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            inputs = rows[part].to(torch.float64)
            yield network.outputs(Reals(), weights, inputs.view(1, 1, *inputs.shape))[0, 0], wanted[part]

    def _rows_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._rows:
            test, dtype = self._test, integer_type(self._test, self._quantizer)
            rows, _ = integer_rows(test, self._quantizer, np.arange(test.num_rows), dtype)
            wanted = torch.from_numpy(test.labels)
            if test.targets is not None and test.is_regression:
                wanted = torch.from_numpy(test.targets).to(torch.float64)
            self._rows[device] = rows.to(device), wanted.to(device)
        return self._rows[device]
