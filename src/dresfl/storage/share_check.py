"""Whether the shares of a sharing are whole: looked at from outside, without the session and without changing a byte.

The files are those of share_table.py. How the rows lie in them follows from the row counts, from K and from the bytes
of a row. K is looked for: the sizes of both files must fit it, and slices must have their digests. Digests are those of
what is on the disk, so sealed shares are checked without their key.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from dresfl.errors import StoreError
from dresfl.files import disk
from dresfl.protocol import slices

ROWS, INDEX = "shares.rows", "shares.index"
_DIGEST = 32  # bytes
_RECORD = 2 * _DIGEST
_PLACE = struct.Struct("<III")  # receiver, dealer, slice


@final
@dataclass(frozen=True)
class ShareCheck:
    """What was found of a sharing's slices. A slice is missing if it never came."""

    slices: int
    held: int
    missing: int
    damaged: tuple[str, ...]  # in words, the first ones
    num_shards: int | None  # K; None if no slice tells it


@final
@dataclass(frozen=True)
class _Layout:
    """Where each slice lies, for one K."""

    num_shards: int
    row_bytes: int
    coded_rows: tuple[int, ...]  # by dealer

    @property
    def slice_rows(self) -> int:
        return max(1, slices.SLICE_BYTES // self.row_bytes)

    @property
    def num_slices(self) -> int:
        return sum(-(-rows // self.slice_rows) for rows in self.coded_rows)

    def slices(self) -> Iterator[tuple[int, int, int, int]]:
        """Dealer, number, first byte and bytes of every slice, in the order of the index."""
        first = 0
        for dealer, rows in enumerate(self.coded_rows):
            for number, row in enumerate(range(0, rows, self.slice_rows)):
                yield dealer, number, (first + row) * self.row_bytes, min(self.slice_rows, rows - row) * self.row_bytes
            first += rows


def check_shares(folder: Path, sharing_digest: bytes, receiver: int, client_rows: Sequence[int]) -> ShareCheck:
    """Look at every slice in a sharing's folder. StoreError if the files are not those of such a sharing."""
    rows_path, index_path = folder / ROWS, folder / INDEX
    with disk(folder, "read"):
        records = index_path.read_bytes()
        size = rows_path.stat().st_size
    found = [
        _check(layout, rows_path, records, sharing_digest, receiver)
        for layout in _layouts(client_rows, size, len(records))
    ]
    if not found:
        raise StoreError(
            f"cut, or too long: {ROWS} and {INDEX} have sizes that fit no sharing of these row counts",
            "what is missing is fetched again when the client next takes part",
        )
    return max(found, key=lambda check: check.held)  # with a wrong K no slice has its digest


def _layouts(client_rows: Sequence[int], rows_bytes: int, index_bytes: int) -> Iterator[_Layout]:
    for shards in range(1, len(client_rows) + 1):  # K is at most N
        coded = tuple(rows // shards + rows % shards for rows in client_rows)
        row_bytes, rest = divmod(rows_bytes, sum(coded))
        layout = _Layout(shards, row_bytes, coded)
        if row_bytes and not rest and _RECORD * layout.num_slices == index_bytes:
            yield layout


def _check(layout: _Layout, path: Path, records: bytes, sharing_digest: bytes, receiver: int) -> ShareCheck:
    held, missing, damaged = 0, 0, list[str]()
    with disk(path, "read"), open(path, "rb") as rows:
        for place, (dealer, number, start, size) in enumerate(layout.slices()):
            record = records[_RECORD * place : _RECORD * (place + 1)]
            digest, check = record[:_DIGEST], record[_DIGEST:]
            if not any(record):
                missing += 1
                continue
            head = b"dresfl slice" + sharing_digest + _PLACE.pack(receiver, dealer, number)
            if hashlib.sha256(head + digest).digest() != check:
                damaged.append(f"{INDEX} in what it says of slice {number} of dealer {dealer}")
                continue
            rows.seek(start)
            if hashlib.sha256(rows.read(size)).digest() == digest:
                held += 1
            else:
                damaged.append(f"{ROWS} in slice {number} of dealer {dealer}")
    shards = layout.num_shards if held else None
    return ShareCheck(layout.num_slices, held, missing, tuple(damaged), shards)
