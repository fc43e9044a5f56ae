"""What is fuzzed: a decoder, valid inputs of it, the errors that it may raise, and the memory that it may take."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

from dresfl.errors import DresError

ROOM = 2**20  # bytes that a decoder may take whatever its input is
SHORT = 400_000  # bytes: no valid input here is longer


@final
@dataclass(frozen=True)
class Target:
    """One decoder. `decode` takes any bytes: it returns, or raises one of `errors`.

    each_byte: the memory that a byte of input may cost, beyond ROOM. Objects of Python take about 60 bytes each, so
    text that is parsed costs more than bytes that are copied. A format that unpacks has its packer's largest ratio.
    """

    name: str
    decode: Callable[[bytes], object]
    samples: Sequence[bytes]
    errors: tuple[type[Exception], ...] = (DresError,)
    each_byte: int = 40

    def tried(self, data: bytes) -> bool:
        """Whether the decoder accepts an input. Any error that it may not raise comes out."""
        try:
            self.decode(data)
        except self.errors:
            return False
        return True

    def most_memory(self, data: bytes) -> int:
        return ROOM + self.each_byte * len(data)


@cache
def _kept() -> "tempfile.TemporaryDirectory[str]":
    quick = Path("/dev/shm")  # noqa: S108 - a disk would wait at every flush
    return tempfile.TemporaryDirectory(prefix="dresfl-fuzzing-", dir=quick if quick.is_dir() else None)


def folder() -> Path:
    """A folder for the files that decoders read, until the process ends."""
    return Path(_kept().name)


def written(name: str, data: bytes) -> Path:
    """A private file with these bytes."""
    path = folder() / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)
    return path
