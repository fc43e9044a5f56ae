"""A classifier with scikit-learn's conventions, trained by the coded protocol over simulated clients."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dresfl.errors import EstimatorError
from dresfl.federation.agreement import Mode
from dresfl.runtimes.local import Engine

from .calibration import fit_slope, probabilities
from .clients import deal_rows, hold_out
from .federation import Federation
from .scaling import scaling_of_clients


@final
class DresClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A polynomial network for classes, trained on Lagrange-coded rows of several clients, all in this process.

    `fit(X, y, clients=...)` takes one key for each row that says whose it is. Without it the rows are dealt to
    `num_clients` clients by chance. Columns are scaled by mean and standard deviation over all clients and clipped.
    Each client holds out `calibration_share` of its rows, on which `predict_proba` is calibrated.
    A simulation protects nobody: it holds every client's rows. It shows what the protocol would learn.

    Missing values, sparse matrices, sample weights and `partial_fit` are not supported.
    docs/how-to/use-with-scikit-learn.md explains the parameters and the attributes.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = DresClassifier(rounds=60, random_state=0).fit(X, y)
    >>> classifier.predict_proba(X).shape == (150, 3)
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
        clip: float = Federation.clip,
        input_bits: int = Federation.input_bits,
        weight_bits: int = Federation.weight_bits,
        calibration_share: float = 0.1,
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
        self.calibration_share = calibration_share
        self.mode = mode
        self.engine = engine
        self.dropout_rates = dropout_rates
        self.device = device
        self.threads = threads
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, clients: npt.ArrayLike | None = None) -> "DresClassifier":
        """Train on rows X (m,F) with classes y (m,). clients: whose row each is (m,); None: dealt by chance."""
        federation = Federation.of(self.get_params(deep=False))
        if not 0 <= self.calibration_share < 1:
            raise EstimatorError(f"calibration_share must lie in [0, 1), not {self.calibration_share}")
        inputs, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise EstimatorError("y has one class only, and a classifier needs two", "give rows of another class too")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator = np.random.default_rng(seed)
        names, parts = deal_rows(len(inputs), clients, self.num_clients, generator)
        kept, held = hold_out(parts, self.calibration_share, generator)
        scaling = scaling_of_clients(inputs, kept, self.clip)
        scaled = scaling.apply(inputs)
        network = federation.network(inputs.shape[1], len(classes))
        run = federation.train(network, [(scaled[part], labels[part]) for part in kept], seed)
        rows = np.concatenate(held)
        self.classes_, self.clients_ = classes, names
        self.scaling_, self.model_, self.summary_ = scaling, run.model, run.summary
        self.n_iter_ = run.summary.rounds
        outputs = run.model.decision_function(scaled[rows]) if len(rows) else np.empty((0, len(classes)))
        self.calibration_rows_, self.slope_ = len(rows), fit_slope(outputs, labels[rows])
        return self

    def decision_function(self, X: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The network's values (m,C); of two classes the second one's value less the first one's (m,)."""
        outputs = self._outputs(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """The class of each row (m,): that of the largest value."""
        outputs = self._outputs(X)
        found: npt.NDArray[Any] = self.classes_[outputs.argmax(axis=1)]
        return found

    def predict_proba(self, X: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Each row's probability of each class (m,C), in the order of `classes_`."""
        return probabilities(self._outputs(X), self.slope_)

    def _outputs(self, X: npt.ArrayLike) -> npt.NDArray[np.float64]:
        check_is_fitted(self)
        inputs = validate_data(self, X, dtype=np.float64, reset=False)
        outputs: npt.NDArray[np.float64] = self.model_.decision_function(self.scaling_.apply(inputs))
        return outputs
