"""Where a data set comes from: its name, its label, and how its files become a training set and a test set."""

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from dresfl.errors import DataError, UsageError

from . import sets
from .dataset import DataSet, Labels, Split
from .files import find

Pixels = npt.NDArray[np.uint8]
Parse = Callable[[Sequence[Path]], tuple[Pixels, Labels]]
"""Makes images (B,H,W,C) of bytes, and their labels (B,), of some files."""


@final
@dataclass(frozen=True)
class Published:
    """What is published of one official file. The length of a digest says which it is: MD5, SHA-1 or SHA-256."""

    file: tuple[str, ...] = ()  # digests of the file, in each form in which it is given out
    content: tuple[str, ...] = ()  # digests of what `Source.content` reads out of it, however it is packed
    size: int = 0  # bytes of that content; 0: not known


@final
@dataclass(frozen=True)
class Source:
    """A data set that `load` knows. A file of the folder `sets` defines it, under the name SOURCE."""

    name: str
    label: str  # what tables and figures call it
    load: Callable[[Path | None], Split]  # from the user's data folder
    files: Mapping[str, Published] = field(default_factory=dict)  # below the data folder
    content: Callable[[Path], bytes] | None = None  # a file's values in a form that has published checksums


def image_source(
    name: str,
    label: str,
    *,
    num_classes: int,
    train: tuple[str, ...],
    test: tuple[str, ...],
    parse: Parse,
    published: Sequence[Published] = (),
    content: Callable[[Path], bytes] | None = None,
) -> Source:
    """The source of a data set of 8-bit images: its files below the data folder, and what parses them.

    `published`: of the files of `train`, then of `test`.
    """

    def read(paths: Sequence[Path]) -> DataSet:
        pixels, labels = parse(paths)
        # One pass, one result: no float64 and no transposed copy of what may be 900 MB.
        inputs = np.divide(pixels, np.float32(255), dtype=np.float32, order="C")
        return DataSet(inputs, labels, num_classes, name)

    def split(folder: Path | None) -> Split:
        if folder is None:
            raise DataError(
                f"{name} is read from a folder, and none was given",
                hint=f"give with --data the folder that holds {train[0]}",
            )
        # Both parts are looked for before either is read, which can take a while.
        train_paths, test_paths = ([find(folder, file) for file in files] for files in (train, test))
        return Split(train=read(train_paths), test=read(test_paths))

    files = (*train, *test)
    known = published or (Published(),) * len(files)
    return Source(name, label, split, dict(zip(files, known, strict=True)), content)


def sources() -> dict[str, Source]:
    """Every data set by its name: those that the files of the folder `sets` define.

    >>> sources()["cifar10"].label
    'CIFAR-10'
    """
    modules = (importlib.import_module(f"{sets.__name__}.{file.name}") for file in pkgutil.iter_modules(sets.__path__))
    return {module.SOURCE.name: module.SOURCE for module in modules}


def data_set_label(name: str) -> str:
    """What tables and figures call a data set; one that is not known is called by its name."""
    known = sources()
    return known[name].label if name in known else name


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Split:
    """The data set of that name, split as its authors did. Whoever holds the folder runs this.

    Images are float32 in [0, 1], (B, H, W, C). `digits` needs no folder.

    >>> digits = load("digits")
    >>> (digits.train.num_rows, digits.test.num_rows, digits.test.input_shape) == (1437, 360, (8, 8, 1))
    True
    """
    known = sources()
    if name not in known:
        raise UsageError(f"no data set is called {name!r}", hint=f"choose one of {', '.join(known)}")
    return known[name].load(None if folder is None else Path(folder))
