"""One training run: rounds, evaluation, metrics, checkpoints. Can be killed at any moment and resumed.

A run's folder:

    config.toml          the whole configuration, defaults included
    metrics.jsonl        a line per evaluation, and one per refused round
    checkpoint.safetensors   server state; how far metrics.jsonl is valid; counters
    model.safetensors    the real weights (exact), with the model's description
    summary.json         written last: its presence means the run is complete

The masks of a resumed run are new ones. That changes nothing: decoded integers do not depend on masks.
"""

import contextlib
import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from dresfl import __version__
from dresfl.api.plan import warnings
from dresfl.data import Split
from dresfl.errors import CheckpointError, DresError, UsageError
from dresfl.files import load_tensors, save_tensors, write_atomic
from dresfl.model import weights_sha256
from dresfl.protocol import Answer, RoundRecord, Training
from dresfl.runtimes.local import LocalFederation

from .config import RunConfig, load_config, to_toml
from .prepare import Prepared, prepare

RUN_FILES = ("summary.json", "model.safetensors", "checkpoint.safetensors", "metrics.jsonl", "config.toml")


@final
@dataclass
class Progress:
    """How a run stands: the counters that the summary reports and a checkpoint keeps."""

    round_number: int = 0
    skipped: int = 0
    alarms: int = 0
    answers: int = 0
    accuracy: float = 0.0
    peak_bits: float = 0.0
    seconds: float = 0.0
    metrics_bytes: int = 0

    @property
    def mean_survivors(self) -> float:
        return self.answers / max(1, self.round_number)

    def count(self, record: RoundRecord, answers: int) -> None:
        """Take a round into account."""
        self.round_number = record.round_number + 1
        self.answers += answers
        self.skipped += record.outcome == "skipped"
        self.alarms += record.outcome == "refused"
        self.peak_bits = max(self.peak_bits, record.peak_bits)


Watcher = Callable[[Progress, RoundRecord, int], None]


def train(
    config: RunConfig,
    *,
    folder: Path | None = None,
    out: Path,
    resume: bool = False,
    split: Split | None = None,
    watch: Watcher = lambda progress, record, answers: None,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run (or resume) a training and return its summary; `watch` is called after every round.

    `split`: the data, where it has been read already. `note` gets a line where a reader should know something, e.g.
    that the dropouts leave too few clients.
    """
    _check_folder(config, out, resume)
    if (out / "summary.json").exists():
        return read_summary(out)
    if resume and not out.exists():
        note(f"note: there is no run in {out} yet; it starts with round 1")
    with threads(config.threads):
        prepared = prepare(config, folder, split=split)
        write_atomic(out / "config.toml", to_toml(config).encode())  # only now: a run that cannot start holds no folder
        needed, reliable = prepared.session.recovery_threshold, prepared.dropouts.num_reliable
        if reliable < needed:
            note(
                f"note: only {reliable} of {config.federation.num_clients} clients are reliable and {needed} answers "
                "are needed: most rounds will be skipped (try another dropout.seed)"
            )
        session = prepared.session
        for warning in warnings(session.network, session.code.max_dropouts, session.max_colluders, session.batch_size):
            note(f"note: {warning}")
        return _train(prepared, out, watch)


def clear_run(out: Path) -> None:
    """Remove the files of an earlier run from its folder, and nothing else."""
    for name in RUN_FILES:
        (out / name).unlink(missing_ok=True)


def read_summary(out: Path) -> dict[str, Any]:
    """The summary of a complete run."""
    try:
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        return summary
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {out / 'summary.json'}: {error}") from error


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    try:
        text = (out / "metrics.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {out / 'metrics.jsonl'}: {error}") from error


def _train(prepared: Prepared, out: Path, watch: Watcher) -> dict[str, Any]:
    config, session = prepared.config, prepared.session
    server = Training(session, config.optimizer, config.rounds)
    federation = LocalFederation(session, server, prepared.client_data(), prepared.dropouts, config.engine)
    progress = restore(server, out)
    started = time.monotonic() - progress.seconds
    with Metrics(out / "metrics.jsonl", progress.metrics_bytes) as metrics:

        def checkpoint() -> None:
            progress.seconds = time.monotonic() - started
            progress.metrics_bytes = metrics.sync()
            save_tensors(checkpoint_path(out), server.state(), {"progress": dataclasses.asdict(progress)})

        whole = True  # whether server, counters and metrics agree
        try:
            while not server.done:
                whole = False
                record, answers = _play(federation, _until_stop(config, server.round_number), progress, metrics, watch)
                if server.round_number % config.evaluate_every == 0 or server.done:
                    progress.accuracy = prepared.accuracy(server.weights)
                    progress.seconds = time.monotonic() - started
                    metrics.write(metrics_line(progress, record))
                whole = True
                watch(progress, record, answers)
                if server.round_number % config.checkpoint_every == 0 and not server.done:
                    checkpoint()
        except KeyboardInterrupt:
            if whole:
                checkpoint()
            raise
        checkpoint()
    return _finish(prepared, server, progress, out)


def _play(
    federation: LocalFederation, limit: int, progress: Progress, metrics: "Metrics", watch: Watcher
) -> tuple[RoundRecord, int]:
    """Play up to `limit` rounds, count them, and return the last; `watch` sees the ones before it."""
    played = federation.run_rounds(limit)
    for place, (record, answers) in enumerate(played, 1):
        progress.count(record, answers)
        if record.outcome == "refused":
            metrics.write({"round": record.round_number, "alarm": record.reason})
        if place < len(played):
            watch(progress, record, answers)
    return played[-1]


def _until_stop(config: RunConfig, round_number: int) -> int:
    """Rounds until the next evaluation or checkpoint."""
    return min(every - round_number % every for every in (config.evaluate_every, config.checkpoint_every))


def metrics_line(progress: Progress, record: RoundRecord) -> dict[str, Any]:
    """What metrics.jsonl says of an evaluation."""
    return {
        "round": progress.round_number,
        "test_accuracy": progress.accuracy,
        "skipped_rounds": progress.skipped,
        "alarms": progress.alarms,
        "mean_survivors": progress.mean_survivors,
        "gradient_norm": record.gradient_norm,
        "peak_bits": progress.peak_bits,
        "seconds": progress.seconds,
    }


def _finish(prepared: Prepared, server: Training, progress: Progress, out: Path) -> dict[str, Any]:
    config, session = prepared.config, prepared.session
    coded = config.engine == "coded"
    field, network = session.field, session.network
    residues = len(field.moduli) * field.residue_bytes
    rows = sum(session.coded_rows(i) for i in range(session.num_clients))
    description = {
        "format": "dresfl model 1",
        "config": to_toml(config),
        "input_shape": network.input_shape,
        "weights_sha256": weights_sha256(server.weights),
    }
    save_tensors(out / "model.safetensors", network.tensors(server.weights), description)
    summary = {
        "name": config.name,
        "engine": config.engine,
        "test_accuracy": progress.accuracy,
        "rounds": config.rounds,
        "skipped_rounds": progress.skipped,
        "alarms": progress.alarms,
        "mean_survivors": progress.mean_survivors,
        "recovery_threshold": session.recovery_threshold,
        "reliable_clients": prepared.dropouts.num_reliable,
        "train_rows": prepared.split.train.num_rows,
        "test_rows": prepared.split.test.num_rows,
        "weights_sha256": weights_sha256(server.weights),
        "seconds": progress.seconds,
        "bytes_shared": rows * session.row_width * residues * (session.num_clients - 1) if coded else 0,
        "bytes_uploaded": progress.answers * Answer.size(field, network.num_parameters) if coded else 0,
        "modulus_bits": field.modulus.bit_length(),
        "needed_bits": session.needed_bits,
        "peak_bits": progress.peak_bits,
        "versions": {"dresfl": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    write_atomic(out / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


# -- the run's folder ------------------------------------------------------------------------------------------


def checkpoint_path(out: Path) -> Path:
    """Where a run's folder keeps the server's state."""
    return out / "checkpoint.safetensors"


def _check_folder(config: RunConfig, out: Path, resume: bool) -> None:
    """Refuse a folder that holds another run, or a run that nobody asked to resume."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file, not a folder", "choose another --out")
    found = [name for name in RUN_FILES if (out / name).exists()]
    if found and not resume:
        raise UsageError(f"{out} already holds a run", "continue it with --resume, or choose another --out")
    if found and "config.toml" not in found:
        raise CheckpointError(f"the run in {out} lost its config.toml", "choose another --out")
    if found:
        _check_same(config, out)


