"""Data sets with real targets, and with two classes as −1 and 1."""

import numpy as np
import pytest
import torch

from dresfl.data import DataSet, Split, integer_rows, load, no_rows, partition, weighted_rows
from dresfl.errors import DataError, UsageError
from dresfl.quantize import Quantizer

INPUTS = np.arange(12, dtype=np.float32).reshape(6, 2) / 12
TARGETS = np.array([[0.3], [-0.7], [0.26], [1.0], [-1.0], [0.0]], np.float32)


def test_rows_of_a_regression_are_rounded_at_their_scale():
    data = DataSet.regression(INPUTS, TARGETS, "six")
    inputs, targets = integer_rows(data, Quantizer(4, target_bits=3), np.array([0, 1, 3]))
    assert targets.tolist() == [[2], [-6], [8]]
    assert (tuple(inputs.shape), targets.dtype) == ((3, 2), torch.int32)
    assert [tuple(part.shape) for part in no_rows(2, 1)] == [(0, 2), (0, 1)]


def test_two_classes_as_minus_one_and_one():
    data = DataSet(INPUTS, np.array([0, 1, 1, 0, 1, 0]), 2, "six").signed()
    _, targets = integer_rows(data, Quantizer(4), np.arange(6))
    assert targets.flatten().tolist() == [-1, 1, 1, -1, 1, -1]
    assert (data.num_outputs, data.is_regression, data.num_classes) == (1, False, 2)
    for bad in (data, DataSet(INPUTS, np.array([0, 1, 2, 0, 1, 0]), 3, "three")):
        with pytest.raises(DataError, match="one value tells two apart"):
            bad.signed()


def test_strata_are_the_tenths_of_a_target():
    targets = np.random.default_rng(0).permutation(200).astype(np.float32)[:, None] / 200
    data = DataSet.regression(np.zeros((200, 1), np.float32), targets, "even")
    assert (data.strata == (targets[:, 0] * 10).astype(int)).all()
    parts = partition(data.strata, 10, "label-sorted")
    assert all(np.ptp(targets[rows]) < 0.1 for rows in parts)
    labels = np.array([0, 1, 1, 0, 1, 0])
    assert DataSet(INPUTS, labels, 2, "six").strata is labels


def test_weighted_rows_are_repeated():
    data = DataSet(INPUTS, np.array([0, 1, 2, 0, 1, 0]), 3, "six")
    assert weighted_rows(data, np.array([0, 1, 2]), (1, 2, 3)).tolist() == [0, 1, 1, 2, 2, 2]
    assert weighted_rows(data, np.array([0, 1, 2]), ()).tolist() == [0, 1, 2]
    for bad in ((1, 2), (1, 2, 0), (1, 2, 1.5)):
        with pytest.raises(UsageError, match="class_weights"):
            weighted_rows(data, np.array([0]), bad)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (TARGETS.astype(np.float64), "float64"),
        (TARGETS[:, 0], r"shape \(6,\)"),
        (TARGETS[:5], r"shape \(5, 1\)"),
        (np.where(np.arange(6) == 4, np.inf, 0).astype(np.float32)[:, None], "row 4"),
    ],
)
def test_targets_that_are_refused(targets, words):
    with pytest.raises(DataError, match=words):
        DataSet.regression(INPUTS, targets, "six")


def test_targets_that_no_integer_holds():
    quantizer = Quantizer(4, target_bits=10)
    with pytest.raises(DataError, match="does not fit 10 target bits"):
        quantizer.target_integers(torch.tensor([[1024.0]]))
    with pytest.raises(DataError, match="NaN"):
        quantizer.target_integers(torch.tensor([[float("nan")]]))
    with pytest.raises(UsageError, match="target_bits"):
        Quantizer(4, target_bits=17)


def test_both_parts_of_a_split_are_of_one_kind():
    regression = DataSet.regression(INPUTS, TARGETS, "six")
    with pytest.raises(DataError):
        Split(regression, DataSet(INPUTS, np.zeros(6, np.int64), 1, "six"))


def test_diabetes_comes_with_the_package():
    split = load("diabetes")
    assert (split.train.num_rows, split.test.num_rows, split.train.input_shape) == (353, 89, (10,))
    assert split.train.is_regression
    assert max(abs(bound) for part in (split.train, split.test) for bound in part.extremes) <= 1
    whole = np.concatenate([split.train.targets, split.test.targets])
    assert (whole.min(), whole.max()) == (-1, 1)
    assert abs(split.train.targets.mean() - split.test.targets.mean()) < 0.02
    assert set(split.origin.data) == {"train_inputs", "train_targets", "test_inputs", "test_targets"}
