"""One cell: train it in its folder, then write its record. A finished cell is never run again."""

import dataclasses
import os
import platform
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

import dresfl
from dresfl.baselines import Method
from dresfl.deploy.toml import to_toml
from dresfl.errors import CheckpointError, Diverged, DresError, FieldError, HeadroomAlarm, UsageError
from dresfl.experiments.comparison import BaselineSettings, run_baseline
from dresfl.experiments.config import RunConfig, differences, load_config
from dresfl.experiments.published import LIKE
from dresfl.experiments.training import read_origin, train
from dresfl.kernels.threads import torch_threads
from dresfl.storage.run_folder import Progress, clear_run, read_metrics

from .data_keeper import DataKeeper
from .matrix import Cell
from .records import SAME_RESULT, Record, read_record

_OF_THE_CELL = ("dataset", "method", "seed", "dropout_seed", "passed_over", "feasible", "perturbation", "trial")
_OF_THE_SUMMARY = ("test_accuracy", "skipped_rounds", "mean_survivors", "reliable_clients", "seconds", "weights_sha256")

Report = Callable[[int, float | None], None]  # after every round: rounds done, the last test accuracy


def finished(cell: Cell, out: Path) -> Record | None:
    """The cell's record if it has run; CheckpointError if what ran there was something else."""
    path = cell.jsonl(out)
    if not path.exists():
        return None
    record = read_record(path)
    differing = other_settings(record, cell)
    if differing:
        raise CheckpointError(
            f"{cell.name} ran with other settings ({', '.join(differing)})",
            "choose another --out, or run the cell again with --replace",
        )
    return record


def other_settings(record: Record, cell: Cell) -> list[str]:
    """In what the run of a record differs from a cell, as far as it changes what comes out."""
    differing = differences(record.config, cell.config, SAME_RESULT)
    if cell.baseline:
        before = record.header.get("baseline", dataclasses.asdict(BaselineSettings()))
        differing += ["baseline"] * (before != dataclasses.asdict(cell.baseline))
    if cell.method.removeprefix(LIKE) == "scaffold" and record.header.get("precision") != "float64":
        differing.append("precision")
    return differing


def discard(cell: Cell, out: Path) -> None:
    """Remove what a cell left, its record first."""
    cell.jsonl(out).unlink(missing_ok=True)
    clear_run(cell.folder(out))


def run_cell(cell: Cell, keeper: DataKeeper, out: Path, report: Report) -> Record:
    """Run a cell, or what is left of it, and write its record.

    A trial is short: it starts over and leaves its record alone. One that diverges counts as accuracy 0.
    """
    folder = cell.folder(out)
    if cell.trial:
        shutil.rmtree(folder, ignore_errors=True)
    config = _resumed(cell.config, folder)
    try:
        if cell.is_dresfl:
            summary, evaluations = _dresfl(cell, config, keeper, folder, report)
        else:
            summary, evaluations = _baseline(cell, keeper, report)
    except (Diverged, FieldError, HeadroomAlarm) as error:
        if not cell.trial:
            raise
        summary, evaluations = _diverged(cell, error)
    record = _record(cell, config, summary, evaluations)
    record.write(cell.jsonl(out))
    if cell.trial:
        shutil.rmtree(folder, ignore_errors=True)
    return record


def _dresfl(
    cell: Cell, config: RunConfig, keeper: DataKeeper, folder: Path, report: Report
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    def watch(progress: Progress, *_: object) -> None:
        report(progress.round_number, progress.accuracy)

    with torch_threads(config.threads):
        prepared = dataclasses.replace(keeper.prepared(cell), config=config)
    summary = train(config, out=folder, resume=True, watch=watch, prepared=prepared)
    summary = {**summary, **read_origin(folder)}
    return summary, [line for line in read_metrics(folder) if "test_accuracy" in line]


def _resumed(config: RunConfig, folder: Path) -> RunConfig:
    """An interrupted run goes on with the engine it began with: the same weights, but the record names one engine."""
    try:
        return dataclasses.replace(config, engine=load_config(str(folder / "config.toml")).engine)
    except UsageError:
        return config


def _baseline(cell: Cell, keeper: DataKeeper, report: Report) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A baseline's summary and evaluations. It keeps no files of its own: stopped, it starts over."""
    method = cast(Method, cell.method.removeprefix(LIKE))
    with torch_threads(cell.config.threads):
        prepared = keeper.prepared(cell)
        curve = run_baseline(
            prepared, method, report, cell.baseline, perturbation=cell.perturbation, rows=keeper.real_rows
        )
    summary = {
        "engine": "real",
        "precision": curve.precision,
        "test_accuracy": curve.final,
        "skipped_rounds": curve.skipped_rounds,
        "mean_survivors": None if method == "centralised" else curve.mean_survivors,
        "reliable_clients": prepared.dropouts.num_reliable,
        "train_rows": sum(map(len, prepared.parts)),
        "test_rows": prepared.split.test.num_rows,
        **prepared.split.origin.to_dict(),
        "weights_sha256": curve.weights_sha256,
        "seconds": curve.seconds,
    }
    return summary, curve.evaluations


def _diverged(cell: Cell, error: DresError) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is told of a trial that did not get to its end."""
    nothing = dict.fromkeys((*_OF_THE_SUMMARY, "train_rows", "test_rows"))
    summary = {**nothing, "engine": cell.config.engine if cell.is_dresfl else "real", "error": str(error)}
    line = {"round": cell.config.rounds, "test_accuracy": 0.0}
    return {**summary, "test_accuracy": 0.0, "skipped_rounds": 0, "seconds": 0.0}, [line]


def _record(cell: Cell, config: RunConfig, summary: dict[str, Any], evaluations: list[dict[str, Any]]) -> Record:
    header = {
        **{key: getattr(cell, key) for key in _OF_THE_CELL},
        "rounds": config.rounds,
        "engine": summary["engine"],
        "device": f"cuda ({torch.cuda.get_device_name()})" if config.device == "cuda" else config.device,
        "commit": commit(),
        "versions": {"dresfl": dresfl.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "loss": cell.baseline.loss if cell.baseline else "squared",
        "baseline": cell.baseline and dataclasses.asdict(cell.baseline),
        "precision": summary.get("precision"),
        "train_rows": summary["train_rows"],
        "test_rows": summary["test_rows"],
        "data_sha256": summary.get("data_sha256"),
        "extractor_sha256": summary.get("extractor_sha256"),
        "config": tomllib.loads(to_toml(config)),
    }
    refused = summary.get("alarms", 0)
    result = {
        **{key: summary[key] for key in _OF_THE_SUMMARY},
        "alarms": refused,
        **({"error": summary["error"]} if "error" in summary else {}),
        "decoded_share": 1 - (summary["skipped_rounds"] + refused) / config.rounds if cell.is_dresfl else None,
    }
    return Record(header, evaluations, result)


def commit() -> str:
    """$DRESFL_COMMIT, if set; else the commit of this source tree, with -dirty where files differ; else "unknown"."""
    source = Path(dresfl.__file__).resolve().parents[2]
    named = os.environ.get("DRESFL_COMMIT")
    if named is None and (source / ".git").exists():
        command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        named = found.stdout.strip() if found.returncode == 0 else None
    return named or "unknown"
