"""A run's counters, what is measured of it, and its folder. The same for every runtime.

    config.toml or agreement.json   what the run is of
    data.json                of a simulation: SHA-256 of its data and of its extractor
    metrics.jsonl            a line for each measurement, each refused round, and each round with liars
    rounds.jsonl             a line for each round (round_log.py)
    checkpoint.safetensors   the coordinator's state, the counters, and how far metrics.jsonl is valid (checkpoint.py)
    checkpoint-before.…      the checkpoint before that one
    model.safetensors        the model (model_file.py)
    summary.json             written last: its presence means that the run is complete

A run can be killed at any moment and resumed. The masks of a resumed simulation are new ones. That changes nothing:
decoded integers do not depend on masks.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor

from dresfl import __version__
from dresfl.errors import CheckpointError, DresError
from dresfl.files import disk, open_private, write_atomic
from dresfl.model import weights_sha256
from dresfl.protocol import Answer, RoundRecord, Session, Training

from .checkpoint import EARLIER, NEWEST, RunFolder, read_checkpoint, write_checkpoint
from .hidden_course import HiddenCourse
from .model_file import StoredModel, write_model
from .round_log import NAME as ROUNDS
from .round_log import RoundLog

RUN_FILES = ("summary.json", "model.safetensors", NEWEST, EARLIER, "metrics.jsonl", ROUNDS, "data.json", "config.toml")


@final
@dataclass
class Progress:
    """How a run stands: the counters that the summary reports and a checkpoint keeps.

    >>> Progress(round_number=4, answers=30).mean_survivors == 7.5
    True
    """

    round_number: int = 0
    skipped: int = 0
    alarms: int = 0
    answers: int = 0
    accuracy: float | None = None  # of the last evaluation, in a regression R²; None: nothing was evaluated
    peak_bits: float = 0.0
    seconds: float = 0.0
    metrics_bytes: int = 0
    regression: bool = False  # whether the accuracy is R²; follows from the session, and no checkpoint keeps it

    @property
    def mean_survivors(self) -> float:
        """Answers a round, on average."""
        return self.answers / max(1, self.round_number)

    def counters(self) -> dict[str, Any]:
        """What a checkpoint keeps.

        >>> Progress(answers=3).counters()["answers"]
        3
        """
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "regression"}

    def count(self, record: RoundRecord, answers: int) -> None:
        """Take a round into account."""
        self.round_number = record.round_number + 1
        self.answers += answers
        self.skipped += record.outcome == "skipped"
        self.alarms += record.outcome == "refused"
        self.peak_bits = max(self.peak_bits, record.peak_bits)


Watcher = Callable[[Progress, RoundRecord, int], None]  # after every round: how the run stands, the round, its answers


@final
@dataclass(frozen=True)
class Measurement:
    """How a run stood after a round: a line of metrics.jsonl, an entry of `Run.history`.

    >>> Measurement(20, None, 0, 0, 9.0, 0.5, 100.0, 1.0).to_dict()["round"]
    20
    """

    round: int  # rounds done
    test_accuracy: float | None  # None: there is no test set
    skipped_rounds: int
    alarms: int
    mean_survivors: float
    gradient_norm: float | None  # None: nobody knows it, in the hidden mode
    peak_bits: float
    seconds: float
    validation_loss: float | None = None  # of the hidden mode: the last one that was opened
    test_r2: float | None = None  # R² of a regression on the test set

    def to_dict(self) -> dict[str, Any]:
        """The measurement as plain values."""
        return dataclasses.asdict(self)


@final
@dataclass(frozen=True)
class Summary:
    """What came of a run: summary.json, and `Run.summary`. What does not apply to a run is None.

    >>> {"rounds", "test_accuracy", "weights_sha256"} <= {field.name for field in dataclasses.fields(Summary)}
    True
    """

    name: str
    engine: str
    test_accuracy: float | None  # None: nothing was evaluated
    rounds: int
    skipped_rounds: int
    alarms: int
    liars: dict[str, int]  # client: rounds in which its answer was a lie
    mean_survivors: float
    recovery_threshold: int
    answers_needed: int
    reliable_clients: int | None  # of a simulation
    train_rows: int
    test_rows: int | None
    weights_sha256: str
    seconds: float
    seconds_per_round: float
    bytes_shared: int
    bytes_uploaded: int
    modulus_bits: int
    needed_bits: float
    peak_bits: float
    versions: dict[str, str]
    mode: str = "open"
    validation_losses: dict[str, float] = dataclasses.field(default_factory=dict)  # hidden mode: by rounds done
    totals: dict[str, Any] | None = None  # hidden mode: what clients counted on their own rows, summed at the end
    stopped_after: int | None = None  # hidden mode: rounds, if the stopping rule ended the run before the last one
    task: str = "classification"
    test_r2: float | None = None  # R² of a regression on the test set

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain values, as summary.json has them."""
        return dataclasses.asdict(self)


