import gzip
import pickle
import struct

import numpy as np
import pytest
from scipy.io import savemat

from dresfl.data import load, sources
from dresfl.errors import DataError, UsageError

rng = np.random.default_rng(0)


def test_digits_comes_with_the_package():
    digits = load("digits")
    assert (digits.train.num_rows, digits.test.num_rows) == (1437, 360)
    assert digits.train.input_shape == (8, 8, 1)
    assert digits.train.inputs.max() == 1
    for part, per_class in ((digits.train, range(139, 148)), (digits.test, range(35, 38))):
        assert all(count in per_class for count in np.bincount(part.labels))
    # The two parts are the whole: 16 levels a pixel, so the sums are exact.
    from sklearn.datasets import load_digits

    total = 16 * (digits.train.inputs.sum(dtype=np.float64) + digits.test.inputs.sum(dtype=np.float64))
    assert total == load_digits().data.sum()


def write_idx(folder, prefix, images, labels, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
        content = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
        path = folder / f"{prefix}-{kind}-ubyte{suffix}"
        path.write_bytes(gzip.compress(content) if suffix else content)


def random_images(*shape):
    return rng.integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "folder", "prefixes", "num_classes"),
    [
        ("mnist", "MNIST/raw", ("train", "t10k"), 10),
        ("fashion", "FashionMNIST/raw", ("train", "t10k"), 10),
        ("emnist", "EMNIST/raw", ("emnist-balanced-train", "emnist-balanced-test"), 47),
    ],
)
def test_idx_data_sets(tmp_path, name, folder, prefixes, num_classes, suffix):
    stored = {}
    for prefix, num_rows in zip(prefixes, (5, 3), strict=True):
        stored[prefix] = (
            random_images(num_rows, 28, 28),
            np.arange(num_rows, dtype=np.uint8) + num_classes - 5,
        )
        write_idx(tmp_path / folder, prefix, *stored[prefix], suffix)
    split = load(name, tmp_path)
    for part, (images, labels) in zip((split.train, split.test), stored.values(), strict=True):
        upright = images.transpose(0, 2, 1) if name == "emnist" else images
        assert np.array_equal(part.inputs[..., 0], upright.astype(np.float32) / 255)
        assert np.array_equal(part.labels, labels)
        assert (part.num_classes, part.name, part.input_shape) == (num_classes, name, (28, 28, 1))
        assert part.inputs.flags.c_contiguous


def test_images_and_labels_of_different_splits_are_refused(tmp_path):
    for prefix, num_labels in (("train", 4), ("t10k", 5)):
        write_idx(tmp_path / "MNIST/raw", prefix, random_images(5, 28, 28), np.zeros(num_labels, np.uint8))
    with pytest.raises(DataError, match="5 rows of inputs, 4 labels"):
        load("mnist", tmp_path)


def write_batch(path, pixels, labels, label_key):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps({b"data": pixels, label_key: labels}, 2))


def channels_last(pixels):
    """The slow obvious twin: 1024 red, 1024 green, 1024 blue values, each row by row."""
    image = np.zeros((32, 32, 3), np.float32)
    for index, value in enumerate(pixels):
        channel, place = divmod(index, 1024)
        image[place // 32, place % 32, channel] = np.float32(value) / np.float32(255)
    return image


def test_cifar10(tmp_path):
    pixels = random_images(12, 3072)
    folder = tmp_path / "cifar-10-batches-py"
    for batch in range(5):
        rows = slice(2 * batch, 2 * batch + 2)
        write_batch(folder / f"data_batch_{batch + 1}", pixels[rows], [batch, 9], b"labels")
    write_batch(folder / "test_batch", pixels[10:], [1, 2], b"labels")
    split = load("cifar10", tmp_path)
    assert split.train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert split.test.labels.tolist() == [1, 2]
    assert split.train.input_shape == (32, 32, 3)
    for row in range(10):
        assert np.array_equal(split.train.inputs[row], channels_last(pixels[row]))
    assert split.train.inputs.flags.c_contiguous


def test_cifar100_has_the_fine_labels(tmp_path):
    for part, labels in (("train", [99, 0]), ("test", [5, 6])):
        write_batch(tmp_path / "cifar-100-python" / part, random_images(2, 3072), labels, b"fine_labels")
    split = load("cifar100", str(tmp_path))
    assert (split.train.labels.tolist(), split.test.labels.tolist()) == ([99, 0], [5, 6])
    assert split.train.num_classes == 100


def test_cifar_rows_of_another_length_are_refused(tmp_path):
    for part in ("train", "test"):
        write_batch(tmp_path / "cifar-100-python" / part, random_images(2, 3071), [0, 1], b"fine_labels")
    with pytest.raises(DataError, match="3071 values a row, wanted 3072"):
        load("cifar100", tmp_path)


def write_svhn(folder, images, labels):
    folder.mkdir(exist_ok=True)
    for part in ("train", "test"):
        savemat(folder / f"{part}_32x32.mat", {"X": images, "y": labels}, do_compression=True)


@pytest.mark.parametrize("subfolder", ["", "SVHN"])
def test_svhn_calls_the_digit_0_ten(tmp_path, subfolder):
    images = random_images(32, 32, 3, 4)
    write_svhn(tmp_path / subfolder, images, np.array([[1], [10], [9], [10]], np.uint8))
    split = load("svhn", tmp_path)
    assert split.train.labels.tolist() == [1, 0, 9, 0]
    for row in range(4):
        assert np.array_equal(split.test.inputs[row], images[..., row].astype(np.float32) / 255)
    assert split.train.inputs.flags.c_contiguous


IMAGES, DIGITS = np.zeros((32, 32, 3, 2), np.uint8), np.ones((2, 1), np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES, DIGITS + 10, "label of row 0 is 11"),
        (IMAGES, DIGITS[:1], "2 rows of inputs, 1 labels"),
        (IMAGES[:31], DIGITS, r"shape \(31, 32, 3, 2\)"),
        (IMAGES[..., 0], DIGITS, r"shape \(32, 32, 3\)"),
    ],
)
def test_svhn_refuses_other_shapes_and_labels(tmp_path, images, labels, message):
    write_svhn(tmp_path, images, labels)
    with pytest.raises(DataError, match=message):
        load("svhn", tmp_path)


def test_svhn_needs_X_and_y(tmp_path):
    for part in ("train", "test"):
        savemat(tmp_path / f"{part}_32x32.mat", {"Z": IMAGES, "y": DIGITS})
    with pytest.raises(DataError, match=r"holds \['Z', 'y'\], wanted X and y"):
        load("svhn", tmp_path)


@pytest.mark.parametrize("name", [name for name in sources() if name not in ("digits", "diabetes")])
def test_a_missing_file_is_named_with_its_place(tmp_path, name):
    first = {
        "mnist": "MNIST/raw/train-images-idx3-ubyte",
        "fashion": "FashionMNIST/raw/train-images-idx3-ubyte",
        "emnist": "EMNIST/raw/emnist-balanced-train-images-idx3-ubyte",
        "cifar10": "cifar-10-batches-py/data_batch_1",
        "cifar100": "cifar-100-python/train",
        "svhn": "SVHN/train_32x32.mat",
    }[name]
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError) as caught:
            load(name, folder)
        assert str(folder / first) in str(caught.value)
        assert str(folder / first) in caught.value.hint
        assert "--data" in caught.value.hint
    with pytest.raises(DataError, match="none was given") as caught:
        load(name)
    assert first in caught.value.hint
    assert "--data" in caught.value.hint


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UsageError, match="'minst'") as caught:
        load("minst")
    assert "mnist" in caught.value.hint