def _check_same(config: RunConfig, out: Path) -> None:
    stored = load_config(str(out / "config.toml"))
    # evaluation, checkpoints and threads may change; what decides the weights may not
    stored = dataclasses.replace(
        stored,
        evaluate_every=config.evaluate_every,
        checkpoint_every=config.checkpoint_every,
        threads=config.threads,
        device=config.device,
    )
    if stored != config:
        names = (f.name for f in dataclasses.fields(config))
        differing = ", ".join(name for name in names if getattr(stored, name) != getattr(config, name))
        raise CheckpointError(
            f"the run in {out} has another configuration ({differing})",
            f"compare with {out / 'config.toml'}, or choose another --out",
        )


def restore(server: Training, out: Path) -> Progress:
    """Continue from the run's checkpoint, if there is one; how the run stands."""
    if not checkpoint_path(out).exists():
        return Progress()
    tensors, meta = load_tensors(checkpoint_path(out))
    server.restore(tensors)
    stored = meta.get("progress")
    known = dataclasses.asdict(Progress())
    if (
        not isinstance(stored, dict)
        or stored.keys() != known.keys()
        or any(type(stored[key]) not in (int, float) for key in known)
    ):
        raise CheckpointError(f"{checkpoint_path(out)} has no valid progress", "delete the run's folder to start over")
    return Progress(**stored)


@final
class Metrics:
    """metrics.jsonl, cut back to what the checkpoint knows, then appended to."""

    def __init__(self, path: Path, valid_bytes: int) -> None:
        try:
            self._file = open(path, "ab")  # noqa: SIM115 - closed in __exit__
            if self._file.seek(0, os.SEEK_END) < valid_bytes:
                self._file.close()
                raise CheckpointError(f"{path} is shorter than its checkpoint says", "delete the folder to start over")
            self._file.truncate(valid_bytes)
            self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise DresError(f"cannot write {path}: {error.strerror}", "choose another --out") from error
        self._path = path

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):  # every line was flushed; a full disk has complained already
            self._file.close()

    def write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise DresError(f"cannot write {self._path}: {error.strerror}", "free some space, then --resume") from error

    def sync(self) -> int:
        """Flush to the disk; return the length."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise DresError(f"cannot write {self._path}: {error.strerror}", "free some space, then --resume") from error
        return self._file.tell()


@final
class threads:
    """torch's thread count for the length of a run; 0 leaves it alone."""

    def __init__(self, count: int) -> None:
        self._count, self._before = count, torch.get_num_threads()

    def __enter__(self) -> None:
        if self._count:
            torch.set_num_threads(self._count)

    def __exit__(self, *exception: object) -> None:
        torch.set_num_threads(self._before)
