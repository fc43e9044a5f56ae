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
        self._sizes: dict[tuple[int, int, int], int] = {}  # receiver, dealer, slice
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for other in folder.iterdir():
                if other != self._folder:
                    shutil.rmtree(other) if other.is_dir() else other.unlink()
            for path in self._folder.glob("*/*"):
                place = self._place(path)
                if place is None:
                    path.unlink()
                else:
                    self._sizes[place] = path.stat().st_size
        except OSError as error:
            raise DresError(f"cannot use the spool {folder}: {error.strerror}", "check its permissions") from error

    def _place(self, path: Path) -> tuple[int, int, int] | None:
        try:
            dealer, number = path.name.split(".")
            return int(path.parent.name), int(dealer), int(number)
        except ValueError:
            return None

    def _path(self, receiver: int, dealer: int, number: int) -> Path:
        return self._folder / str(receiver) / f"{dealer}.{number}"

    def waiting(self, receiver: int) -> list[tuple[int, int]]:
        """The slices that wait for a receiver: dealer and number, the lowest number first."""
        found = ((dealer, number) for to, dealer, number in self._sizes if to == receiver)
        return sorted(found, key=lambda place: place[::-1])

    @property
    def bytes_waiting(self) -> int:
        return sum(tuple(self._sizes.values()))  # a copy: threads write, and metrics are read from another

    def put(self, receiver: int, dealer: int, number: int, sealed: bytes) -> None:
        """Keep a slice. Written beside its place and renamed, so that it is whole or absent."""
        path = self._path(receiver, dealer, number)
        beside = path.with_name(path.name + ".part")
        try:
            path.parent.mkdir(exist_ok=True)
            beside.write_bytes(sealed)
            os.replace(beside, path)
        except OSError as error:
            raise DresError(f"cannot write {path}: {error.strerror}", "free some space for the spool") from error
        self._sizes[receiver, dealer, number] = len(sealed)

    def get(self, receiver: int, dealer: int, number: int) -> bytes | None:
        """A slice, or None if it is not there any more."""
        try:
            return self._path(receiver, dealer, number).read_bytes()
        except OSError:
            return None

    def drop(self, receiver: int, dealer: int, number: int) -> None:
        """Forget a slice."""
        self._sizes.pop((receiver, dealer, number), None)
        self._path(receiver, dealer, number).unlink(missing_ok=True)
