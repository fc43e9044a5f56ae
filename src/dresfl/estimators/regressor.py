"""A regressor with scikit-learn's conventions, trained by the coded protocol over simulated clients."""

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dresfl.errors import EstimatorError
from dresfl.federation.agreement import Mode
from dresfl.runtimes.local import Engine

from .clients import deal_rows
from .federation import Federation
from .scaling import scaling_of_clients

# A fixed bound says nothing of the largest target. Beyond 8 standard deviations lies at most 1/64 of any column.
_TARGET_CLIP = 8.0
_TARGET_BOUND = 4.0  # the standard deviation is 1/2: with 1 the guards of the hidden mode stop rates above 0.005


@final
class DresRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A polynomial network for one real target, trained on Lagrange-coded rows of several clients, in this process.

    `fit(X, y, clients=...)` takes one key for each row that says whose it is. Without it the rows are dealt to
    `num_clients` clients by chance. Columns and the target are scaled by mean and standard deviation over all clients.
    Columns are clipped at `clip` standard deviations, the target at 8: `clipped_targets_` counts those rows.
    A simulation protects nobody: it holds every client's rows. It shows what the protocol would learn.

    Missing values, sparse matrices, sample weights, several targets and `partial_fit` are not supported.
    docs/how-to/use-with-scikit-learn.md explains the parameters and the attributes.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> DresRegressor(rounds=60, random_state=0).fit(X, y).predict(X).shape == (442,)
    True
    """

    def __init__(
        self,
        *,
        hidden_layer_sizes: Sequence[int] = Federation.hidden_layer_sizes,
        num_clients: int = Federation.num_clients,
        num_shards: int = Federation.num_shards,
        max_colluders: int = Federation.max_colluders,
        rounds: int = Federation.rounds,
        batch_size: int = Federation.batch_size,
        learning_rate: float | None = Federation.learning_rate,
        weight_decay: float = Federation.weight_decay,
        clip: float = 3.0,
        input_bits: int = Federation.input_bits,
        weight_bits: int = Federation.weight_bits,
        target_bits: int = 8,
        mode: Mode = Federation.mode,
        engine: Engine = Federation.engine,
        dropout_rates: float | Sequence[float] = Federation.dropout_rates,
        device: str = Federation.device,
        threads: int = Federation.threads,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.num_clients = num_clients
        self.num_shards = num_shards
        self.max_colluders = max_colluders
        self.rounds = rounds
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.clip = clip
        self.input_bits = input_bits
        self.weight_bits = weight_bits
        self.target_bits = target_bits
        self.mode = mode
        self.engine = engine
        self.dropout_rates = dropout_rates
        self.device = device
        self.threads = threads
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, clients: npt.ArrayLike | None = None) -> "DresRegressor":
        """Train on rows X (m,F) with targets y (m,). clients: whose row each is (m,); None: dealt by chance."""
        federation = Federation.of(self.get_params(deep=False))
        inputs, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        targets = targets.astype(np.float64)[:, None]  # (m,1)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        names, parts = deal_rows(len(inputs), clients, self.num_clients, np.random.default_rng(seed))
        scaling = scaling_of_clients(inputs, parts, self.clip)
        target_scaling = scaling_of_clients(targets, parts, _TARGET_CLIP)
        scaled, wanted = scaling.apply(inputs), target_scaling.apply(targets) * np.float32(_TARGET_BOUND)
        if self.target_bits < 1:
            raise EstimatorError(f"target_bits must lie in 1..16, not {self.target_bits}")
        network = federation.network(inputs.shape[1], 1, self.target_bits, math.log2(_TARGET_BOUND))
        run = federation.train(network, [(scaled[part], wanted[part]) for part in parts], seed)
        self.clients_, self.scaling_, self.target_scaling_ = names, scaling, target_scaling
        self.model_, self.summary_, self.n_iter_ = run.model, run.summary, run.summary.rounds
        self.clipped_targets_ = int((np.abs(wanted) >= _TARGET_BOUND).sum())
        return self

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The target of each row (m,), in the unit of y."""
        check_is_fitted(self)
        inputs = validate_data(self, X, dtype=np.float64, reset=False)
        outputs: npt.NDArray[np.float64] = self.model_.decision_function(self.scaling_.apply(inputs))
        scaling = self.target_scaling_
        unit = scaling.clip / _TARGET_BOUND * scaling.spread[0]
        found: npt.NDArray[np.float64] = outputs[:, 0] * unit + scaling.mean[0]
        return found
