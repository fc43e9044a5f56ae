"""From a configuration and a data set to a session, integer rows and dropouts: what every method starts from."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from dresfl.data import DataSet, Split, dirichlet, iid, label_sorted, load
from dresfl.errors import DataError, UsageError
from dresfl.field import Reals
from dresfl.local import Dropouts, bernoulli, from_trace, no_dropouts, paper
from dresfl.model import Dense, Network
from dresfl.protocol import Session
from dresfl.quantize import Quantizer

from .config import Data, RunConfig

_EVALUATED_AT_A_TIME = 1000


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
        """Each client's integer inputs (m,F) and one-hot targets (m,C)."""
        return [integer_rows(self.split.train, self.quantizer, rows) for rows in self.parts]

    def accuracy(self, weights: Tensor) -> float:
        """The share of the test set that the integer weights classify right."""
        return accuracy(self.session.network, self.quantizer, self.split.test, weights)


def flat_inputs(data: DataSet) -> Tensor:
    """A data set's inputs as (rows,F)."""
    return torch.from_numpy(data.inputs).flatten(1)


def integer_rows(data: DataSet, quantizer: Quantizer, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Some rows as a client shares them: integer inputs (m,F) and one-hot targets (m,C)."""
    inputs = quantizer.integers(flat_inputs(data)[torch.from_numpy(rows)])
    targets = torch.nn.functional.one_hot(torch.from_numpy(data.labels[rows]), data.num_classes)
    return inputs, targets.to(torch.int32)


def accuracy(network: Network, quantizer: Quantizer, test: DataSet, weights: Tensor) -> float:
    """The share of a test set that integer weights classify right."""
    right = 0
    for start in range(0, test.num_rows, _EVALUATED_AT_A_TIME):
        part = slice(start, start + _EVALUATED_AT_A_TIME)
        rows = quantizer.integers(flat_inputs(test)[part]).to(weights.device, torch.float64)
        outputs = network.outputs(Reals(), weights, rows.view(1, 1, *rows.shape))[0, 0]
        right += int((outputs.argmax(1).cpu() == torch.from_numpy(test.labels[part])).sum())
    return right / test.num_rows


def prepare(config: RunConfig, folder: Path | None) -> Prepared:
    """Read the data, spread it over the clients, derive the session."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("this machine has no CUDA device", 'use device = "cpu"; the weights come out the same')
    split = load(config.data.dataset, folder)
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


def build_network(config: RunConfig, data: DataSet) -> Network:
    """The network for a data set: images stay images if the first layer wants them, else rows are flat."""
    flat = isinstance(config.model.layers[0], Dense)
    largest = max(float(data.inputs.max()) + config.model.shift, -float(data.inputs.min()) - config.model.shift)
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
