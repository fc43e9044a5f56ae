"""What a coordinator has published in a hidden run, on its disk before anybody hears of it.

    FOLDER/hops/00000012.hops    "dresfl hops 1\\n" | SHA-256(run) | the hops of round 12 as they were published
    a hop                        size u32 | content | SHA-256("dresfl broadcast" | run | content)
    its content                  round u32 | hop u16 | size of the note u32 | note | published bytes; it may be sealed

A hop that was published is never published otherwise: after a crash the coordinator goes on from these files. The last
`KEPT` rounds are kept whole, the one in work included. That is what a client needs that comes back after any time: the
last two weight broadcasts, and everything after them. Older rounds are deleted, so the folder does not grow.

A crash may cut the last hop short. Nobody has heard of it then, and it is taken off. Damage anywhere else is refused.
"""

import hashlib
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from dresfl.errors import StoreError
from dresfl.files import disk, make_private_folder, open_private, read_file, sync_folder

from .at_rest import StorageKey, open_file, seal_file

FOLDER = "hops"
SUFFIX = ".hops"
ROLE = "broadcast"
FORMAT = "dresfl hops 1"
KEPT = 4  # rounds: three that are complete, and the one in work
_FORMAT = FORMAT.encode() + b"\n"
_SIZE = struct.Struct("<I")
_HEAD = struct.Struct("<IHI")
_DIGEST = 32
_LARGEST = 2**32
_HINT = "restore the run's folder from a copy of one moment; else begin a new run in a new folder"


@final
@dataclass(frozen=True)
class Broadcast:
    """One hop that was published. note: what the coordinator wants to find again with it."""

    round_number: int
    hop: int
    published: bytes = field(repr=False)
    note: bytes = b""

    @property
    def place(self) -> tuple[int, int]:
        return self.round_number, self.hop

    def encode(self) -> bytes:
        return _HEAD.pack(self.round_number, self.hop, len(self.note)) + self.note + self.published

    @classmethod
    def decode(cls, data: bytes) -> "Broadcast":
        round_number, hop, size = _HEAD.unpack_from(data)
        end = _HEAD.size + size
        return cls(round_number, hop, data[end:], data[_HEAD.size : end])


@final
class BroadcastStore:
    """The published hops of one run. Use it from one thread at a time."""

    def __init__(self, folder: Path, run: bytes, key: StorageKey | None = None) -> None:
        """folder: of the coordinator's run. run: 32 bytes that name the hidden run. Files of others are refused."""
        self._folder, self._run, self._key = folder / FOLDER, run, key
        make_private_folder(self._folder)
        self._file = -1
        self._open_round = -1
        self._rounds: dict[int, list[Broadcast]] = {}
        paths = round_files(self._folder)
        for path in paths:
            broadcasts, whole = read_round(path, run, key)
            if whole is not None:
                if path != paths[-1]:
                    raise StoreError(f"{path} is damaged", _HINT)
                with disk(path, "write"):
                    os.truncate(path, whole)
            if broadcasts:
                self._rounds[broadcasts[0].round_number] = broadcasts
        numbers = list(self._rounds)
        if numbers != list(range(numbers[0], numbers[0] + len(numbers)) if numbers else []):
            raise StoreError(f"{self._folder} has rounds {numbers}, and not those between", _HINT)

    @property
    def last(self) -> Broadcast | None:
        """The hop that was published last."""
        return self._rounds[max(self._rounds)][-1] if self._rounds else None

    def rounds(self) -> dict[int, list[Broadcast]]:
        """The rounds that are kept, ascending, and the hops of each in their order."""
        return {number: list(broadcasts) for number, broadcasts in sorted(self._rounds.items())}

    def put(self, broadcast: Broadcast) -> None:
        """Keep a hop before it is published. It is on the disk, for good, when this returns.

        Rounds follow each other, and so do the hops of a round, from hop 0.
        """
        last, number = self.last, broadcast.round_number
        follows = last is None or broadcast.place in ((number, last.hop + 1), (last.round_number + 1, 0))
        if not follows or (last is not None and number not in (last.round_number, last.round_number + 1)):
            raise StoreError(f"hop {broadcast.hop} of round {number} cannot follow {last and last.place}")
        path = self._folder / f"{number:08d}{SUFFIX}"
        content = seal_file(self._key, broadcast.encode(), ROLE)
        with disk(path, "write"):
            if self._open_round != number:
                self.close()
                self._file = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
                self._open_round = number
                sync_folder(self._folder)
            start = os.fstat(self._file).st_size
            head = b"" if start else _file_head(self._run)
            try:
                for part in (head, _SIZE.pack(len(content)), content, _check(self._run, content)):
                    view = memoryview(part)
                    while view:
                        view = view[os.write(self._file, view) :]
                os.fdatasync(self._file)
            except OSError:
                os.ftruncate(self._file, start)  # a later attempt begins where this one did
                raise
        self._rounds.setdefault(number, []).append(broadcast)
        self._drop_before(number - KEPT + 1)

    def _drop_before(self, first: int) -> None:
        for number in [number for number in self._rounds if number < first]:
            path = self._folder / f"{number:08d}{SUFFIX}"
            with disk(path, "delete"):
                path.unlink(missing_ok=True)
            del self._rounds[number]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file, self._open_round = -1, -1


def round_files(folder: Path) -> list[Path]:
    """The files of a folder of hops, by round."""
    with disk(folder, "read"):
        return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and path.stem.isdecimal())


def read_round(path: Path, run: bytes | None, key: StorageKey | None) -> tuple[list[Broadcast], int | None]:
    """The hops of one file; and, if a crash cut the last one short, how many bytes the others take.

    run: None for an audit, which does not know it and compares no digests. StoreError if the file is damaged.
    """
    data, found, head = read_file(path, _LARGEST, private=True), list[Broadcast](), len(_FORMAT) + _DIGEST
    if len(data) < head:
        return found, 0
    if data[: len(_FORMAT)] != _FORMAT or (run is not None and data[:head] != _file_head(run)):
        raise StoreError(f"{path} is damaged, or of another run", _HINT)
    end, number = head, int(path.stem)
    while end < len(data):
        start = end + _SIZE.size
        stop = start + _SIZE.unpack_from(data, end)[0] if start <= len(data) else start
        content = data[start:stop]
        after = stop + _DIGEST
        if len(data) < after:
            return found, end
        if run is not None and data[stop:after] != _check(run, content):
            if after < len(data):
                raise StoreError(f"{path} is damaged", _HINT)
            return found, end
        try:
            broadcast = Broadcast.decode(open_file(key, content, ROLE, path))
        except struct.error as error:
            raise StoreError(f"{path} is damaged", _HINT) from error
        if broadcast.place != (number, len(found)):
            raise StoreError(f"{path} is damaged: hop {broadcast.place} is not in its place", _HINT)
        found.append(broadcast)
        end = after
    return found, None


def _file_head(run: bytes) -> bytes:
    return _FORMAT + hashlib.sha256(run).digest()


def _check(run: bytes, content: bytes) -> bytes:
    return hashlib.sha256(b"dresfl broadcast" + run + content).digest()
