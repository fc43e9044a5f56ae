"""rounds.jsonl: a line for each round of a run, for whoever wants to see its course. Whoever keeps the run's folder.

    round          its number, counted from 0 as in tasks
    outcome        stepped, skipped or refused
    answers        clients that answered
    survivors      those whose answers were decoded; empty where nothing is decoded (engine direct of the hidden mode)
    liars          those whose answers were found to be lies
    gradient_norm  null in the hidden mode
    loss           the validation loss that was opened after this round; null if none was
    bytes          by phase: `sharing` in the first round alone, `weights` to the clients, `answers` from them
    seconds        of this round; if several rounds are computed together, an equal part of their time

The bytes are those of the messages, as many as the participants of a run without repeats and refusals exchange. A run
that goes on after a stop writes the rounds that it plays again in the place of those that were there.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, final

from dresfl.errors import DresError
from dresfl.files import disk, open_private
from dresfl.protocol import Answer, RoundRecord, Session, Task

NAME = "rounds.jsonl"


@final
class RoundLog:
    """The lines of one run. The last one waits for the loss, which may become known after its round is counted."""

    def __init__(self, folder: Path, session: Session, *, messages: bool, private: bool) -> None:
        """messages: whether participants send any; engine `direct` has none. private: with mode 0600."""
        self._path, self._messages, self._private = folder / NAME, messages, private
        self._session = session
        self._sizes = _sizes(session) if messages else {"sharing": 0, "weights": 0, "answers": 0}
        self._file: BinaryIO | None = None
        self._waiting: dict[str, Any] | None = None
        self._losses: dict[int, float] = {}  # by round, until their lines are written

    def write(self, record: RoundRecord, answers: int, seconds: float) -> None:
        """A round is over."""
        self.flush()
        number, sizes = record.round_number, self._sizes
        if self._file is None:
            self._file = self._opened(number)
        self._waiting = {
            "round": number,
            "outcome": record.outcome,
            "answers": answers,
            "survivors": list(record.survivors),
            "liars": list(record.liars),
            "gradient_norm": None if self._session.hidden is not None else record.gradient_norm,
            "loss": None,
            "bytes": {
                "sharing": 0 if number else sizes["sharing"],
                "weights": sizes["weights"] * self._session.num_clients,
                "answers": sizes["answers"] * answers,
            },
            "seconds": round(seconds, 6),
        }

    def loss(self, round_number: int, loss: float) -> None:
        """A validation loss was opened after a round. It may come before the round is counted."""
        self._losses[round_number] = loss

    def flush(self) -> None:
        """Write the line that waits."""
        if self._waiting is not None and self._file is not None:
            self._waiting["loss"] = self._losses.pop(self._waiting["round"], None)
            with disk(self._path, "write", DresError):
                self._file.write(json.dumps(self._waiting).encode() + b"\n")
                self._file.flush()
            self._waiting = None

    def close(self) -> None:
        if self._file is not None:
            self.flush()
            with contextlib.suppress(OSError):  # every line was flushed; a full disk has complained already
                self._file.close()

    def _opened(self, first: int) -> BinaryIO:
        """The file, without the rounds that are played again, and without what follows a line that is no round."""
        with disk(self._path, "write", DresError):
            file = open(self._path, "a+b", opener=open_private if self._private else None)  # noqa: SIM115 - in `close`
            file.seek(0)
            kept = 0
            for line in file:
                if not _is_before(line, first):
                    break
                kept += len(line)
            file.truncate(kept)
            return file


def _is_before(line: bytes, first: int) -> bool:
    """Whether a line is one of a round before `first`."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return (
        line.endswith(b"\n") and isinstance(found, dict) and type(found.get("round")) is int and found["round"] < first
    )


def _sizes(session: Session) -> Mapping[str, int]:
    """Bytes of the whole sharing; of what a client is sent in a round; of what it answers."""
    field, network = session.field, session.network
    coded = sum(session.coded_rows(client) for client in range(session.num_clients))
    row = session.row_width * len(field.moduli) * field.residue_bytes
    sharing = coded * row * (session.num_clients - 1)
    if session.hidden is not None:
        return {
            "sharing": sharing,
            "weights": session.hidden.download_bytes,
            "answers": session.hidden.upload_bytes,
        }
    return {
        "sharing": sharing,
        "weights": Task.size(network.num_parameters),
        "answers": Answer.size(field, network.num_parameters),
    }
