"""Finding a data set's files in a user's folder, reading them, and saying what is wrong with them."""

import os
from pathlib import Path

from dresfl.errors import DataError

MAX_BYTES = 1 << 30
"""More than any file read here holds, packed or unpacked (the largest, SVHN's, unpacks to 0.23 GB)."""


def find(folder: Path, file: str) -> Path:
    """The first of the places where torchvision, or who unpacked by hand, may have put that file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Path(folder, "train_32x32.mat").touch()
    ...     find(Path(folder), "SVHN/train_32x32.mat") == Path(folder, "train_32x32.mat")
    True
    """
    places = [folder / file]
    if file.endswith("-ubyte"):
        places.append(folder / f"{file}.gz")
    if file.startswith("SVHN/"):
        places.append(folder / file.removeprefix("SVHN/"))
    for place in places:
        if os.path.isfile(place):  # unlike Path.is_file, False where a folder may not be entered
            return place
    raise DataError(
        f"there is no file {' or '.join(map(str, places))}",
        hint=f"put it at {places[0]}, or give with --data the folder that holds {file}",
    )


def content(path: Path) -> bytes:
    """All of a file, unless it is larger than any data set's.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "test")
    ...     _ = path.write_bytes(b"abc")
    ...     content(path) == b"abc"
    True
    """
    try:
        size = path.stat().st_size
        if size <= MAX_BYTES:
            return path.read_bytes()
    except OSError as error:
        raise damaged(path, f"cannot be read: {error}") from error
    raise damaged(path, f"has {size} bytes, wanted at most {MAX_BYTES}")


def damaged(path: Path, reason: str) -> DataError:
    """The error for a file that is there but not what it should be.

    >>> str(damaged(Path("train"), "ends too early")) == "train: ends too early"
    True
    """
    return DataError(
        f"{path}: {reason}",
        hint="the file is damaged or is something else; fetch it again from where it came",
    )
