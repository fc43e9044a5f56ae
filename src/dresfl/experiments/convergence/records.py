"""One line of JSON for each run, in one file. Tables and the figure read nothing else."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dresfl.errors import DataError
from dresfl.files import write_atomic

from .cases import Case

NAME = "convergence.jsonl"
Record = dict[str, Any]


def read_records(out: Path) -> list[Record]:
    """The records of a folder, none if it has no such file."""
    path = out / NAME
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}", "move the file away and run again") from error


def add_record(out: Path, record: Record) -> None:
    """Add a run's line; the file is whole at any time."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(each) for each in (*read_records(out), record)]
    write_atomic(out / NAME, ("\n".join(lines) + "\n").encode())


def finished(records: Iterable[Record], case: Case, seed: int) -> bool:
    """Whether a run with these settings has its line."""
    return any((record["case"], record["seed"]) == (case.name, seed) for record in records)


def by_case(records: Sequence[Record]) -> dict[Case, list[Record]]:
    """The records of every case, in the order in which they were run, by seed."""
    found: dict[Case, list[Record]] = {}
    for record in records:
        values = {field.name: record[field.name] for field in fields(Case)}
        found.setdefault(Case(**{**values, "sizes": tuple(values["sizes"])}), []).append(record)
    return {case: sorted(runs, key=lambda run: int(run["seed"])) for case, runs in found.items()}
