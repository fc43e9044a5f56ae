"""Measure everything, part by part, into one file of JSON lines. Parts that are in the file are not repeated."""

import datetime
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from dresfl.errors import UsageError
from dresfl.experiments.bench.run import machine
from dresfl.experiments.bench.timing import interleaved
from dresfl.experiments.reproduce.cells import commit
from dresfl.files import write_atomic
from dresfl.kernels.threads import torch_threads

from .accuracy import compare_accuracy
from .phases import METHOD_NAMES, PHASES, Phase, deal_rows
from .settings import Plan, Setting, Sweep
from .whole_runs import whole_run

FORMAT = "dresfl complexity 1"
Record = dict[str, Any]
Key = TypeVar("Key")

# The processor time of this process: cores that are shared with other work do not lengthen it.
_in_turns = functools.partial(interleaved, clock=time.process_time)


def measure(plan: Plan, path: Path, *, quick: bool, threads: int, note: Callable[[str], None]) -> list[Record]:
    """All records of a plan; `path` grows by one part at a time, so that a stopped run goes on where it was."""
    records = read_records(path) if path.exists() else []
    header = {**_header(quick, threads), "plan": hashlib.sha256(repr(plan).encode()).hexdigest()[:16]}
    if records and any(records[0].get(key) != header[key] for key in ("quick", "threads", "plan")):
        raise UsageError(f"{path} was measured with other settings", "choose another --out, or remove the file")
    records = records or [header]
    done = {record.get("part") for record in records}
    parts = _parts(plan)
    with torch_threads(threads), threadpool_limits(threads):
        for number, (part, run) in enumerate(parts.items(), 1):
            if part in done:
                note(f"[{number}/{len(parts)}] {part}: measured before")
                continue
            note(f"[{number}/{len(parts)}] {part}")
            records += [{"part": part, **_rounded(record)} for record in run()]
            write_atomic(path, "".join(json.dumps(record) + "\n" for record in records).encode())
    return records


def read_records(path: Path) -> list[Record]:
    """The records of a file that `measure` wrote, its header first."""
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if records[0]["format"] != FORMAT:
            raise ValueError(f"its format is {records[0]['format']!r}")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{path} holds no measured costs: {error}", "measure them: dresfl reproduce complexity") from (
            error
        )
    return records


def _header(quick: bool, threads: int) -> Record:
    load = getattr(os, "getloadavg", lambda: (None,))
    return {
        "format": FORMAT,
        "quick": quick,
        "threads": threads,
        "machine": machine(),
        "load_average": load()[0],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
    }


def _rounded(record: Record) -> Record:
    """Floats to six digits: more of a timing is noise."""
    text = json.dumps(record)
    found: Record = json.loads(text, parse_float=lambda digits: float(f"{float(digits):.6g}"))
    return found


def _parts(plan: Plan) -> dict[str, Callable[[], Iterable[Record]]]:
    """What is measured, by name, in order."""

    def sweep_of(sweep: Sweep) -> Callable[[], Iterable[Record]]:
        return lambda: _sweep(sweep, plan.seconds)

    def case_of(name: str, setting: Setting) -> Callable[[], Iterable[Record]]:
        return lambda: _case(name, setting, plan.seconds)

    return {
        **{f"sweep {sweep.name}": sweep_of(sweep) for sweep in plan.sweeps},
        **{f"case {name}": case_of(name, setting) for name, setting in plan.cases.items()},
        "whole runs": lambda: _whole(plan),
        "accuracy": lambda: compare_accuracy(plan.accuracy_rounds),
    }


def _sweep(sweep: Sweep, seconds: float) -> list[Record]:
    """Every phase at every size, all of them in turns."""
    phases = [phase for phase in PHASES if sweep.name != "answers" or phase.method == "lightsecagg"]
    found = _timed(phases, {size: sweep.at(size) for size in sweep.sizes}, seconds)
    return [{"sweep": sweep.name, "size": sweep.measured_size(size), **record} for size, record in found]


def _case(name: str, setting: Setting, seconds: float) -> list[Record]:
    """Every phase of one setting in turns, and once the coding of all rows of a client, block after block."""
    found = [{"case": case, **record} for case, record in _timed(PHASES, {name: setting}, seconds)]
    whole = deal_rows(setting)
    deal_all = _in_turns({name: lambda: [whole.call() for _ in range(round(whole.units))]}, 0, least=1, cold=[name])
    return [*found, {"case": name, "whole_coding_seconds": deal_all[name].median}]


def _timed(phases: Sequence[Phase], settings: Mapping[Key, Setting], seconds: float) -> list[tuple[Key, Record]]:
    """The costs of phases in settings. All calls take turns: what slows the machine for a while slows all alike."""
    works = {(phase, key): phase.make(setting) for phase in phases for key, setting in settings.items()}
    made = {place: work for place, work in works.items() if work is not None}
    timings = _in_turns({place: work.call for place, work in made.items()}, seconds, least=7)
    found: list[tuple[Key, Record]] = []
    for (phase, key), work in made.items():
        timing = timings[phase, key]
        record = {
            "method": phase.method,
            "phase": phase.name,
            "party": phase.party,
            "per": phase.per,
            "seconds": timing.median * work.units,
            "best_seconds": timing.best * work.units,
            "runs": timing.runs,
            "sent": work.sent,
            "received": work.received,
            "setting": settings[key].to_dict(),
        }
        found.append((key, record))
    return found


def _whole(plan: Plan) -> list[Record]:
    """Whole runs of several lengths, three times each, of which the median counts."""
    found = []
    for method in METHOD_NAMES:
        for rounds in plan.rounds:
            runs = sorted((whole_run(plan.whole, method, rounds) for _ in range(3)), key=lambda run: run["seconds"])
            found.append({"method": method, **runs[1], "setting": plan.whole.to_dict()})
    return found
