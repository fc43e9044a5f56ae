"""Which rounds of a run a client has answered, on disk: a batch is answered for one set of weights, restarts included.

The file is a list of records of 64 bytes, little-endian, in the order of answering:

    round u32 | SHA-256 of the weights, 32 bytes | check 28 bytes

check = SHA-256("dresfl answered" | session_id | number of the record u64 | the first 36 bytes), cut. A record is on the
disk before its answer leaves. The file is made with a chunk of bytes 255, and grows by another before the last place of
a chunk is filled; so a record does not change the file's size, and is one write within one sector, done or not done.
Thus a crash leaves whole records, at least one free place after them, and perhaps an unfinished chunk, which is made
again. Whatever else is not as it should be is damage, and refused: a file that was cut has no free place at its end.

Nothing here is secret: hashes of weights that the coordinator chose. So a storage key does not seal it. Nor would a key
keep somebody who writes to this disk from putting an older file back.
"""

import errno
import hashlib
import os
import struct
from pathlib import Path
from typing import final

from dresfl.errors import StoreError
from dresfl.files import disk, read_private, write_atomic
from dresfl.protocol import AnsweredRounds

_RECORD = struct.Struct("<I32s28s")
_CHUNK = 1024 * _RECORD.size
FREE = b"\xff"
_LARGEST = 2**32


def read_answered(path: Path, session_id: bytes) -> dict[int, bytes]:
    """The answered rounds of a file, each with the SHA-256 of its weights. StoreError if the file is damaged."""
    answered: dict[int, bytes] = {}
    data, length = read_private(path, _LARGEST) or b"", 0
    for number in range(len(data) // _RECORD.size):
        round_number, weights, check = _RECORD.unpack_from(data, length)
        if check != _check(session_id, number, round_number, weights) or round_number in answered:
            break
        answered[round_number] = weights
        length += _RECORD.size
    free, rest = _CHUNK - length % _CHUNK, data[length:]
    more = rest[free:]  # there only if the next chunk was being made: then one place of this one is free
    sound = rest[:free] == FREE * free and (not more or (free == _RECORD.size and _unfinished(more)))
    if not sound:
        raise StoreError(
            f"{path} is damaged after {len(answered)} records: which rounds were answered is not known",
            "restore the file, or begin a new run: a batch must not be answered for two sets of weights",
        )
    return answered


def _unfinished(more: bytes) -> bool:
    return len(more) <= _CHUNK and not more.strip(b"\0" + FREE)


def _check(session_id: bytes, number: int, round_number: int, weights: bytes) -> bytes:
    place = struct.pack("<QI", number, round_number)
    return hashlib.sha256(b"dresfl answered" + session_id + place + weights).digest()[:28]


@final
class AnswerLog(AnsweredRounds):
    """The answered rounds of one session in one file. Made by `ShareStore.answered`."""

    def __init__(self, path: Path, session_id: bytes) -> None:
        self.path, self._session_id = path, session_id
        self._file = -1
        with disk(path, "open"):
            if not path.exists():
                write_atomic(path, FREE * _CHUNK, private=True, error=StoreError)
        self._answered = read_answered(path, session_id)
        self._length = len(self._answered) * _RECORD.size  # bytes of records: each is of another round
        with disk(path, "open"):
            self._file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)

    def claim(self, round_number: int, weights: bytes) -> bool:
        """Note the round on the disk before its answer leaves; False if it was answered for other weights."""
        if self._file < 0:
            raise StoreError(f"{self.path} is closed")
        known = self._answered.get(round_number)
        if known is None:
            check = _check(self._session_id, self._length // _RECORD.size, round_number, weights)
            with disk(self.path, "write"):
                if (self._length + _RECORD.size) % _CHUNK == 0:
                    self._write(FREE * _CHUNK, self._length + _RECORD.size)
                self._write(_RECORD.pack(round_number, weights, check), self._length)
            self._length += _RECORD.size
            self._answered[round_number] = known = weights
        return known == weights

    def _write(self, data: bytes, place: int) -> None:
        """Put bytes after the records, over whatever a failed attempt left there."""
        if os.pwrite(self._file, data, place) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(self._file)

    @property
    def last_round(self) -> int | None:
        """The highest round answered."""
        return max(self._answered, default=None)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
