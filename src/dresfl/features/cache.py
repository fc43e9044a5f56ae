"""Extracted features on the disk: float16, whole or absent, mapped into memory and shared by all who read them."""

import contextlib
import fcntl
import os
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dresfl.errors import DataError, DresError

Rows = npt.NDArray[np.float16]


def read_rows(path: Path, num_rows: int) -> Rows:
    """The features (B,F) of a cache file, mapped and read-only."""
    again = "delete the file; the features are then extracted anew"
    try:
        rows: Rows = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError, SyntaxError, TypeError, OverflowError, tokenize.TokenError) as error:
        raise DataError(f"cannot read the features in {path}: {error}", again) from error
    if rows.dtype != np.float16 or rows.ndim != 2 or len(rows) != num_rows:
        raise DataError(f"{path} holds {rows.dtype} {rows.shape}, wanted {num_rows} rows of float16", again)
    return rows


def write_rows(path: Path, num_rows: int, blocks: Iterable[Rows]) -> None:
    """Write blocks (n,F) one after the other as one .npy file; a crash at any moment leaves it whole or absent.

    The caller holds `only_one`.
    """
    unfinished = path.with_suffix(".part")
    try:
        with _complaining(path), open(unfinished, "wb") as file:
            written = 0
            for block in blocks:
                if not written:
                    form = {"descr": "<f2", "fortran_order": False, "shape": (num_rows, block.shape[1])}
                    np.lib.format.write_array_header_2_0(file, form)
                file.write(np.ascontiguousarray(block, "<f2").data)
                written += len(block)
            if written != num_rows:
                raise RuntimeError(f"{written} of {num_rows} rows written")
            file.flush()
            os.fsync(file.fileno())
            os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold a lock for `path`. Where several runs want the same features, one extracts and the others wait."""
    with contextlib.ExitStack() as stack:
        with _complaining(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(path.with_suffix(".lock"), "wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # given back when closed, also by a process that is killed
        yield


@contextlib.contextmanager
def _complaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DresError(
            f"cannot write the features to {path}: {error.strerror}",
            "free some space, or name a folder for them in the environment variable DRESFL_CACHE",
        ) from error
