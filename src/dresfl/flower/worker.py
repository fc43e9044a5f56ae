"""A site's process that stays: Flower starts a new one for every message, which then only passes the letter on.

A Unix socket in a private place; each way, length u32 (little-endian) and the letter. A connection serves one letter.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import final

from dresfl.errors import MessageError, UsageError

_LENGTH = struct.Struct("<I")
_LONGEST_PATH = 100  # of a Unix socket, about


@final
class Forwarder:
    """The short-lived side: hands a letter to the worker and brings its reply."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def handle(self, data: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._path))
            _write(connection, data)
            return _read(connection)

    @classmethod
    def reached(cls, path: Path) -> "Forwarder | None":
        """A forwarder, if a worker listens there."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
        except OSError:
            return None
        return cls(path)


def serve(path: Path, handle: Callable[[bytes], bytes], on_ready: Callable[[], None] = lambda: None) -> None:
    """Answer letters on a socket, one at a time, until interrupted."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise UsageError(f"{path} is too long a name for a socket", "put site.toml into a folder with a shorter path")
    if Forwarder.reached(path) is not None:
        raise UsageError(f"a worker listens on {path} already")
    with contextlib.suppress(FileNotFoundError):
        path.unlink()  # of a worker that was killed
    with socket.socket(socket.AF_UNIX) as listener:
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen()
        on_ready()
        try:
            while True:
                with listener.accept()[0] as connection, contextlib.suppress(OSError, MessageError):
                    if data := _read(connection):
                        _write(connection, handle(data))
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


def _write(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def _read(connection: socket.socket) -> bytes:
    """One letter; nothing if the other side has left at once."""
    head = _exactly(connection, _LENGTH.size)
    return _exactly(connection, _LENGTH.unpack(head)[0]) if head else b""


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 2**20))
        if not part:
            if parts:
                raise MessageError("the connection to the worker ended within a letter")
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
