"""One JSONL per run: a header, a line per evaluation, the result. Tables and figures read nothing else."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from dresfl.deploy.toml import parse
from dresfl.errors import DataError, DresError
from dresfl.experiments.config import RunConfig, differences
from dresfl.experiments.published import METHODS, TABLE_DATASETS
from dresfl.files import write_atomic

SAME_RESULT = ("name", "engine", "device", "threads", "evaluate_every", "checkpoint_every")
"""Keys of a configuration that do not change what comes out."""

_HEADER = ("dataset", "method", "seed", "dropout_seed", "passed_over", "feasible", "rounds", "engine", "device",
           "commit", "versions", "train_rows", "test_rows", "config")  # fmt: skip
_RESULT = ("test_accuracy", "skipped_rounds", "decoded_share", "mean_survivors", "seconds", "weights_sha256")
_ORIGIN = ("data_sha256", "extractor_sha256")


@final
@dataclass(frozen=True)
class Record:
    """What a finished run left: its header, its evaluations, its result."""

    header: dict[str, Any]
    evaluations: list[dict[str, Any]]
    result: dict[str, Any]

    @property
    def dataset(self) -> str:
        return str(self.header["dataset"])

    @property
    def method(self) -> str:
        return str(self.header["method"])

    @property
    def seed(self) -> int:
        return int(self.header["seed"])

    @property
    def feasible(self) -> bool:
        return bool(self.header["feasible"])

    @property
    def perturbation(self) -> int:
        """Above 0: a run of the same seed with its first weights moved by 1e-9."""
        return int(self.header.get("perturbation", 0))

    @property
    def percent(self) -> float:
        """The test accuracy after the last round, in percent."""
        return 100 * float(self.result["test_accuracy"])

    @property
    def config(self) -> RunConfig:
        return parse(RunConfig, self.header["config"])

    def write(self, path: Path) -> None:
        """Write the JSONL, whole or not at all."""
        lines = [
            {"kind": "header", **self.header},
            *({"kind": "evaluation", **line} for line in self.evaluations),
            {"kind": "result", **self.result},
        ]
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines).encode())


def read_record(path: Path) -> Record:
    """The record in a file; DataError if it is not a whole one."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        kinds = [line.pop("kind", "") for line in lines]
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"cannot read the record {path}: {error}", "delete it and run again") from error
    if len(lines) < 3 or kinds != ["header", *["evaluation"] * (len(lines) - 2), "result"]:
        raise DataError(f"{path} is not a header, evaluations and a result", "delete it and run again")
    missing = [key for key in _HEADER if key not in lines[0]] + [key for key in _RESULT if key not in lines[-1]]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}", "delete it and run again")
    return Record(lines[0], lines[1:-1], lines[-1])


def read_records(out: Path) -> list[Record]:
    """Every record below a folder, by file name."""
    paths = sorted((out / "jsonl").glob("*.jsonl"))
    if not paths:
        raise DresError(f"{out} holds no finished run", "run it without --render-only first")
    return [read_record(path) for path in paths]


def grouped(records: Iterable[Record]) -> dict[str, dict[str, list[Record]]]:
    """{dataset: {method: runs}}: in the table's order, runs by their seeds.

    Infeasible draws and perturbed runs are left out.

    Raises DresError if runs of one group had different settings: their mean would mean nothing.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        if record.feasible and not record.perturbation:
            groups.setdefault((record.dataset, record.method), []).append(record)
    for (dataset, method), runs in groups.items():
        ignored = ("seed", "dropout", *SAME_RESULT)
        differing = {name for run in runs[1:] for name in differences(runs[0].config, run.config, ignored)}
        known = [run.header for run in runs if run.header.get("data_sha256")]  # version 0.2 and before kept none
        differing |= {name for name in _ORIGIN if any(header[name] != known[0][name] for header in known)}
        if differing:
            raise DresError(
                f"the runs of {dataset} {method} had different settings ({', '.join(sorted(differing))})",
                "run all of them again with --replace, or delete the older ones from jsonl/ and runs/",
            )
    found = {dataset for dataset, _ in groups}
    return {
        dataset: {method: groups[dataset, method] for method in METHODS if (dataset, method) in groups}
        for dataset in (*sorted(found - set(TABLE_DATASETS)), *TABLE_DATASETS)
        if dataset in found
    }


def mean_and_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """To four decimals; sd is that of a sample (n − 1). A single value has none."""
    return round(statistics.fmean(values), 4), round(statistics.stdev(values), 4) if len(values) > 1 else None
