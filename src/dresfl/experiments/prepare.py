"""From a configuration and a data set to a session, integer rows and dropouts: what every method starts from."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dresfl.api.simulate import check_device
from dresfl.api.simulate_hidden import hidden_session
from dresfl.data import DataSet, Split, integer_rows, integer_type, load, partition, weighted_rows
from dresfl.errors import DataError
from dresfl.features import extract_features
from dresfl.federation.agreement import Mode
from dresfl.model import Network
from dresfl.protocol import Evaluation, Session, make_local_plan
from dresfl.quantize import Quantizer
from dresfl.runtimes.local import Dropouts, bernoulli, from_trace, no_dropouts, paper

from .config import RunConfig

Rows = npt.NDArray[np.int64]
ClientData = list[tuple[Tensor, Tensor]]

TARGET_BITS = 10  # of a regression whose configuration does not say


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything a run needs, the same for DReS-FL and for the methods it is compared with."""

    config: RunConfig
    split: Split
    parts: list[Rows]  # each client's rows of the training set
    quantizer: Quantizer
    session: Session
    dropouts: Dropouts
    kept: dict[Quantizer, ClientData] = field(default_factory=dict)  # the integer rows, for runs with the same parts

    def client_data(self) -> ClientData:
        """Each client's integer inputs (m,F), int16 if they fit and else int32, and targets (m,C)."""
        if self.quantizer not in self.kept:
            self.kept.clear()  # of another quantizer: features of many images take gigabytes
            train = self.split.train
            dtype = integer_type(train, self.quantizer)
            self.kept[self.quantizer] = [integer_rows(train, self.quantizer, rows, dtype) for rows in self.parts]
        return self.kept[self.quantizer]

    def accuracy(self, weights: Tensor) -> float:
        """The share of the test set that the integer weights classify right, or R²; computed where the weights are."""
        return self._evaluation.score(weights)

    @cached_property
    def _evaluation(self) -> Evaluation:
        return Evaluation(self.session.network, self.quantizer, self.split.test)


def load_split(config: RunConfig, folder: Path | None, shared: Path | None = None) -> Split:
    """Read the data: images, or features if the configuration asks for them. `shared`: see `extract_features`."""
    check_device(config.device)
    images = load(config.data.dataset, folder)
    return extract_features(images, config.features, folder, config.device, shared)


def prepare(
    config: RunConfig, folder: Path | None, *, split: Split | None = None, held_out: Rows | None = None
) -> Prepared:
    """Read the data, spread it over the clients, derive the session.

    split: the data, if it was read before, by `load_split`. held_out: training rows that no client gets; the run is
    then measured on them, and the test set is left alone.
    """
    check_device(config.device)
    split = load_split(config, folder) if split is None else split
    network = build_network(config, split.train)
    quantizer = Quantizer(config.model.input_bits, config.model.shift, network.target_bits)
    if network.num_classes == 1 and split.train.targets is None:
        split = Split(split.train.signed(), split.test.signed(), made_from=split.origin)
    train = split.train
    given = np.arange(train.num_rows)
    if held_out is not None:
        given = np.delete(given, held_out)
        split = Split(train, train.rows(held_out), made_from=split.origin)
    dealt = partition(
        train.strata[given],
        config.federation.num_clients,
        config.data.partition,
        alpha=config.data.alpha,
        seed=config.seed,
    )
    parts = [weighted_rows(train, given[rows], config.data.class_weights) for rows in dealt]
    client_rows = tuple(len(rows) for rows in parts)
    if config.mode == "hidden":
        code, settings, optimizer = config.federation, config.hidden, config.optimizer
        session = hidden_session(
            network, code, settings, optimizer, config.rounds, client_rows, config.seed, config.device
        )
    else:
        session = Session(
            network=network,
            parameters=config.federation,
            client_rows=client_rows,
            seed=config.seed,
            local=make_local_plan(network, config.federation, config.optimizer, config.rounds),
            device=config.device,
        )
    return Prepared(config, split, parts, quantizer, session, _dropouts(config))


def build_network(config: RunConfig, data: DataSet) -> Network:
    """The network for a data set: images stay images if the first layer wants them, else rows are flat."""
    flat = config.model.layers[0].flat_input
    low, high = data.extremes
    largest = max(high + config.model.shift, -low - config.model.shift)
    network = Network(
        layers=config.model.layers,
        input_shape=(math.prod(data.input_shape),) if flat else data.input_shape,
        input_bits=config.model.input_bits,
        weight_bits=config.model.weight_bits,
        input_magnitude=_magnitude(largest, config.mode),
        target_bits=_target_bits(config, data),
        target_magnitude=_target_magnitude(data),
    )
    fits = data.num_outputs, 1 if data.targets is None and data.num_classes == 2 else data.num_outputs
    if network.num_classes not in fits:
        has = f"{data.num_outputs} targets" if data.is_regression else f"{data.num_classes} classes"
        raise DataError(
            f"the model ends in {network.num_classes} values, but {data.name} has {has}",
            f"give the last dense layer units = {data.num_outputs}",
        )
    return network


def _target_bits(config: RunConfig, data: DataSet) -> int:
    if config.model.target_bits and not data.is_regression:
        raise DataError(f"target_bits is of a regression, but {data.name} has classes", "leave out model.target_bits")
    return (config.model.target_bits or TARGET_BITS) if data.is_regression else 0


def _target_magnitude(data: DataSet) -> float:
    """log2 of the largest |target| of a regression, at least 0."""
    if data.targets is None or not data.is_regression:
        return 0.0
    return max(0.0, math.log2(max(1.0, float(np.abs(data.targets).max()))))


def _magnitude(largest: float, mode: Mode) -> float:
    """log2 of the largest |input|; in the open mode at least 0. In the hidden mode small inputs allow larger rates."""
    magnitude = math.log2(largest) if largest > 0 else 0.0
    return magnitude if mode == "hidden" else max(0.0, magnitude)


def _dropouts(config: RunConfig) -> Dropouts:
    clients, dropout = config.federation.num_clients, config.dropout
    if dropout.model == "bernoulli":
        return bernoulli(clients, dropout.rate, dropout.seed)
    if dropout.model == "paper":
        return paper(clients, dropout.seed)
    if dropout.model == "trace":
        return from_trace(Path(dropout.trace), clients, dropout.seed)
    return no_dropouts(clients, dropout.seed)
