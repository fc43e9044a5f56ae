"""Key files and cards on disk: never written over, never read beyond a limit, never secret and readable by others."""

import contextlib
import os
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

from dresfl.errors import IdentityError

_T = TypeVar("_T")


def write_new(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file that must not exist yet and flush it to the disk; a private one has mode 0600 from the start."""
    mode = 0o600 if private else 0o644
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise IdentityError(
            f"{path} exists already and is not written over",
            "choose another place; delete the file only if nobody relies on it",
        ) from None
    except OSError as error:
        raise IdentityError(f"cannot write {path}: {error.strerror}", "check the folder and its permissions") from error
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()  # ours: made a moment ago, and not whole
        raise IdentityError(f"cannot write {path}: {error.strerror}", "free some space") from error


def make_private_folder(folder: Path) -> None:
    """Make a folder for secrets with mode 0700; one that exists is left as it is."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise IdentityError(f"cannot make the folder {folder}: {error.strerror}", "choose another folder") from error


def read_file(path: Path, limit: int, *, private: bool = False) -> bytes:
    """At most `limit` bytes of a regular file; a private one is refused if other users may read or change it."""
    try:
        # O_NONBLOCK: opening a pipe by mistake must not hang
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise IdentityError(f"{path} is not a regular file")
            if private and os.name == "posix" and status.st_mode & 0o077:
                raise IdentityError(
                    f"{path} holds a secret, but its mode {stat.S_IMODE(status.st_mode):04o} lets other users at it",
                    f"chmod 600 {path}; if others may have read it, make a new identity",
                )
            data = file.read(limit + 1)
    except OSError as error:
        raise IdentityError(f"cannot read {path}: {error.strerror}", "check the path and its permissions") from error
    if len(data) > limit:
        raise IdentityError(f"{path} is larger than {limit} bytes, the most that such a file may have")
    return data


def parse_json(data: bytes, kind: type[_T], source: str, *, private: bool = False) -> _T:
    """JSON of exactly the type `kind`: no unknown keys, no conversions. Errors quote nothing of a private file."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if private:  # msgspec quotes unknown keys and values
            raise IdentityError(f"{source} was altered or is of another kind", "restore it from a copy") from None
        raise IdentityError(f"{source}: {error}", "ask its maker for an unaltered copy") from None


def to_json(value: msgspec.Struct) -> bytes:
    """Indented JSON with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
