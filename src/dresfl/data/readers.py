"""The data sets by name, read from the folders torchvision users already have. Nothing is downloaded.

| name | the folder holds | images | classes |
|---|---|---|---|
| digits | nothing: it comes with scikit-learn | 8x8x1 | 10 |
| mnist | MNIST/raw/train-images-idx3-ubyte[.gz], ... | 28x28x1 | 10 |
| fashion | FashionMNIST/raw/train-images-idx3-ubyte[.gz], ... | 28x28x1 | 10 |
| emnist | EMNIST/raw/emnist-balanced-train-images-idx3-ubyte[.gz], ... | 28x28x1 | 47 |
| cifar10 | cifar-10-batches-py/data_batch_1, ... | 32x32x3 | 10 |
| cifar100 | cifar-100-python/train, test | 32x32x3 | 100, the fine ones |
| svhn | [SVHN/]train_32x32.mat, [SVHN/]test_32x32.mat | 32x32x3 | 10 |
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dresfl.errors import DataError, UsageError

from .dataset import DataSet, Labels, Split
from .files import damaged, find
from .idx import read_idx
from .mat import read_mat
from .pickles import read_batch

Pixels = npt.NDArray[np.uint8]


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Split:
    """The data set of that name, split as its authors did; run by whoever holds the folder.

    Images are float32 in [0, 1], (B, H, W, C). `digits` needs no folder and has no split of its own: in label
    order (ties in scikit-learn's order) every fifth row is a test row, so each class is split four to one.

    >>> digits = load("digits")
    >>> (digits.train.num_rows, digits.test.num_rows, digits.test.input_shape) == (1437, 360, (8, 8, 1))
    True
    """
    if name not in DATASETS:
        raise UsageError(f"no data set is called {name!r}", hint=f"choose one of {', '.join(DATASETS)}")
    if name == "digits":
        return _digits()
    source = _SOURCES[name]
    if folder is None:
        raise DataError(
            f"{name} is read from a folder, and none was given",
            hint=f"give with --data the folder that holds {source.train[0]}",
        )
    # Both parts are looked for before either is read, which can take a while.
    train, test = ([find(Path(folder), file) for file in files] for files in (source.train, source.test))
    return Split(train=source.read(train, name), test=source.read(test, name))


def _digits() -> Split:
    from sklearn.datasets import load_digits  # here: a second to import, and only `digits` needs it

    flat, target = load_digits(return_X_y=True)
    inputs = (flat / 16).astype(np.float32).reshape(-1, 8, 8, 1)  # (B,64) -> (B,8,8,1)
    labels = target.astype(np.int64)
    # In file order the digits come in runs of 0 to 9, so every fifth row there would favour some classes.
    is_test = np.zeros(len(labels), np.bool_)
    is_test[np.argsort(labels, kind="stable")[::5]] = True
    train, test = (DataSet(inputs[rows], labels[rows], 10, "digits") for rows in (~is_test, is_test))
    return Split(train=train, test=test)


def _idx(paths: list[Path], *, transposed: bool = False) -> tuple[Pixels, Labels]:
    images, labels = read_idx(paths[0], num_axes=3), read_idx(paths[1], num_axes=1)
    if transposed:
        images = images.swapaxes(1, 2)  # (B,W,H) -> (B,H,W)
    return images[..., np.newaxis], labels.astype(np.int64)  # (B,H,W) -> (B,H,W,1)


def _cifar(paths: list[Path], *, label_key: str) -> tuple[Pixels, Labels]:
    batches = [read_batch(path, label_key) for path in paths]
    for path, (pixels, _) in zip(paths, batches, strict=True):
        if pixels.shape[1] != 3 * 32 * 32:
            raise damaged(path, f"{pixels.shape[1]} values a row, wanted 3072 (3 channels of 32x32)")
    pixels = np.concatenate([pixels for pixels, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels  # (B,3072) -> (B,C,H,W) -> (B,H,W,C)


def _svhn(paths: list[Path]) -> tuple[Pixels, Labels]:
    variables = read_mat(paths[0])
    if not {"X", "y"} <= variables.keys():
        raise damaged(paths[0], f"holds {sorted(variables)}, wanted X and y")
    images, labels = variables["X"], variables["y"].ravel().astype(np.int64)
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise damaged(paths[0], f"its X has the shape {images.shape}, wanted (32, 32, 3, rows)")
    labels[labels == 10] = 0  # the authors number the digits 1 to 10
    return images.transpose(3, 0, 1, 2), labels  # (H,W,C,B) -> (B,H,W,C)


@dataclass(frozen=True)
class _Source:
    """Where one data set lies below the folder, and what turns its files into pixels and labels."""

    parse: Callable[[list[Path]], tuple[Pixels, Labels]]
    num_classes: int
    train: tuple[str, ...]
    test: tuple[str, ...]

    def read(self, paths: list[Path], name: str) -> DataSet:
        pixels, labels = self.parse(paths)
        # One pass, one result: no float64 and no transposed copy of what may be 900 MB.
        inputs = np.divide(pixels, np.float32(255), dtype=np.float32, order="C")
        return DataSet(inputs, labels, self.num_classes, name)


def _idx_pair(prefix: str) -> tuple[str, str]:
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"


_SOURCES = {
    "mnist": _Source(_idx, 10, _idx_pair("MNIST/raw/train"), _idx_pair("MNIST/raw/t10k")),
    "fashion": _Source(_idx, 10, _idx_pair("FashionMNIST/raw/train"), _idx_pair("FashionMNIST/raw/t10k")),
    "emnist": _Source(
        partial(_idx, transposed=True),  # NIST's files hold these, unlike MNIST's, column by column
        47,
        _idx_pair("EMNIST/raw/emnist-balanced-train"),
        _idx_pair("EMNIST/raw/emnist-balanced-test"),
    ),
    "cifar10": _Source(
        partial(_cifar, label_key="labels"),
        10,
        tuple(f"cifar-10-batches-py/data_batch_{batch}" for batch in range(1, 6)),
        ("cifar-10-batches-py/test_batch",),
    ),
    "cifar100": _Source(
        partial(_cifar, label_key="fine_labels"), 100, ("cifar-100-python/train",), ("cifar-100-python/test",)
    ),
    "svhn": _Source(_svhn, 10, ("SVHN/train_32x32.mat",), ("SVHN/test_32x32.mat",)),
}

DATASETS = ("digits", *_SOURCES)
"""The names that `load` knows."""