def summarise(
    training: Training,
    progress: Progress,
    *,
    name: str,
    engine: str,
    reliable_clients: int | None = None,
    test_rows: int | None = None,
) -> Summary:
    """The summary of a run that has ended. Engine `direct` shares and uploads nothing."""
    session = training.session
    return _summary(
        session,
        progress,
        weights=training.weights,
        lies=training.lies,
        played=training.rounds,
        answer_bytes=Answer.size(session.field, session.network.num_parameters),
        name=name,
        engine=engine,
        rounds=training.rounds,
        reliable_clients=reliable_clients,
        test_rows=test_rows,
        needed_bits=session.needed_bits,
    )


def summarise_hidden(
    course: HiddenCourse,
    progress: Progress,
    *,
    name: str,
    engine: str,
    reliable_clients: int | None = None,
    test_rows: int | None = None,
    totals: dict[str, Any] | None = None,
) -> Summary:
    """The summary of a hidden run that has ended. Engine `direct` shares and uploads nothing.

    totals: what the clients counted on their own rows, summed.
    """
    plan = course.session.hidden_plan
    found = _summary(
        course.session,
        progress,
        weights=course.weights,
        lies=course.lies,
        played=max(1, course.round_number),
        answer_bytes=plan.upload_bytes,
        name=name,
        engine=engine,
        rounds=course.rounds,
        reliable_clients=reliable_clients,
        test_rows=test_rows,
        needed_bits=float(plan.most_bits),
    )
    return dataclasses.replace(
        found,
        mode="hidden",
        validation_losses={str(done): loss for done, loss in sorted(course.losses.items())},
        totals=totals,
        stopped_after=course.round_number if course.round_number < course.rounds else None,
    )


def _summary(
    session: Session,
    progress: Progress,
    *,
    weights: Tensor | None,
    lies: Mapping[int, int],
    played: int,
    answer_bytes: int,
    name: str,
    engine: str,
    rounds: int,
    reliable_clients: int | None,
    test_rows: int | None,
    needed_bits: float,
) -> Summary:
    """What the summaries of both modes have in common.

    played: rounds, for the seconds of one. answer_bytes: what a client uploads in a round.
    """
    residues, coded = session.field, engine != "direct"
    coded_rows = sum(session.coded_rows(client) for client in range(session.num_clients))
    share = session.row_width * len(residues.moduli) * residues.residue_bytes  # of one row, for one client
    return Summary(
        name=name,
        engine=engine,
        test_accuracy=None if progress.regression else progress.accuracy,
        rounds=rounds,
        skipped_rounds=progress.skipped,
        alarms=progress.alarms,
        liars={str(client): count for client, count in lies.items()},
        mean_survivors=progress.mean_survivors,
        recovery_threshold=session.recovery_threshold,
        answers_needed=session.answers_needed,
        reliable_clients=reliable_clients,
        train_rows=sum(session.client_rows[client] for client in session.included),
        test_rows=test_rows,
        weights_sha256="" if weights is None else weights_sha256(weights),
        seconds=progress.seconds,
        seconds_per_round=progress.seconds / played,
        bytes_shared=coded_rows * share * (session.num_clients - 1) if coded else 0,
        bytes_uploaded=progress.answers * answer_bytes if coded else 0,
        modulus_bits=residues.modulus.bit_length(),
        needed_bits=needed_bits,
        peak_bits=progress.peak_bits,
        versions={"dresfl": __version__, "torch": torch.__version__, "python": platform.python_version()},
        task=session.network.task,
        test_r2=progress.accuracy if progress.regression else None,
    )


