"""How good a model is on rows whose outcome is known: the figures of `dresfl evaluate`.

Training with squared error makes an output an estimate of its class's probability. It may leave [0, 1], so shares are
made of it: negative outputs become 0, and the rest is divided by its sum. Calibration says how far that can be trusted.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dresfl.errors import DataError

from .model import Model
from .rows import Array

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

_BINS = 10


@final
@dataclass(frozen=True)
class CalibrationBin:
    """Rows whose predicted class had a share in [low, high): how sure the model was, and how often it was right."""

    low: float
    high: float
    rows: int
    mean_share: float
    accuracy: float


@final
@dataclass(frozen=True)
class ClassReport:
    """A classification, measured. `confusion[i][j]` counts rows of class i that were predicted as class j.

    >>> class_report(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 0])).to_dict()["confusion"]
    ((1, 1), (0, 0))
    """

    rows: int
    accuracy: float
    auc: float | None  # the area under the ROC curve, of each class against the rest, mean; None: one class alone
    brier: float  # mean squared difference between shares and outcome, summed over the classes
    calibration_error: float  # |mean share − accuracy|, mean over the bins by their rows
    calibration: tuple[CalibrationBin, ...]
    confusion: tuple[tuple[int, ...], ...]
    classes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return {"task": "classification", **dataclasses.asdict(self)}


@final
@dataclass(frozen=True)
class NumberReport:
    """A regression, measured in the target's unit.

    >>> number_report(np.array([1.0, 3.0]), np.array([1.0, 2.0])).mae
    0.5
    """

    rows: int
    r2: float | None  # None: all targets are the same
    mae: float  # mean |prediction − target|
    rmse: float
    unit: str

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return {"task": "regression", **dataclasses.asdict(self)}


def shares(outputs: Floats) -> Floats:
    """Outputs (m,C) as shares (m,C) that are not negative and sum to 1. A single output of ±1 gives two shares.

    >>> shares(np.array([[0.5, -0.25], [0.25, 0.75], [-1.0, -1.0]])).tolist()
    [[1.0, 0.0], [0.25, 0.75], [0.5, 0.5]]
    >>> shares(np.array([[0.5], [-2.0]])).tolist()
    [[0.25, 0.75], [1.0, 0.0]]
    """
    if outputs.shape[1] == 1:
        second = np.clip((outputs + 1) / 2, 0, 1)
        return np.concatenate([1 - second, second], axis=1)
    positive = np.clip(outputs, 0, None)
    total = positive.sum(1, keepdims=True)
    return np.where(total > 0, positive / np.where(total > 0, total, 1), 1 / outputs.shape[1])


def class_report(outputs: Floats, labels: Labels, classes: tuple[str, ...] = ()) -> ClassReport:
    """Measure outputs (m,C) against the true classes (m,).

    >>> report = class_report(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1]))
    >>> report.confusion, report.auc
    (((1, 0), (1, 1)), 0.75)
    """
    found = shares(outputs)
    count = found.shape[1]
    _check_labels(labels, len(outputs), count)
    predicted = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).astype(np.int64)
    confusion = np.bincount(labels * count + predicted, minlength=count * count).reshape(count, count)
    bins, error = _calibration(found[np.arange(len(found)), predicted], predicted == labels)
    squares = np.square(found).sum(1) - 2 * found[np.arange(len(found)), labels] + 1
    return ClassReport(
        rows=len(labels),
        accuracy=float((predicted == labels).mean()),
        auc=_auc(outputs if outputs.shape[1] > 1 else np.concatenate([-outputs, outputs], axis=1), labels),
        brier=float(squares.mean()),
        calibration_error=error,
        calibration=bins,
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        classes=classes or tuple(map(str, range(count))),
    )


def number_report(predictions: Floats, targets: Floats, unit: str = "") -> NumberReport:
    """Measure predictions (m,) or (m,C) against the true numbers. R² of several targets is the mean of theirs.

    >>> number_report(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0])).mae == 1 / 3
    True
    """
    found, wanted = (values.reshape(len(values), -1) for values in (predictions, targets))
    if found.shape != wanted.shape or not len(wanted) or not np.isfinite(wanted).all():
        raise DataError(
            f"{found.shape} predictions and {wanted.shape} targets cannot be compared",
            "give at least one row, and each row its finite targets",
        )
    errors = found - wanted
    spread = np.square(wanted - wanted.mean(0)).sum(0)
    r2 = float((1 - np.square(errors).sum(0) / spread).mean()) if (spread > 0).all() else None
    return NumberReport(len(wanted), r2, float(np.abs(errors).mean()), float(np.sqrt(np.square(errors).mean())), unit)


def evaluate(model: Model, inputs: Array, outcomes: Array) -> ClassReport | NumberReport:
    """Measure a model on rows that it takes: inputs (m, …) as it was trained on, and their classes or targets.

    >>> import dresfl as dr
    >>> network = dr.mlp((3, 2), input_bits=4, weight_bits=10)
    >>> rows = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0, 1]
    >>> dr.evaluate(dr.simulate(network, [rows] * 3, rounds=20, batch_size=4).model, *rows).accuracy == 1.0
    True
    """
    outputs = model.decision_function(inputs)
    if model.task == "regression":
        return number_report(outputs, np.asarray(outcomes, np.float64))
    labels = np.asarray(outcomes)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError("the labels are not one integer for each row", "number the classes from 0")
    return class_report(outputs, labels.astype(np.int64), model.classes)


def _check_labels(labels: Labels, rows: int, count: int) -> None:
    if len(labels) != rows or not rows:
        raise DataError(f"{rows} rows, {len(labels)} labels", "give at least one row, and each row one label")
    bad = (labels < 0) | (labels >= count)
    if bad.any():
        raise DataError(
            f"the label of row {int(bad.argmax()) + 1} is not in 0 to {count - 1}", f"the model has {count} classes"
        )


def _auc(outputs: Floats, labels: Labels) -> float | None:
    """The probability that a row of a class has a larger output for it than a row of another; mean of the classes.

    Classes without rows do not count.
    """
    from scipy.stats import rankdata

    areas = []
    for place in np.unique(labels).tolist():
        own = labels == place
        here = int(own.sum())
        if here < len(labels):
            ranks = rankdata(outputs[:, place])  # equal outputs share their ranks, and so count half
            areas.append((ranks[own].sum() - here * (here + 1) / 2) / (here * (len(labels) - here)))
    return float(np.mean(areas)) if areas else None


def _calibration(sure: Floats, right: npt.NDArray[np.bool_]) -> tuple[tuple[CalibrationBin, ...], float]:
    places = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
    bins = []
    for place in np.unique(places).tolist():
        here = places == place
        mean, accuracy = float(sure[here].mean()), float(right[here].mean())
        bins.append(CalibrationBin(place / _BINS, (place + 1) / _BINS, int(here.sum()), mean, accuracy))
    error = sum(one.rows * abs(one.mean_share - one.accuracy) for one in bins) / len(sure)
    return tuple(bins), error
