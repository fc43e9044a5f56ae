"""Files that are whole or absent, and files that are private: the one place that knows how.

A file is written beside its place, flushed to the disk, then renamed into it. A private file has mode 0600 from the
start, and is refused if other users may read or change it. What the disk says becomes an error of the caller's choice.
"""

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

TOO_MANY_OPEN = "too many files and connections are open: allow more with ulimit -n, or LimitNOFILE in a systemd unit"
_LARGEST_RECORD = 2**28  # bytes: more than any list of slices has


@contextlib.contextmanager
def disk(path: Path, doing: str, error: type[DresError] = StoreError) -> Iterator[None]:
    """Turn what the disk says into an `error` that names the file."""
    try:
        yield
    except OSError as cause:
        full = cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "free some space, or choose another folder" if full else "check the disk, the path and its permissions"
        if cause.errno in (errno.EMFILE, errno.ENFILE):
            hint = TOO_MANY_OPEN
        raise error(f"cannot {doing} {path}: {cause.strerror or cause}", hint) from cause


def write_atomic(path: Path, data: bytes, *, private: bool = False, error: type[DresError] = DresError) -> None:
    """Replace `path` by `data` so that a crash at any moment leaves the old file or the new one, never a part."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with disk(path, "write", error):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "wb", opener=_private if private else None) as file:
                _write(file.fileno(), data)
            os.replace(part, path)
            sync_folder(path.parent)  # the rename itself
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise


def write_new(path: Path, data: bytes, *, private: bool = False, error: type[DresError] = StoreError) -> None:
    """Write a file that must not exist yet, and flush it to the disk."""
    with disk(path, "write", error):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
        except FileExistsError:
            raise error(
                f"{path} exists already and is not written over",
                "choose another place; delete the file only if nobody relies on it",
            ) from None
        try:
            with open(descriptor, "wb") as file:
                _write(file.fileno(), data)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()  # made a moment ago, and not whole
            raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def read_file(path: Path, limit: int, *, private: bool = False, error: type[DresError] = StoreError) -> bytes:
    """At most `limit` bytes of a regular file; a private one is refused if other users may read or change it."""
    # O_NONBLOCK: opening a pipe by mistake must not hang
    with disk(path, "read", error), open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{path} is not a regular file")
        if private and os.name == "posix" and status.st_mode & 0o077:
            raise error(
                f"{path} is private, but its mode {stat.S_IMODE(status.st_mode):04o} lets other users at it",
                f"chmod 600 {path}; if others may have read a key in it, make a new identity",
            )
        data = file.read(limit + 1)
    if len(data) > limit:
        raise error(f"{path} is larger than {limit} bytes, the most that such a file may have")
    return data


def read_private(path: Path, limit: int) -> bytes | None:
    """At most `limit` bytes of a private file; None if there is none."""
    with disk(path, "read"):
        present = path.exists()
    return read_file(path, limit, private=True) if present else None


def make_private_folder(folder: Path, error: type[DresError] = StoreError) -> None:
    """Make a folder for secrets with mode 0700; one that exists is left as it is."""
    with disk(folder, "make the folder", error):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- records: small private files with a check of their own -----------------------------------------------------


def write_record(path: Path, body: dict[str, Any]) -> None:
    """Write values as one line of JSON and one of its SHA-256, atomically and privately."""
    line = json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    check = hashlib.sha256(line).hexdigest().encode() + b"\n"
    write_atomic(path, line + check, private=True, error=StoreError)


def read_record(path: Path) -> dict[str, Any] | None:
    """What `write_record` wrote; None if there is no such file. Any changed byte: StoreError."""
    data = read_private(path, _LARGEST_RECORD)
    if data is None:
        return None
    line, newline, check = data.partition(b"\n")
    if check != hashlib.sha256(line + newline).hexdigest().encode() + b"\n":
        raise StoreError(f"{path} is damaged", "restore it, or delete it: what it lists is fetched again")
    body = json.loads(line)  # written by `write_record`: the check has passed
    if not isinstance(body, dict):
        raise StoreError(f"{path} is not a record of dresfl")
    return body
