"""What training sees of data: rows of real inputs with a class or real targets each, checked once when made.

Axis letters: B rows, F features, C targets; an image is (H, W, C), height, width and channels last.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dresfl.errors import DataError

Inputs = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Targets = npt.NDArray[np.float32]


@final
@dataclass(frozen=True)
class Origin:
    """What a run's rows were made from, as SHA-256 digests: its record keeps them for whoever repeats the run."""

    data: Mapping[str, str]  # of train_inputs, train_labels, test_inputs, test_labels, as `load` gives them
    extractor: str | None = None  # of the weights of the network that made features of them

    def to_dict(self) -> dict[str, Any]:
        """The keys of a record.

        >>> sorted(Origin({"train_inputs": "00"}).to_dict()) == ["data_sha256", "extractor_sha256"]
        True
        """
        return {"data_sha256": dict(self.data), "extractor_sha256": self.extractor}


@dataclass(frozen=True, eq=False)
class DataSet:
    """Inputs and their labels, as one client or the evaluating participant holds them.

    `inputs` is float32, either (B, H, W, C) images in [0, 1] or (B, F) features of any finite size;
    `labels` is int64, (B,), in 0..num_classes-1. Anything else is refused with the first offending row.
    Images that a transform has taken out of [0, 1] on purpose are made with `transformed`.
    `targets` is None for classes. A regression has float32 targets (B, C), finite; `regression` makes such a data set,
    whose labels are all 0. Two classes that one value tells apart have labels and targets of −1 and 1: `signed`.

    >>> two = DataSet(np.eye(2, 3, dtype=np.float32), np.array([0, 1]), num_classes=2, name="two")
    >>> (two.num_rows, two.input_shape) == (2, (3,))
    True
    """

    inputs: Inputs
    labels: Labels
    num_classes: int
    name: str
    transformed: bool = False
    targets: Targets | None = None

    def __post_init__(self) -> None:
        self._check_form()
        self._check_inputs()
        self._check_labels()
        if self.targets is not None:
            self._check_targets(self.targets)

    @classmethod
    def regression(cls, inputs: Inputs, targets: Targets, name: str) -> "DataSet":
        """Rows whose targets (B, C) are real numbers.

        >>> DataSet.regression(np.ones((2, 3), np.float32), np.zeros((2, 1), np.float32), "flat").num_outputs
        1
        """
        return cls(inputs, np.zeros(len(inputs), np.int64), 1, name, targets=targets)

    def signed(self) -> "DataSet":
        """Two classes with the target −1 or 1 each, for a network that ends in one value.

        >>> two = DataSet(np.ones((2, 3), np.float32), np.array([0, 1]), 2, "two")
        >>> two.signed().targets.tolist()
        [[-1.0], [1.0]]
        """
        if self.num_classes != 2 or self.targets is not None:
            raise DataError(
                f"{self.name}: {self.num_classes} classes, and one value tells two apart",
                "give the network one value for each class",
            )
        targets = np.where(self.labels > 0, 1, -1).astype(np.float32)[:, None]
        return dataclasses.replace(self, targets=targets)

    def rows(self, chosen: npt.NDArray[np.int64]) -> "DataSet":
        """Some of the rows; no range of images is checked again.

        >>> DataSet(np.eye(2, 3, dtype=np.float32), np.array([0, 1]), 2, "two").rows(np.array([1])).labels.tolist()
        [1]
        """
        targets = None if self.targets is None else self.targets[chosen]
        inputs, labels = self.inputs[chosen], self.labels[chosen]
        return DataSet(inputs, labels, self.num_classes, self.name, transformed=True, targets=targets)

    @property
    def is_regression(self) -> bool:
        """Whether the targets are real numbers, and not classes."""
        return self.targets is not None and self.num_classes == 1

    @property
    def num_outputs(self) -> int:
        """C: the values that a network must end in.

        >>> DataSet(np.zeros((5, 2), np.float32), np.zeros(5, np.int64), 3, "zeros").num_outputs
        3
        """
        return self.num_classes if self.targets is None else self.targets.shape[1]

    @cached_property
    def strata(self) -> Labels:
        """What skewed partitions sort rows by: the label, or in a regression the tenth in which the first target is."""
        if self.targets is None or not self.is_regression:
            return self.labels
        order = np.argsort(self.targets[:, 0], kind="stable")
        strata = np.empty(len(order), np.int64)
        strata[order] = np.arange(len(order)) * 10 // len(order)
        return strata

    @property
    def num_rows(self) -> int:
        """How many rows there are.

        >>> DataSet(np.zeros((5, 2), np.float32), np.zeros(5, np.int64), 1, "zeros").num_rows == 5
        True
        """
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (H, W, C) of an image, (F,) of a feature row.

        >>> image = np.zeros((1, 8, 8, 1), np.float32)
        >>> DataSet(image, np.array([0]), 1, "dark").input_shape == (8, 8, 1)
        True
        """
        return self.inputs.shape[1:]

    @cached_property
    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest input value.

        >>> DataSet(np.array([[1, -2]], np.float32), np.array([0]), 1, "row").extremes == (-2, 1)
        True
        """
        return float(self.inputs.min()), float(self.inputs.max())

    @cached_property
    def sha256(self) -> dict[str, str]:
        """The digests of the arrays: the bytes of the float32 inputs and of the int64 labels, in C order.

        A regression has those of its float32 targets in the place of the labels'.

        >>> zeros = DataSet(np.zeros((5, 2), np.float32), np.zeros(5, np.int64), 1, "zeros")
        >>> zeros.sha256["inputs"] == zeros.sha256["labels"] == hashlib.sha256(bytes(40)).hexdigest()
        True
        """
        arrays: dict[str, tuple[npt.NDArray[Any], str]] = {"inputs": (self.inputs, "<f4")}
        if self.targets is not None and self.is_regression:
            arrays["targets"] = (self.targets, "<f4")
        else:
            arrays["labels"] = (self.labels, "<i8")
        return {
            name: hashlib.sha256(np.ascontiguousarray(array, form).data).hexdigest()
            for name, (array, form) in arrays.items()
        }

    def _check_form(self) -> None:
        if self.inputs.dtype != np.float32 or self.inputs.ndim not in (2, 4):
            raise DataError(
                f"{self.name}: inputs are {self.inputs.dtype} of {self.inputs.ndim} axes, "
                "wanted float32 of 2 (rows, features) or 4 (rows, height, width, channels)",
                hint="convert with .astype(numpy.float32) and reshape; divide 8-bit images by 255",
            )
        if self.labels.dtype != np.int64 or self.labels.ndim != 1:
            raise DataError(
                f"{self.name}: labels are {self.labels.dtype} of {self.labels.ndim} axes, wanted int64 of 1",
                hint="convert with .astype(numpy.int64) and .ravel()",
            )
        if len(self.inputs) != len(self.labels):
            raise DataError(
                f"{self.name}: {len(self.inputs)} rows of inputs, {len(self.labels)} labels",
                hint="give each input exactly one label; files of different splits do not mix",
            )
        if self.inputs.size == 0:
            raise DataError(
                f"{self.name}: empty, inputs have shape {self.inputs.shape}",
                hint="give at least one row of at least one value",
            )

    def _check_inputs(self) -> None:
        # The extremes tell all and need no mask as large as the data: NaN and inf both reach one of them.
        low, high = self.extremes
        if not (np.isfinite(low) and np.isfinite(high)):
            row = self._first_row(~np.isfinite(self.inputs))
            raise DataError(
                f"{self.name}: the input of row {row} holds NaN or infinity",
                hint="fill in or drop missing values before making a data set",
            )
        if self.inputs.ndim == 4 and not self.transformed and not (low >= 0 and high <= 1):
            row = self._first_row((self.inputs < 0) | (self.inputs > 1))
            raise DataError(
                f"{self.name}: the image of row {row} leaves [0, 1]; all together span [{low}, {high}]",
                hint="divide 8-bit images by 255, and normalise after loading, not before",
            )

    def _check_labels(self) -> None:
        bad = (self.labels < 0) | (self.labels >= self.num_classes)
        if bad.any():
            row = self._first_row(bad)
            raise DataError(
                f"{self.name}: the label of row {row} is {self.labels[row]}, "
                f"wanted 0 to {self.num_classes - 1} ({self.num_classes} classes)",
                hint="number the classes from 0, without gaps, or correct num_classes",
            )

    def _check_targets(self, targets: Targets) -> None:
        if targets.dtype != np.float32 or targets.ndim != 2 or targets.shape[1] < 1 or len(targets) != len(self.inputs):
            raise DataError(
                f"{self.name}: targets are {targets.dtype} of shape {targets.shape}, wanted float32 of shape "
                f"({len(self.inputs)}, number of targets)",
                hint="convert with .astype(numpy.float32); one target a row is targets[:, None]",
            )
        if not np.isfinite(targets).all():
            raise DataError(
                f"{self.name}: the target of row {self._first_row(~np.isfinite(targets))} is NaN or infinite",
                hint="drop the rows whose target is not known",
            )

    @staticmethod
    def _first_row(bad: npt.NDArray[np.bool_]) -> int:
        return int(bad.reshape(len(bad), -1).any(axis=1).argmax())


@dataclass(frozen=True, eq=False)
class Split:
    """A training set and the test set that measures it; both have one input shape and one class count.

    >>> part = DataSet(np.zeros((1, 2), np.float32), np.array([0]), 1, "tiny")
    >>> Split(train=part, test=part).test.num_rows == 1
    True
    """

    train: DataSet
    test: DataSet
    made_from: Origin | None = None  # None: this is what was loaded, and nothing was made of it

    @cached_property
    def origin(self) -> Origin:
        """The digests of what was loaded, also where these are features made from it."""
        if self.made_from is not None:
            return self.made_from
        parts = {"train": self.train, "test": self.test}
        return Origin({f"{part}_{name}": value for part, data in parts.items() for name, value in data.sha256.items()})

    def __post_init__(self) -> None:
        train = (self.train.input_shape, self.train.num_classes, self.train.num_outputs, self.train.is_regression)
        test = (self.test.input_shape, self.test.num_classes, self.test.num_outputs, self.test.is_regression)
        if train != test:
            raise DataError(
                f"{self.train.name}: training inputs have shape {train[0]} in {train[1]} classes, "
                f"test inputs {test[0]} in {test[1]}",
                hint="take both parts from the same data set",
            )