_log = logging.getLogger(__name__)

Accuracy = Callable[[Tensor], float]  # integer weights -> the share of a test set that they classify right, or R²


@final
class RunRecorder:
    """Counts a training's rounds, measures it now and then, and keeps its folder if it has one. Use it in a `with`.

    A folder with a checkpoint sets the training back to where that left it. After each round call `count`; after the
    last of a block `measure`; `checkpoint` when it is time.
    """

    def __init__(
        self,
        training: Training | HiddenCourse,
        *,
        accuracy: Accuracy | None,
        evaluate_every: int,
        folder: RunFolder | None,
        messages: bool = True,
    ) -> None:
        """messages: whether participants send any; engine `direct` has none."""
        self._training, self._accuracy, self._every, self._folder = training, accuracy, evaluate_every, folder
        self.progress, known = restore(training, folder) if folder else (Progress(), "")
        self.progress.regression = training.session.network.task == "regression"
        self.history: list[Measurement] = []
        self._started = time.monotonic() - self.progress.seconds
        self._counted = time.monotonic()
        self._metrics = _Metrics(folder, self.progress.metrics_bytes, known) if folder else None
        self._rounds = (
            RoundLog(folder.path, training.session, messages=messages, private=folder.private) if folder else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._metrics is not None:
            self._metrics.close()
        if self._rounds is not None:
            self._rounds.close()

    def count(self, record: RoundRecord, answers: int, seconds: float | None = None) -> None:
        """Take a round into account. A refused one is written down, and so is one with liars.

        seconds: that it took; None: as long as it is since the last one was counted.
        """
        self.progress.count(record, answers)
        now = time.monotonic()
        if self._rounds is not None:
            self._rounds.write(record, answers, now - self._counted if seconds is None else seconds)
        self._counted = now
        if record.outcome == "refused" and self._metrics is not None:
            self._metrics.write({"round": record.round_number, "alarm": record.reason})
        if record.liars and self._metrics is not None:
            self._metrics.write({"round": record.round_number, "liars": list(record.liars)})
        if isinstance(self._training, HiddenCourse):
            self._training.count(record)

    def count_loss(self, done: int, loss: float) -> None:
        """A hidden run opened a validation loss after so many rounds: it is written down, once."""
        if isinstance(self._training, HiddenCourse) and done not in self._training.losses:
            self._training.losses[done] = loss
            if self._rounds is not None:
                self._rounds.loss(done - 1, loss)
            if self._metrics is not None:
                self._metrics.write({"round": done, "validation_loss": loss})

    def measure(self, record: RoundRecord) -> Measurement | None:
        """After a round: evaluate and write a line, if it is time."""
        if self._training.round_number % self._every and not self._training.done:
            return None
        progress, hidden = self.progress, isinstance(self._training, HiddenCourse)
        if self._accuracy is not None and self._training.weights is not None:
            progress.accuracy = self._accuracy(self._training.weights)
        progress.seconds = time.monotonic() - self._started
        measured = Measurement(
            round=progress.round_number,
            test_accuracy=None if progress.regression else progress.accuracy,
            skipped_rounds=progress.skipped,
            alarms=progress.alarms,
            mean_survivors=progress.mean_survivors,
            gradient_norm=None if hidden else record.gradient_norm,
            peak_bits=progress.peak_bits,
            seconds=progress.seconds,
            validation_loss=_last_loss(self._training),
            test_r2=progress.accuracy if progress.regression else None,
        )
        self.history.append(measured)
        if self._metrics is not None:
            self._metrics.write(measured.to_dict())
        return measured

    def checkpoint(self) -> None:
        """Put everything on the disk, so that a resumed run goes on from here. Nothing happens without a folder."""
        self.progress.seconds = time.monotonic() - self._started
        if self._folder is None or self._metrics is None:
            return
        self.progress.metrics_bytes, digest = self._metrics.sync()
        write_checkpoint(self._folder, self._training, self.progress.counters(), digest)

    def finish(self, summary: Summary, model: StoredModel | None) -> None:
        """Write the model, then the summary. model: None if the run opened none, or none for this participant."""
        if self._rounds is not None:
            self._rounds.flush()
        if self._folder is not None:
            private = self._folder.private
            if model is not None:
                write_model(self._folder.path / "model.safetensors", model, private=private)
            write_summary(self._folder.path, summary.to_dict(), private=private)


def _last_loss(training: Training | HiddenCourse) -> float | None:
    if not isinstance(training, HiddenCourse) or not training.losses:
        return None
    return training.losses[max(training.losses)]


# -- files -------------------------------------------------------------------------------------------------------


def clear_run(folder: Path) -> None:
    """Remove the files of an earlier run from its folder, and nothing else."""
    for name in RUN_FILES:
        (folder / name).unlink(missing_ok=True)


def write_summary(folder: Path, summary: dict[str, Any], *, private: bool = False) -> None:
    """Write summary.json: the run is complete."""
    write_atomic(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode(), private=private)


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a complete run."""
    try:
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        return summary
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {folder / 'summary.json'}: {error}") from error


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    try:
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {folder / 'metrics.jsonl'}: {error}") from error


def restore(training: Training | HiddenCourse, folder: RunFolder) -> tuple[Progress, str]:
    """Set a training to where its folder's checkpoint left it, if there is one.

    How the run stands, and the SHA-256 of the metrics that the checkpoint knows of.
    """
    found = read_checkpoint(folder, training)
    if found is None:
        return Progress(), ""
    stored, known = found.progress, Progress().counters()
    if not isinstance(stored, dict) or stored.keys() != known.keys() or not all(map(_is_counter, stored.items())):
        raise CheckpointError(f"the checkpoint in {folder.path} has no valid progress", "start over in another folder")
    training.restore(found.tensors)
    return Progress(**stored), found.metrics


def _is_counter(entry: tuple[str, object]) -> bool:
    name, value = entry
    return type(value) in (int, float) or (name == "accuracy" and value is None)


@final
class _Metrics:
    """metrics.jsonl, cut back to what the checkpoint knows, then appended to."""

    def __init__(self, folder: RunFolder, valid_bytes: int, known: str) -> None:
        """known: the SHA-256 of those bytes; empty if there is no checkpoint."""
        self._path = path = folder.path / "metrics.jsonl"
        with disk(path, "write", DresError):
            if known and not path.exists():
                _log.warning("%s is not there any more: a new one begins", path)
                valid_bytes = 0
            valid = path.read_bytes()[:valid_bytes] if valid_bytes else b""
            self._digest = hashlib.sha256(valid)
            if valid_bytes and self._digest.hexdigest() != known:
                raise CheckpointError(
                    f"{path} is damaged: its first {valid_bytes} bytes are not those that the checkpoint knows",
                    f"restore it, or move it away (mv {path} {path}.damaged): the run goes on without those lines",
                )
            self._file = open(path, "ab", opener=open_private if folder.private else None)  # noqa: SIM115 - in `close`
            self._file.truncate(valid_bytes)
            self._file.seek(0, os.SEEK_END)

    def write(self, line: dict[str, Any]) -> None:
        data = json.dumps(line).encode() + b"\n"
        with disk(self._path, "write", DresError):
            self._file.write(data)
            self._file.flush()
        self._digest.update(data)

    def sync(self) -> tuple[int, str]:
        """Flush to the disk; return the length and the SHA-256."""
        with disk(self._path, "write", DresError):
            os.fsync(self._file.fileno())
        return self._file.tell(), self._digest.hexdigest()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # every line was flushed; a full disk has complained already
            self._file.close()
