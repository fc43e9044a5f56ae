"""The set-up values that a client was dealt in one sharing, on disk: seeds of masks, shares of check values.

    shares.setup   "dresfl set-up 1\\n" | sharing digest 32 | receiver u32 | N u32 | N · (size u32, values) | SHA-256

A size of zero: that dealer's values have not come. The file is small and is replaced as a whole, so a crash leaves the
old one or the new one. It may be sealed (at_rest.py). If it is damaged or missing, everybody is asked for its last
slice again.

Mask seeds of the hidden mode are erased when no further run may begin: zeros stand for them, and the file counts as it
is. What a dealer sends again is then neither compared nor kept.
"""

import hashlib
import logging
import struct
from pathlib import Path
from typing import final

from dresfl.errors import MessageError, StoreError
from dresfl.files import read_private, replace_erasing
from dresfl.protocol import Session, check_bytes, set_up_bytes

from .at_rest import StorageKey, open_file, seal_file

_log = logging.getLogger(__name__)

NAME = "shares.setup"
_ROLE = "set-up"
_HEAD = b"dresfl set-up 1\n"
_NUMBERS = struct.Struct("<II")
_SIZE = struct.Struct("<I")
_MARGIN = 2**12  # bytes of a file beyond the values themselves: head, digest, seal


@final
class SetUpFile:
    """One client's set-up values of one sharing, by dealer."""

    def __init__(self, folder: Path, session: Session, index: int, key: StorageKey | None) -> None:
        self._path, self._key = folder / NAME, key
        count = session.num_clients
        self._head = _HEAD + session.sharing_digest + _NUMBERS.pack(index, count)
        self._sizes = [set_up_bytes(session, dealer) for dealer in range(count)]
        self._check_bytes = check_bytes(session)  # of a dealer's values, the last ones; seeds are before them
        self._changed = self._erased = False
        self.damage: list[str] = []
        self._values: list[bytes] = self._read() or [b""] * count

    def __repr__(self) -> str:
        return f"SetUpFile({str(self._path)!r}, <redacted>)"

    def _read(self) -> list[bytes] | None:
        """The values of every dealer; None if there is no file, or none that can be used."""
        data = read_private(self._path, sum(self._sizes) + _SIZE.size * len(self._sizes) + _MARGIN)
        if data is None:
            return None
        try:
            return self._values_in(open_file(self._key, data, _ROLE, self._path))
        except StoreError as error:
            self.damage.append(f"{self._path} is damaged")
            _log.warning("%s; what it held is fetched again", error)
            return None

    def _values_in(self, data: bytes) -> list[bytes]:
        body, check = data[:-32], data[-32:]
        if hashlib.sha256(body).digest() != check or body[: len(self._head)] != self._head:
            raise StoreError(f"{self._path} is damaged")
        values, rest = [], memoryview(body)[len(self._head) :]
        for wanted in self._sizes:
            size = _SIZE.unpack_from(rest)[0] if len(rest) >= _SIZE.size else -1
            if size not in (0, wanted) or len(rest) < _SIZE.size + size:
                raise StoreError(f"{self._path} is damaged")
            values.append(bytes(rest[_SIZE.size : _SIZE.size + size]))
            rest = rest[_SIZE.size + size :]
        return values

    def put(self, dealer: int, data: bytes) -> None:
        """Keep a dealer's values. Durable after the next `flush`."""
        held = self._values[dealer]
        if held and self._erased:
            return
        if held and held != data:
            raise MessageError(
                f"dealer {dealer} sent other set-up values than before",
                "its secret or its rows have changed: all participants must share again",
            )
        if not held:
            self._values[dealer], self._changed = data, True

    def get(self, dealer: int) -> bytes | None:
        return self._values[dealer] or None

    def erase_seeds(self) -> None:
        """Put zeros in the place of all seeds, for good, and over the file that had them.

        Values that are not here count as held from now on: nobody can deal their seeds again, and nobody is asked.
        """
        self._erased = True
        kept = zip(self._values, self._sizes, strict=True)
        values = [
            bytes(size - self._check_bytes) + (value or bytes(size))[-self._check_bytes :] for value, size in kept
        ]
        if values != self._values or self._changed:
            self._values, self._changed = values, False
            replace_erasing(self._path, self._content())

    def flush(self) -> None:
        if self._changed:
            replace_erasing(self._path, self._content())  # the file before it has seeds, too
            self._changed = False

    def _content(self) -> bytes:
        parts = [part for value in self._values for part in (_SIZE.pack(len(value)), value)]
        body = b"".join((self._head, *parts))
        return seal_file(self._key, body + hashlib.sha256(body).digest(), _ROLE)
