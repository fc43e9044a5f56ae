"""Files that are whole or absent, and files that are private: the one place that knows how.

A file is written beside its place, flushed to the disk, then renamed into it. A private file has mode 0600 from the
start, and is refused if other users may read or change it. What the disk says becomes an error of the caller's choice.
A folder that one process at a time may use has a lock in it.
"""

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
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


def write_atomic(
    path: Path,
    *data: bytes | memoryview,
    private: bool = False,
    keep: Path | None = None,
    error: type[DresError] = DresError,
) -> None:
    """Replace `path` by `data` so that a crash at any moment leaves the old file or the new one, never a part of it.

    data: written one after the other. keep: another name in the same folder, under which the file that was at `path`
    stays.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with disk(path, "write", error):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "wb", opener=open_private if private else None) as file:
                _write(file.fileno(), *data)
            if keep is not None:
                _keep_beside(path, keep)
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
                if private:
                    os.fchmod(descriptor, 0o600)  # whatever the umask
                _write(file.fileno(), data)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()  # made a moment ago, and not whole
            raise
        sync_folder(path.parent)


def _keep_beside(path: Path, keep: Path) -> None:
    """Give the file at `path` a second name. Nothing is copied, and `path` is there at every moment."""
    part = keep.with_name(f".{keep.name}.{os.getpid()}.part")
    with contextlib.suppress(FileNotFoundError):  # there is no file yet
        part.unlink(missing_ok=True)
        try:
            os.link(path, part)
            os.replace(part, keep)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
            os.replace(path, keep)  # a file system without second names: for a moment there is `keep` alone


def open_private(path: str | Path, flags: int) -> int:
    """Open a file, with mode 0600 whatever the umask: an `opener` for `open`."""
    descriptor = os.open(path, flags, 0o600)
    try:
        if os.name == "posix" and stat.S_IMODE(os.fstat(descriptor).st_mode) != 0o600:
            os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _write(descriptor: int, *data: bytes | memoryview) -> None:
    for part in data:
        view = memoryview(part)
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
                f"chmod 600 {path}; if others may have read a key in it, make a new one",
            )
        data = file.read(min(limit, status.st_size) + 1)  # so much memory is taken at once, whatever is in the file
    if len(data) > limit:
        raise error(f"{path} is larger than {limit} bytes, the most that such a file may have")
    return data


def read_private(path: Path, limit: int) -> bytes | None:
    """At most `limit` bytes of a private file; None if there is none."""
    with disk(path, "read"):
        present = path.exists()
    return read_file(path, limit, private=True) if present else None


def make_private_folder(folder: Path, error: type[DresError] = StoreError) -> None:
    """Make a folder for secrets with mode 0700, whatever the umask; one that exists is left as it is."""
    with disk(folder, "make the folder", error):
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            if not folder.is_dir():
                raise
        else:
            folder.chmod(0o700)


def enter_private_folder(folder: Path, known: Callable[[str], bool], error: type[DresError] = StoreError) -> bool:
    """Make a folder with mode 0700, or see that nobody else may enter it. Whether it had to be closed to others.

    known: says of a name whether it is one of a folder of this kind. A folder that others may enter is closed to them
    if nothing but such names is in it; else it is refused, since it may be shared on purpose.
    """
    make_private_folder(folder, error)
    with disk(folder, "open", error):
        status = folder.stat()
        if os.name != "posix":
            return False
        if os.geteuid() not in (status.st_uid, 0):
            raise error(f"{folder} belongs to another user", "choose a folder of this user's own")
        if not status.st_mode & 0o077:
            return False
        if not all(known(name) for name in os.listdir(folder)):
            raise error(
                f"{folder} is private, but its mode {stat.S_IMODE(status.st_mode):04o} lets other users at it",
                f"chmod 700 {folder}",
            )
        folder.chmod(0o700)
    return True


def take_lock(path: Path, who: str, error: type[DresError] = StoreError) -> int:
    """Take a folder's lock, for as long as this process lives or until the returned descriptor is closed.

    who: what the holder is, in words. The lock goes with its process, so that one left by a crash holds nobody up.
    """
    import fcntl  # here: POSIX alone has it, and much else in this file is used everywhere

    with disk(path, "lock", error):
        lock = open_private(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"pid {os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            os.close(lock)
            raise error(
                f"{path.parent} is in use by another process ({holder or 'unknown'})",
                f"stop that {who} first, or give this one a folder of its own",
            ) from None
        except BaseException:
            os.close(lock)
            raise
    return lock


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- erasing: what was secret once ----------------------------------------------------------------------------------


def erase_file(path: Path) -> None:
    """Write zeros over a private file, then delete it. Nothing happens if there is none.

    That is all that a program can do: a disk that moves what is written, or a copy of the folder, may still have it.
    """
    with disk(path, "erase"), contextlib.suppress(FileNotFoundError):
        with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
            _blank(file.fileno())
        path.unlink()
        sync_folder(path.parent)


def replace_erasing(path: Path, data: bytes) -> None:
    """`write_atomic` of a private file; then zeros go over what was there before."""
    with disk(path, "erase"):
        try:
            before = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            before = -1
        try:
            write_atomic(path, data, private=True, error=StoreError)
            if before >= 0:
                _blank(before)
        finally:
            if before >= 0:
                os.close(before)


def _blank(descriptor: int) -> None:
    size, place = os.fstat(descriptor).st_size, 0
    while place < size:
        place += os.pwrite(descriptor, bytes(min(size - place, 2**20)), place)
    os.fsync(descriptor)


# -- records: small private files with a check of their own -----------------------------------------------------


def write_record(path: Path, body: dict[str, Any]) -> None:
    """Write values as one line of JSON and one of its SHA-256, atomically and privately."""
    line = json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    check = hashlib.sha256(line).hexdigest().encode() + b"\n"
    write_atomic(path, line + check, private=True, error=StoreError)


def read_record(
    path: Path, hint: str = "restore it, or delete it: what it lists is fetched again"
) -> dict[str, Any] | None:
    """What `write_record` wrote; None if there is no such file. Any changed byte: StoreError, with the hint."""
    data = read_private(path, _LARGEST_RECORD)
    if data is None:
        return None
    line, newline, check = data.partition(b"\n")
    if check != hashlib.sha256(line + newline).hexdigest().encode() + b"\n":
        raise StoreError(f"{path} is damaged", hint)
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):  # whoever wrote it, it was not `write_record`
        body = None
    if not isinstance(body, dict):
        raise StoreError(f"{path} is not a record of dresfl", hint)
    return body
