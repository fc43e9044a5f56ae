"""A client's process that stays, and holds what is the client's own: keys, rows, shares.

Flower starts a process for every message, with code that came over the network. Beside a worker that code has nothing
to do but pass bundles on, and needs no right to anything but a Unix socket. What it passes on must be signed by the
coordinator of the roster, whoever sends it. Each way: length u32 (little-endian) and the bundle; a connection serves
one bundle.
"""

import contextlib
import logging
import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import final

from dresfl.errors import MessageError, UsageError

_log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_LONGEST_PATH = 100  # of a Unix socket, about
_MOST_BYTES = 2**30
_PATIENCE = 60.0  # seconds for the other side to send or take something


@final
class Forwarder:
    """The short-lived side: hands a bundle to the worker and brings its reply."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def handle(self, data: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._path))
            _write(connection, data)
            reply = _read(connection)
        if not reply:
            raise MessageError("the worker gave no reply", "see its log")
        return reply

    @classmethod
    def reached(cls, path: Path) -> "Forwarder | None":
        """A forwarder, if a worker listens there."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
        except OSError:
            return None
        return cls(path)


def serve(
    path: Path, handle: Callable[[bytes], bytes], group: str = "", on_ready: Callable[[], None] = lambda: None
) -> None:
    """Answer bundles on a socket, one at a time, until interrupted. group: who else may connect, if anybody."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise UsageError(f"{path} is too long a name for a socket", "choose a shorter one with --socket")
    if Forwarder.reached(path) is not None:
        raise UsageError(f"a worker listens on {path} already")
    with contextlib.suppress(FileNotFoundError):
        path.unlink()  # of a worker that was killed
    with socket.socket(socket.AF_UNIX) as listener:
        _bind(listener, path, group)
        on_ready()
        try:
            while True:
                with listener.accept()[0] as connection:
                    _serve_one(connection, handle)
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


def _serve_one(connection: socket.socket, handle: Callable[[bytes], bytes]) -> None:
    """Answer one bundle. Whatever goes wrong with it is logged, and the worker stays."""
    connection.settimeout(_PATIENCE)
    try:
        if data := _read(connection):
            _write(connection, handle(data))
    except Exception as error:
        _log.warning("a bundle was not answered: %s: %s", type(error).__name__, error)


def _bind(listener: socket.socket, path: Path, group: str) -> None:
    """Open the socket for its owner alone; then for a group too, if one is given."""
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    if group:
        try:
            shutil.chown(path, group=group)
        except LookupError as error:
            raise UsageError(f"there is no group {group!r}", "create it, with the SuperNode's user in it") from error
        path.chmod(0o660)
    listener.listen()


def _write(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def _read(connection: socket.socket) -> bytes:
    """One bundle; nothing if the other side has left at once."""
    head = _exactly(connection, _LENGTH.size)
    if not head:
        return b""
    (size,) = _LENGTH.unpack(head)
    if size > _MOST_BYTES:
        raise MessageError(f"a bundle of {size} bytes was announced, {_MOST_BYTES} are the most")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 2**20))
        if not part:
            if parts:
                raise MessageError("the connection to the worker ended within a bundle")
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
