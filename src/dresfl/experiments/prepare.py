"""From a configuration and a data set to a session, integer rows and dropouts: what every method starts from."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from dresfl.data import DataSet, Split, dirichlet, iid, label_sorted, load
from dresfl.errors import DataError, UsageError
from dresfl.features import Watch, featured, in_pieces
from dresfl.field import Reals
from dresfl.model import Network
from dresfl.protocol import Session
from dresfl.quantize import Quantizer
from dresfl.runtimes.local import Dropouts, bernoulli, from_trace, no_dropouts, paper

from .config import Data, RunConfig

# Values of the widest layer that an evaluation holds at a time, in float64.
_EVALUATED_AT_A_TIME = {"cpu": 2**21, "cuda": 2**26}


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything a run needs, the same for DReS-FL and for the methods it is compared with."""

    config: RunConfig
    split: Split
    parts: list[np.ndarray]  # each client's rows of the training set
    quantizer: Quantizer
    session: Session
    dropouts: Dropouts

    def client_data(self) -> list[tuple[Tensor, Tensor]]:
        """Each client's integer inputs (m,F), int16 if they fit and else int32, and one-hot targets (m,C)."""
        train = self.split.train
        dtype = _narrowest(self.quantizer, train)
        return [integer_rows(train, self.quantizer, rows, dtype) for rows in self.parts]

    def accuracy(self, weights: Tensor) -> float:
        """The share of the test set that the integer weights classify right, computed where the weights are."""
        return self._evaluation.accuracy(weights)

    @cached_property
    def _evaluation(self) -> "Evaluation":
        return Evaluation(self.session.network, self.quantizer, self.split.test)


@final
class Evaluation:
    """A test set as integers: made once, and kept on the devices where weights are evaluated."""

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
            test, dtype = self._test, _narrowest(self._quantizer, self._test)
            rows, _ = integer_rows(test, self._quantizer, np.arange(test.num_rows), dtype)
            self._rows[device] = rows.to(device), torch.from_numpy(test.labels).to(device)
        return self._rows[device]


def flat_inputs(data: DataSet) -> Tensor:
    """A data set's inputs as (rows,F)."""
    return torch.from_numpy(data.inputs).flatten(1)


def integer_rows(
    data: DataSet, quantizer: Quantizer, rows: np.ndarray, dtype: torch.dtype = torch.int32
) -> tuple[Tensor, Tensor]:
    """Some rows as a client shares them: integer inputs (m,F) and one-hot targets (m,C)."""
    inputs, chosen = flat_inputs(data), torch.from_numpy(rows)
    out = torch.empty(len(rows), inputs.shape[1], dtype=dtype)

    def work(piece: slice) -> None:
        out[piece] = quantizer.integers(inputs[chosen[piece]])

    in_pieces(work, *out.shape)
    targets = torch.nn.functional.one_hot(torch.from_numpy(data.labels[rows]), data.num_classes)
    return out, targets.to(torch.int32)


def _narrowest(quantizer: Quantizer, data: DataSet) -> torch.dtype:
    """The narrower of int16 and int32 that holds the integers of all inputs."""
    low, high = quantizer.integers(torch.stack(flat_inputs(data).aminmax())).tolist()
    return torch.int16 if low >= -(2**15) and high < 2**15 else torch.int32


def load_split(config: RunConfig, folder: Path | None, watch: Watch = lambda done, total: None) -> Split:
    """The data set as the run sees it: images, or features if the configuration asks for them.

    `watch` is told of images whose features were extracted, and of none where the cache has them.
    """
    _check_device(config)
    return featured(load(config.data.dataset, folder), config.features, folder, config.device, watch)


def prepare(
    config: RunConfig,
    folder: Path | None,
    *,
    split: Split | None = None,
    watch: Watch = lambda done, total: None,
) -> Prepared:
    """Read the data, spread it over the clients, derive the session.

    `split`: what `load_split` made of the same `data` and `features`, if several runs share it.
    """
    _check_device(config)
    if split is None:
        split = load_split(config, folder, watch)
    quantizer = Quantizer(config.model.input_bits, config.model.shift)
    network = build_network(config, split.train)
    parts = partition(config.data, config.federation.num_clients, config.seed, split.train)
    federation = config.federation
    session = Session(
        network=network,
        num_clients=federation.num_clients,
        num_shards=federation.num_shards,
        max_colluders=federation.max_colluders,
        batch_size=federation.batch_size,
        client_rows=tuple(len(rows) for rows in parts),
        seed=config.seed,
        device=config.device,
    )
    return Prepared(config, split, parts, quantizer, session, _dropouts(config))


def _check_device(config: RunConfig) -> None:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("this machine has no CUDA device", 'use device = "cpu"; the weights come out the same')


def build_network(config: RunConfig, data: DataSet) -> Network:
    """The network for a data set: images stay images if the first layer wants them, else rows are flat."""
    flat = config.model.layers[0].flat_input
    low, high = (float(bound) for bound in flat_inputs(data).aminmax())
    largest = max(high + config.model.shift, -low - config.model.shift)
    network = Network(
        layers=config.model.layers,
        input_shape=(math.prod(data.input_shape),) if flat else data.input_shape,
        input_bits=config.model.input_bits,
        weight_bits=config.model.weight_bits,
        input_magnitude=max(0.0, math.log2(largest)) if largest > 0 else 0.0,
    )
    if network.num_classes != data.num_classes:
        raise DataError(
            f"the model ends in {network.num_classes} values, but {data.name} has {data.num_classes} classes",
            f"give the last dense layer units = {data.num_classes}",
        )
    return network


def partition(settings: Data, clients: int, seed: int, data: DataSet) -> list[np.ndarray]:
    """Which rows of a training set each client gets."""
    if settings.partition == "label-sorted":
        return list(label_sorted(data.labels, clients))
    generator = np.random.default_rng(seed)
    if settings.partition == "iid":
        return list(iid(data.labels, clients, generator))
    return list(dirichlet(data.labels, clients, settings.alpha, generator))


def _dropouts(config: RunConfig) -> Dropouts:
    clients, dropout = config.federation.num_clients, config.dropout
    if dropout.model == "bernoulli":
        return bernoulli(clients, dropout.rate, dropout.seed)
    if dropout.model == "paper":
        return paper(clients, dropout.seed)
    if dropout.model == "trace":
        return from_trace(Path(dropout.trace), clients, dropout.seed)
    return no_dropouts(clients, dropout.seed)
