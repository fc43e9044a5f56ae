"""Small private files with a check of their own, and the words for what goes wrong on a disk."""

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dresfl.errors import DresError, StoreError
from dresfl.files import write_atomic

_LARGEST = 2**28  # of a record: more than any manifest has


@contextlib.contextmanager
def disk(path: Path, doing: str) -> Iterator[None]:
    """Turn what the disk says into a StoreError that names the file."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "free some space, or choose another folder" if full else "check the disk, the path and its permissions"
        raise StoreError(f"cannot {doing} {path}: {error.strerror or error}", hint) from error


def write_record(path: Path, body: dict[str, Any]) -> None:
    """Write values as one line of JSON and one of its SHA-256, atomically and privately."""
    line = json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    try:
        write_atomic(path, line + hashlib.sha256(line).hexdigest().encode() + b"\n", private=True)
    except DresError as error:
        raise StoreError(str(error), "free some space, or choose another folder") from error


def read_record(path: Path) -> dict[str, Any] | None:
    """What `write_record` wrote; None if there is no such file. Any changed byte: StoreError."""
    data = read_private(path, _LARGEST)
    if data is None:
        return None
    line, newline, check = data.partition(b"\n")
    if check != hashlib.sha256(line + newline).hexdigest().encode() + b"\n":
        raise StoreError(f"{path} is damaged", "restore it, or delete it: what it lists is fetched again")
    body = json.loads(line)  # its own work: the check has passed
    if not isinstance(body, dict):
        raise StoreError(f"{path} is not a record of dresfl")
    return body


def read_private(path: Path, limit: int) -> bytes | None:
    """At most `limit` bytes of a file that only its owner may read; None if there is none."""
    with disk(path, "read"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise StoreError(f"{path} is not a regular file")
            if status.st_mode & 0o077:
                raise StoreError(
                    f"{path} is private, but its mode {stat.S_IMODE(status.st_mode):04o} lets other users at it",
                    f"chmod 600 {path}",
                )
            data = file.read(limit + 1)
    if len(data) > limit:
        raise StoreError(f"{path} is larger than {limit} bytes, the most that such a file may have")
    return data


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
