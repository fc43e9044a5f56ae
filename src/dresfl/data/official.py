"""Which files of a user's folder are the official ones, by published checksums. Whoever holds the folder runs this.

Files may hold the official values and yet be other files: unpacked, packed again, or pickled by another program. So a
file is compared as it is, and then by what it holds, where a checksum of that is published.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, final

from dresfl.errors import DataError

from .files import content, find
from .sources import Published, Source, sources

Verdict = Literal["official", "official values", "other values", "other file", "unknown", "damaged", "missing"]

MEANING: Final[dict[Verdict, str]] = {
    "official": "the file that its authors give out, byte for byte",
    "official values": "the authors' values, packed in another way",
    "other values": "not the authors' values",
    "other file": "not the authors' file; no published checksum says whether its values are theirs",
    "unknown": "no checksum is published",
    "damaged": "cannot be read",
    "missing": "not in this folder",
}

_KINDS: Final = {32: "md5", 40: "sha1", 64: "sha256"}  # by the length of the digest


@final
@dataclass(frozen=True)
class Finding:
    """What is known of one file of a folder."""

    data_set: str
    file: str
    verdict: Verdict
    sha256: str = ""  # of the file as it is
    note: str = ""


def check_folder(folder: Path) -> list[Finding]:
    """A finding for every file of every known data set that is read from a folder."""
    return [_check(source, file, folder) for source in sources().values() for file in source.files]


def verdict_of(data: bytes, published: Published, unpacked: Callable[[], bytes] | None) -> Verdict:
    """Compare a file with what is published of it; `unpacked` gives its values in the form that has checksums.

    >>> abc = Published(file=(hashlib.sha256(b"abc").hexdigest(),))
    >>> (verdict_of(b"abc", abc, None), verdict_of(b"abd", abc, None)) == ("official", "other file")
    True
    """
    if _is_one_of(data, (*published.file, *published.content)):
        return "official"
    if not published.file and not published.content:
        return "unknown"
    if unpacked is None:
        return "other file"
    values = unpacked()
    if _is_one_of(values, published.content):
        return "official values"
    differs = published.content or (published.size and len(values) != published.size)
    return "other values" if differs else "other file"


def _check(source: Source, file: str, folder: Path) -> Finding:
    try:
        path = find(folder, file)
    except DataError:
        return Finding(source.name, file, "missing")
    unpack = source.content
    try:
        data = content(path)
        verdict = verdict_of(data, source.files[file], None if unpack is None else lambda: unpack(path))
    except DataError as error:
        return Finding(source.name, file, "damaged", note=str(error))
    return Finding(source.name, file, verdict, hashlib.sha256(data).hexdigest())


def _is_one_of(data: bytes, digests: tuple[str, ...]) -> bool:
    kinds = {_KINDS[len(digest)] for digest in digests}
    return not {hashlib.new(kind, data, usedforsecurity=False).hexdigest() for kind in kinds}.isdisjoint(digests)
