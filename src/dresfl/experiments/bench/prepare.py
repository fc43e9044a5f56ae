"""How long a large Parquet table takes to become integer rows, and how much memory; beside pandas' plain read of it.

Both read the same file, in turns, each time in a fresh process. Seconds are of the work alone, without imports. Memory
is the peak of the whole process, interpreter and libraries included.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from dresfl.errors import UsageError
from dresfl.tables import Column, Label, Schema, read_integers

from .memory import resident
from .run import machine

_ROW_GROUP = 2**20
_INPUT_BITS = 6


def measure(
    rows: int, columns: int, *, folder: Path | None, threads: int, repeats: int, note: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A line about the machine and the table, then a line for each measurement."""
    if min(rows, columns, threads, repeats) < 1:
        raise UsageError("rows, columns, threads and repeats must be at least 1")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "table.parquet"
        note(f"writing {rows:,} rows of {columns} columns")
        write_table(path, rows, columns)
        lines = [
            {
                "record": "prepare",
                "rows": rows,
                "columns": columns,
                "file_bytes": path.stat().st_size,
                "threads": threads,
                "input_bits": _INPUT_BITS,
                **machine(),
                "load_average": os.getloadavg()[0],
            }
        ]
        _alone(_read_file, path, columns, threads)  # the file is in the system's cache for all that follows
        for repeat in range(repeats):
            for name, work in (("dresfl", _prepare), ("pandas", _pandas)):
                found = _alone(work, path, columns, threads)
                note(f"{name}: {found['seconds']:.1f} s, {found['peak_bytes'] / 2**30:.2f} GiB")
                lines.append({"record": "measured", "reader": name, "repeat": repeat, **found})
    return lines


def summary(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Medians and their ratio."""
    measured = {
        f"{reader}_{key}": statistics.median(line[key] for line in lines if line.get("reader") == reader)
        for reader in ("dresfl", "pandas")
        for key in ("seconds", "peak_bytes")
    }
    return {
        "dresfl_seconds": measured["dresfl_seconds"],
        "pandas_seconds": measured["pandas_seconds"],
        "time_ratio": measured["dresfl_seconds"] / measured["pandas_seconds"],
        "dresfl_peak_gigabytes": measured["dresfl_peak_bytes"] / 1e9,
        "pandas_peak_gigabytes": measured["pandas_peak_bytes"] / 1e9,
    }


def write_table(path: Path, rows: int, columns: int) -> None:
    """Random columns x0, x1, … in [0, 1) and a label of two classes, in row groups."""
    import pyarrow
    import pyarrow.parquet

    generator = np.random.default_rng(0)
    names = [f"x{place}" for place in range(columns)]
    kinds = [(name, pyarrow.float64()) for name in names]
    with pyarrow.parquet.ParquetWriter(path, pyarrow.schema([*kinds, ("label", pyarrow.int8())])) as writer:
        for start in range(0, rows, _ROW_GROUP):
            count = min(_ROW_GROUP, rows - start)
            values = {name: generator.random(count) for name in names}
            values["label"] = generator.integers(0, 2, count).astype(np.int8)
            writer.write_table(pyarrow.table(values))


def _alone(work: Callable[[Path, int, int], dict[str, Any]], path: Path, columns: int, threads: int) -> dict[str, Any]:
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(work, path, columns, threads).result()


def _read_file(path: Path, columns: int, threads: int) -> dict[str, Any]:
    with open(path, "rb", buffering=0) as file:
        while file.read(2**24):
            pass
    return {}


def _prepare(path: Path, columns: int, threads: int) -> dict[str, Any]:
    import pyarrow
    import torch

    from dresfl.quantize import Quantizer

    torch.set_num_threads(threads)
    pyarrow.set_cpu_count(threads)
    inputs = tuple(Column(f"x{place}", "number", minimum=0.0, maximum=1.0) for place in range(columns))
    schema = Schema("classification", inputs, Label("label", ("0", "1")))
    start = time.perf_counter()
    integers, labels = read_integers(path, schema, Quantizer(_INPUT_BITS))
    return _measured(start, len(labels), integers.nbytes + labels.nbytes)


def _pandas(path: Path, columns: int, threads: int) -> dict[str, Any]:
    import pandas
    import pyarrow

    pyarrow.set_cpu_count(threads)
    start = time.perf_counter()
    frame = pandas.read_parquet(path)
    return _measured(start, len(frame), int(frame.memory_usage(index=False).sum()))


def _measured(start: float, rows: int, kept: int) -> dict[str, Any]:
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "rows": rows, "result_bytes": kept, "peak_bytes": resident("VmHWM")}
