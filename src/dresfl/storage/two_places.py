"""A small file that is written often, in place: it has two places of equal size, which are written in turn.

    a place   number u64 | size u32 | content | zeros | SHA-256("dresfl place" | identity | all before), little-endian

The place with the higher number counts. A place is written with one write and flushed. So a crash leaves the place
before as it was, the file never grows, and what was written two writes ago is overwritten rather than left behind in
free blocks. With a storage key each place is sealed by itself (at_rest.py).

A place that fits one sector of 512 bytes is written or not written. There a place that does not read is damage, and the
file is refused: to go back by one write silently is what such a file is there to prevent. A larger place may be torn by
a crash. Its owner must be able to go on from the write before.
"""

import errno
import hashlib
import os
import struct
from pathlib import Path
from typing import final

from dresfl.errors import StoreError
from dresfl.files import disk, read_file, write_atomic

from .at_rest import StorageKey, open_file, seal_file

SECTOR = 512
_HEAD = struct.Struct("<QI")  # the number of the write, the size of the content
_DIGEST = 32
_SEAL = 52  # bytes that a seal adds
MOST_CONTENT = SECTOR - _SEAL - _DIGEST - _HEAD.size  # in one sector, sealed or not


@final
class TwoPlaces:
    """One such file, open. identity: what it is of, so that no file passes for another. role: of its seal."""

    def __init__(self, path: Path, identity: bytes, key: StorageKey | None, role: str) -> None:
        """Open a file that is there. StoreError if it is damaged."""
        self._path, self._identity, self._key, self._role = path, identity, key, role
        self._file = -1
        found, self._room = _read(path, identity, key, role)
        self._number, self.content = max(entry for entry in found if entry is not None)
        self._next = 1 - found.index((self._number, self.content))
        with disk(path, "open"):
            self._file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)

    @classmethod
    def create(
        cls, path: Path, identity: bytes, content: bytes, key: StorageKey | None, role: str, *, room: int = MOST_CONTENT
    ) -> "TwoPlaces":
        """Make the file, or make it anew. room: bytes of the longest content that it will have."""
        bytes_needed = max(room, len(content)) + _HEAD.size + _DIGEST + _SEAL
        size = -(-bytes_needed // SECTOR) * SECTOR
        places = [_place(size, identity, number, content, key, role) for number in range(2)]
        write_atomic(path, *places, private=True, error=StoreError)
        return cls(path, identity, key, role)

    def __repr__(self) -> str:
        return f"TwoPlaces({str(self._path)!r}, <redacted>)"

    def write(self, content: bytes) -> None:
        """Put new content on the disk. It is there, for good, when this returns."""
        if self._file < 0:
            raise StoreError(f"{self._path} is closed")
        place = _place(self._room, self._identity, self._number + 1, content, self._key, self._role)
        with disk(self._path, "write"):
            if os.pwrite(self._file, place, self._next * self._room) < len(place):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._file)
        self._number, self.content, self._next = self._number + 1, content, 1 - self._next

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_content(path: Path, identity: bytes, key: StorageKey | None, role: str) -> bytes:
    """What was written last, for who writes nothing. StoreError if the file is damaged."""
    found, _ = _read(path, identity, key, role)
    return max(entry for entry in found if entry is not None)[1]


def _read(path: Path, identity: bytes, key: StorageKey | None, role: str) -> tuple[list[tuple[int, bytes] | None], int]:
    """Number and content of both places, None for one that does not read; and their size."""
    data = read_file(path, 2**28, private=True)
    room = len(data) // 2
    whole = bool(data) and len(data) % (2 * SECTOR) == 0
    found = [_read_place(place, path, identity, key, role) for place in (data[:room], data[room:])] if whole else []
    readable = sum(entry is not None for entry in found)
    if not readable or (readable < 2 and room == SECTOR):
        raise StoreError(f"{path} is damaged", "restore the whole folder from a copy of the same moment")
    return found, room


def _read_place(
    place: bytes, path: Path, identity: bytes, key: StorageKey | None, role: str
) -> tuple[int, bytes] | None:
    try:
        plain = open_file(key, place if key is not None else place[:-_SEAL], role, path)
    except StoreError:
        return None
    body, check = plain[:-_DIGEST], plain[-_DIGEST:]
    if check != _check(identity, body):
        return None
    number, size = _HEAD.unpack_from(body)
    return number, body[_HEAD.size : _HEAD.size + size]


def _place(size: int, identity: bytes, number: int, content: bytes, key: StorageKey | None, role: str) -> bytes:
    room = size - _SEAL - _DIGEST
    body = _HEAD.pack(number, len(content)) + content
    if len(body) > room:
        raise StoreError(f"{len(content)} bytes do not fit a place of {room - _HEAD.size}")
    body += bytes(room - len(body))
    sealed = seal_file(key, body + _check(identity, body), role)
    return sealed + bytes(size - len(sealed))


def _check(identity: bytes, body: bytes) -> bytes:
    return hashlib.sha256(b"dresfl place" + identity + body).digest()
