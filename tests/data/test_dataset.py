import dataclasses
import hashlib

import numpy as np
import pytest

from dresfl.data import DataSet, Origin, Split
from dresfl.errors import DataError


def make(inputs=None, labels=None, num_classes=3):
    if inputs is None:
        inputs = np.zeros((4, 2), np.float32)
    if labels is None:
        labels = np.arange(len(inputs)) % num_classes
    return DataSet(inputs, labels, num_classes, "sample")


def images(num_rows=4):
    return np.full((num_rows, 2, 2, 1), 0.5, np.float32)


def test_shape_and_rows():
    sample = make(images())
    assert (sample.num_rows, sample.input_shape) == (4, (2, 2, 1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        sample.name = "other"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("inputs", [np.zeros((4, 2), np.float32), images()], ids=["features", "images"])
def test_names_the_first_row_that_is_not_finite(inputs, bad):
    inputs = inputs.copy()
    inputs[2:].flat[1] = bad
    inputs[3] = bad
    with pytest.raises(DataError, match="row 2 holds NaN or infinity"):
        make(inputs)


@pytest.mark.parametrize("bad", [-0.01, 1.01, 255])
def test_images_stay_within_0_and_1(bad):
    inputs = images()
    inputs[1, 0, 1, 0] = bad
    with pytest.raises(DataError, match="image of row 1 leaves"):
        make(inputs)


def test_features_may_have_any_finite_size():
    assert make(np.array([[-1e6, 255], [0, 3e38]], np.float32)).num_rows == 2


@pytest.mark.parametrize("bad", [-1, 3, 1 << 40])
def test_names_the_first_label_out_of_range(bad):
    with pytest.raises(DataError, match=f"label of row 1 is {bad}, wanted 0 to 2"):
        make(labels=np.array([0, bad, 1, bad]))


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (np.zeros((0, 2), np.float32), np.zeros(0, np.int64), "empty"),
        (np.zeros((2, 0), np.float32), np.zeros(2, np.int64), "empty"),
        (np.zeros((3, 2), np.float32), np.zeros(2, np.int64), "3 rows of inputs, 2 labels"),
        (np.zeros((2, 2), np.float64), np.zeros(2, np.int64), "inputs are float64 of 2 axes"),
        (np.zeros((2, 2), np.uint8), np.zeros(2, np.int64), "inputs are uint8"),
        (np.zeros((2, 8, 8), np.float32), np.zeros(2, np.int64), "float32 of 3 axes"),
        (np.zeros((2, 2), np.float32), np.zeros(2, np.int32), "labels are int32"),
        (np.zeros((2, 2), np.float32), np.zeros((2, 1), np.int64), "labels are int64 of 2 axes"),
    ],
)
def test_refuses_other_forms(inputs, labels, message):
    with pytest.raises(DataError, match=message) as caught:
        make(inputs, labels)
    assert caught.value.hint


def test_a_split_is_of_one_shape_and_one_class_count():
    whole = make(images())
    assert Split(train=whole, test=whole).train is whole
    with pytest.raises(DataError, match=r"shape \(2, 2, 1\) in 3 classes, test inputs \(2,\) in 3"):
        Split(train=whole, test=make())
    with pytest.raises(DataError, match="in 4"):
        Split(train=whole, test=make(images(), num_classes=4))


def test_digests_are_of_the_loaded_arrays_and_survive_what_is_made_of_them():
    part = make()
    split = Split(train=part, test=part)
    assert split.origin.data["train_inputs"] == hashlib.sha256(part.inputs.tobytes()).hexdigest()
    assert split.origin.data["test_labels"] == hashlib.sha256(part.labels.tobytes()).hexdigest()
    assert split.origin.extractor is None
    turned = DataSet(np.asfortranarray(part.inputs), part.labels, part.num_classes, part.name)
    assert turned.sha256 == part.sha256
    made = Split(train=part, test=part, made_from=Origin({"train_inputs": "00"}, "11"))
    assert made.origin.to_dict() == {"data_sha256": {"train_inputs": "00"}, "extractor_sha256": "11"}
