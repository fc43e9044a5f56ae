"""Sealed slices on the coordinator's disk, between their dealer and their receiver. It can read none of them.

    spool/SHARING/RECEIVER/DEALER.SLICE

As long as few bytes wait, they stay in memory. Those of a receiver that is away, or slow, go to the disk. Nothing is
flushed: a slice lost or torn in a crash is found missing, or does not open, and its dealer is asked again.
"""

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import final

from dresfl.errors import DresError
from dresfl.files import TOO_MANY_OPEN, make_private_folder, open_private

MEMORY_BYTES = 2**26  # of slices that wait in memory


@final
class Spool:
    """The slices of one sharing that wait for their receivers."""

    def __init__(self, folder: Path, sharing_id: bytes) -> None:
        """Slices of other sharings are removed; those of this one are found again."""
        self._folder = folder / sharing_id.hex()
        self._room = MEMORY_BYTES
        self._memory: dict[tuple[int, int, int], bytes] = {}
        self._folders: set[int] = set()  # of receivers, made since this process began
        try:
            for place in (folder, self._folder):
                make_private_folder(place, DresError)
            for other in folder.iterdir():
                if other != self._folder:
                    shutil.rmtree(other) if other.is_dir() else other.unlink()
            for part in self._folder.glob("*/*.part"):  # of a write that a crash cut short
                part.unlink()
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
        """Keep a slice. On the disk it is written beside its place and renamed, so that it is whole or absent."""
        if len(sealed) <= self._room:
            self._room -= len(sealed)
            self._memory[receiver, dealer, number] = bytes(sealed)  # a part of a bundle would hold all of it
            return
        path = self._path(receiver, dealer, number)
        beside = path.with_name(path.name + ".part")
        try:
            if receiver not in self._folders:
                make_private_folder(path.parent, DresError)
                self._folders.add(receiver)
            with open(beside, "wb", opener=open_private) as file:
                file.write(sealed)
            os.replace(beside, path)
        except OSError as error:
            many = error.errno in (errno.EMFILE, errno.ENFILE)
            hint = TOO_MANY_OPEN if many else "free some space for the spool"
            raise DresError(f"cannot write {path}: {error.strerror}", hint) from error

    def in_memory(self, receiver: int, dealer: int, number: int) -> bytes | None:
        """A slice that need not be read from the disk; else None."""
        return self._memory.get((receiver, dealer, number))

    def get(self, receiver: int, dealer: int, number: int) -> bytes | None:
        """A slice, or None if it is not there any more."""
        held = self.in_memory(receiver, dealer, number)
        if held is not None:
            return held
        try:
            return self._path(receiver, dealer, number).read_bytes()
        except OSError:
            return None

    def drop(self, receiver: int, dealer: int, number: int) -> None:
        """Forget a slice."""
        held = self._memory.pop((receiver, dealer, number), None)
        if held is not None:
            self._room += len(held)
            return
        with contextlib.suppress(OSError):  # what stays is found at the next start, and dropped then
            self._path(receiver, dealer, number).unlink(missing_ok=True)
