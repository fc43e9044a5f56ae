"""Sealed slices on the coordinator's disk, between their dealer and their receiver. It can read none of them.

    spool/SHARING/RECEIVER/DEALER.SLICE

Nothing is flushed: a slice lost or torn in a crash is found missing, or does not open, and its dealer is asked again.
"""

import os
import shutil
from pathlib import Path
from typing import final

from dresfl.errors import DresError


@final
class Spool:
    """The slices of one sharing that wait for their receivers."""

    def __init__(self, folder: Path, sharing_id: bytes) -> None:
        """Slices of other sharings are removed; those of this one are found again."""
        self._folder = folder / sharing_id.hex()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for other in folder.iterdir():
                if other != self._folder:
                    shutil.rmtree(other) if other.is_dir() else other.unlink()
        except OSError as error:
            raise DresError(f"cannot use the spool {folder}: {error.strerror}", "check its permissions") from error

    def stored(self) -> list[tuple[int, int, int]]:
        """Receiver, dealer and number of every slice that is here."""
        names = ((path.parent.name, *path.name.split(".")) for path in self._folder.glob("*/*.*"))
        found = [name for name in names if len(name) == 3 and all(part.isdecimal() for part in name)]
        return sorted((int(receiver), int(dealer), int(number)) for receiver, dealer, number in found)

    def _path(self, receiver: int, dealer: int, number: int) -> Path:
        return self._folder / str(receiver) / f"{dealer}.{number}"

    def put(self, receiver: int, dealer: int, number: int, sealed: bytes | memoryview) -> None:
        """Keep a slice. It is written beside its place and renamed, so that it is whole or absent."""
        path = self._path(receiver, dealer, number)
        beside = path.with_name(path.name + ".part")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            beside.write_bytes(sealed)
            os.replace(beside, path)
        except OSError as error:
            raise DresError(f"cannot write {path}: {error.strerror}", "free some space for the spool") from error

    def get(self, receiver: int, dealer: int, number: int) -> bytes | None:
        """A slice, or None if it is not there any more."""
        try:
            return self._path(receiver, dealer, number).read_bytes()
        except OSError:
            return None

    def drop(self, receiver: int, dealer: int, number: int) -> None:
        """Forget a slice."""
        self._path(receiver, dealer, number).unlink(missing_ok=True)
