"""The simulated federation behind an estimator: its settings, and the training."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dresfl.api.simulate import Run, simulate
from dresfl.coding import CodeParameters
from dresfl.errors import DataError, EstimatorError, UsageError
from dresfl.federation.agreement import Mode
from dresfl.model import Network, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.local import Dropouts, Engine

# Found on validation rows: Adam in the open mode, heavy ball in the hidden one, which knows no Adam.
_OPEN_RATE = 0.02
_HIDDEN_RATE = 0.05


@final
@dataclass(frozen=True)
class Federation:
    """What both estimators share, with their defaults. An estimator has a parameter for each field.

    >>> Federation().optimizer.method, Federation(mode="hidden").optimizer.method
    ('adam', 'momentum')
    """

    hidden_layer_sizes: Sequence[int] = (32,)  # squares between them; empty: a linear model
    num_clients: int = 9  # if fit is not told whose rows they are
    num_shards: int = CodeParameters.num_shards
    max_colluders: int = CodeParameters.max_colluders
    rounds: int = 200
    batch_size: int = 128
    learning_rate: float | None = None  # None: the mode's own
    weight_decay: float = 2.0
    clip: float = 2.0  # in standard deviations
    input_bits: int = 6
    weight_bits: int = 10
    mode: Mode = "open"
    engine: Engine = "coded"
    dropout_rates: float | Sequence[float] = 0.0  # of all clients, or one for each, in the order of `clients_`
    device: str = "cpu"
    threads: int = 1  # the matrices are too small for more

    def __post_init__(self) -> None:
        if isinstance(self.hidden_layer_sizes, int) or any(width < 1 for width in self.hidden_layer_sizes):
            raise EstimatorError(
                f"hidden_layer_sizes = {self.hidden_layer_sizes!r} are no widths", "give a tuple, for example (32,)"
            )
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise EstimatorError(f"clip must be a positive number of standard deviations, not {self.clip}")
        if self.num_clients < 1:
            raise EstimatorError(f"num_clients must be at least 1, not {self.num_clients}")

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> "Federation":
        """The settings among an estimator's parameters."""
        return cls(**{field.name: parameters[field.name] for field in dataclasses.fields(cls)})

    @property
    def optimizer(self) -> Optimizer:
        """Adam with a cosine; in the hidden mode heavy ball."""
        open_mode = self.mode == "open"
        default = _OPEN_RATE if open_mode else _HIDDEN_RATE
        return Optimizer(
            method="adam" if open_mode else "momentum",
            learning_rate=default if self.learning_rate is None else self.learning_rate,
            schedule="cosine",
            weight_decay=self.weight_decay if open_mode else 0.0,
        )

    def network(
        self, num_inputs: int, num_outputs: int, target_bits: int = 0, target_magnitude: float = 0.0
    ) -> Network:
        """Dense layers with squares between them. With target_bits it is one of a regression."""
        try:
            found = mlp(
                (num_inputs, *self.hidden_layer_sizes, num_outputs),
                input_bits=self.input_bits,
                weight_bits=self.weight_bits,
            )
            return dataclasses.replace(found, target_bits=target_bits, target_magnitude=target_magnitude)
        except UsageError as error:
            raise EstimatorError(str(error), error.hint) from error

    def dropouts(self, num_clients: int, seed: int) -> Dropouts:
        """Who misses which round."""
        rates = self.dropout_rates
        each = (float(rates),) * num_clients if isinstance(rates, int | float) else tuple(map(float, rates))
        return Dropouts(each, seed)

    def train(self, network: Network, clients: Sequence[tuple[np.ndarray, np.ndarray]], seed: int) -> Run:
        """Play the whole run. What the caller can mend is an EstimatorError, which is a ValueError too."""
        try:
            return simulate(
                network,
                clients,
                rounds=self.rounds,
                optimizer=self.optimizer,
                num_shards=self.num_shards,
                max_colluders=self.max_colluders,
                batch_size=self.batch_size,
                seed=seed,
                dropouts=self.dropouts(len(clients), seed),
                engine=self.engine,
                device=self.device,
                threads=self.threads,
                mode=self.mode,
                # nobody cheats in a simulation
                hidden=HiddenSettings(trusted_dealers=True) if self.mode == "hidden" else None,
            )
        except (UsageError, DataError) as error:
            raise EstimatorError(str(error), error.hint) from error
