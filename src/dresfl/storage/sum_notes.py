"""What a client keeps of its sums on one sharing, run by run: which vector it dealt, which set of dealers it signed.

    SHARING/sums.json     of each session: the sum, a tag of the vector, the dealers, and the hash of the model

It is on the disk before a share or a signature leaves. It outlives `forget`: without it a client could be made to sign
a second set.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from dresfl.errors import StoreError
from dresfl.files import read_record, write_record
from dresfl.protocol import NotedSum

SUMS = "sums.json"
_HINT = "restore it: without it this client could be asked for a second sum; else share anew"


@final
class SumFile:
    """The `SumNotes` of one sharing, in its folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SUMS

    def sums(self) -> Mapping[bytes, NotedSum]:
        """What was noted, by session_id. StoreError if the file is damaged."""
        record = read_record(self._path, _HINT)
        try:
            entries = {} if record is None else record["sums"]
            return {bytes.fromhex(session): _noted(entry) for session, entry in entries.items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"{self._path} is not a list of sums", _HINT) from error

    def note_sum(self, session_id: bytes, noted: NotedSum) -> None:
        """Put this on the disk, for good, in the place of what was noted before of this run."""
        sums = {**self.sums(), session_id: noted}
        entries = {
            session.hex(): [entry.plan.hex(), entry.vector.hex(), list(entry.dealers), entry.model.hex()]
            for session, entry in sums.items()
        }
        write_record(self._path, {"sums": entries})


def _noted(entry: Any) -> NotedSum:
    plan, vector, dealers, model = entry
    if not all(type(dealer) is int for dealer in dealers):
        raise ValueError(f"{entry!r} is no sum")
    return NotedSum(bytes.fromhex(plan), bytes.fromhex(vector), tuple(dealers), bytes.fromhex(model))
