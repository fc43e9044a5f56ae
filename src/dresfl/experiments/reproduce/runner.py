"""Runs a matrix: cell by cell in this process, or several cells at a time in processes.

A process runs one cell after the other and keeps its data set as long as cells want it. A cell that fails, or whose
process dies, does not end the others. Ctrl-C lets DReS-FL cells checkpoint.
"""

import contextlib
import fcntl
import functools
import gc
import multiprocessing
import os
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol, final

import torch

from dresfl.errors import CheckpointError, DresError, UsageError
from dresfl.features import cache_folder

from .cells import Report, discard, finished, run_cell
from .data_keeper import DataKeeper
from .matrix import Cell
from .records import Record

_PATIENCE = 30  # seconds that an interrupted process gets for its checkpoint
_REPORT_EVERY = 0.25  # seconds between two reports of a process


@final
@dataclass(frozen=True)
class Failure:
    """A cell that did not finish, and why."""

    cell: Cell
    message: str
    hint: str = ""


class Watch(Protocol):
    """Who is told how the matrix stands."""

    def skip(self, cell: Cell) -> None:
        """`cell` was finished before."""

    def advance(self, cell: Cell, done: int, accuracy: float | None) -> None:
        """`cell` has done that many rounds."""

    def finish(self, cell: Cell, record: Record) -> None:
        """`cell` is done."""

    def fail(self, failure: Failure) -> None:
        """A cell did not finish."""


def run_matrix(
    cells: Sequence[Cell], *, data: Path | None, out: Path, watch: Watch, jobs: int = 1, replace: bool = False
) -> list[Failure]:
    """Run every cell that has no record yet; return those that failed."""
    if jobs < 1:
        raise UsageError(f"jobs must be at least 1, not {jobs}")
    failures: list[Failure] = []
    waiting: list[Cell] = []

    def settle(cell: Cell, outcome: Record | Failure) -> None:
        if isinstance(outcome, Failure):
            failures.append(outcome)
            watch.fail(outcome)
        else:
            watch.finish(cell, outcome)

    for cell in cells:
        try:
            if finished(cell, out):
                watch.skip(cell)
                continue
        except CheckpointError as error:
            if not replace:
                settle(cell, Failure(cell, str(error), error.hint))
                continue
            discard(cell, out)
        waiting.append(cell)
    needing = sorted({cell.dataset for cell in waiting if cell.dataset != "digits"})
    if needing and data is None:
        raise UsageError(f"{', '.join(needing)} need a folder of data", "give it with --data, in torchvision's layout")
    jobs = min(jobs, len(waiting))
    if jobs > 1:
        _run_in_processes(waiting, data, out, jobs, watch, settle)
    else:
        keeper = DataKeeper(data)
        for cell in waiting:
            settle(cell, _attempt(cell, keeper, out, functools.partial(watch.advance, cell)))
    return failures


def _attempt(cell: Cell, keeper: DataKeeper, out: Path, report: Report) -> Record | Failure:
    """Run a cell; whatever goes wrong in it is its own failure. What surprises is kept as error.txt in its folder."""
    try:
        return run_cell(cell, keeper, out, report)
    except DresError as error:
        return Failure(cell, str(error), error.hint)
    except Exception as error:
        place = cell.folder(out) / "error.txt"
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(traceback.format_exc(), encoding="utf-8")
        return Failure(cell, "".join(traceback.format_exception_only(error)).splitlines()[0], f"see {place}")
    finally:
        gc.collect()  # the next cell may need the memory
        torch.cuda.empty_cache()  # does nothing where CUDA is not in use


# -- processes -------------------------------------------------------------------------------------------------


@final
@dataclass
class _Running:
    """A process and the cell it is at."""

    cell: Cell
    process: BaseProcess
    reported: bool = False  # the cell's rounds have begun


def _run_in_processes(
    waiting: list[Cell],
    data: Path | None,
    out: Path,
    jobs: int,
    watch: Watch,
    settle: Callable[[Cell, Record | Failure], None],
) -> None:
    """Run `jobs` cells at a time. For each, a process sends reports (rounds done, accuracy), and last the outcome."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    running: dict[Connection, _Running] = {}
    wanted = Counter(cell.data_key for cell in waiting)
    several = frozenset(key for key, cells in wanted.items() if cells > 1)
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(_shared_folder(data, waiting))
        stack.callback(_stop, running)
        while waiting or running:
            while waiting and len(running) < jobs:
                pipe, process = _start(DataKeeper(data, shared, several), out, threads)
                cell = _next(waiting, running)
                running[pipe] = _Running(cell, process)
                _send(pipe, cell)
            ready = wait(running, timeout=1)
            for pipe, one in [item for item in running.items() if item[0] in ready]:
                try:
                    message = pipe.recv()
                except (EOFError, OSError):
                    one.process.join()
                    message = Failure(
                        one.cell,
                        f"its process ended with exit code {one.process.exitcode}",
                        "out of memory? Run again, with fewer --jobs; finished cells are kept",
                    )
                if isinstance(message, tuple):
                    one.reported = True
                    watch.advance(one.cell, *message)
                    continue
                settle(one.cell, message)
                if waiting and not isinstance(message, Failure):
                    one.cell, one.reported = _next(waiting, running, one.cell), False
                    _send(pipe, one.cell)
                else:  # after a failure a GPU may be of no more use to its process
                    del running[pipe]
                    pipe.close()
                    one.process.join()


@contextlib.contextmanager
def _shared_folder(data: Path | None, cells: Sequence[Cell]) -> Iterator[Path | None]:
    """A folder in the cache for rows of features that all processes map. The last command that uses it removes it."""
    cache = cache_folder(data)
    if cache is None or not any(cell.config.features.extractor for cell in cells):
        yield None
        return
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "shared.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            yield cache / "shared"
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(cache / "shared", ignore_errors=True)


def _next(waiting: list[Cell], running: dict[Connection, _Running], before: Cell | None = None) -> Cell:
    """Take the cell that a process runs next: one on the data it has, else on the data with most cells a process."""
    keys = [cell.data_key for cell in waiting]
    if before is not None and before.data_key in keys:
        return waiting.pop(keys.index(before.data_key))
    at_it = Counter(one.cell.data_key for one in running.values() if one.cell is not before)
    most = max(dict.fromkeys(keys), key=lambda key: keys.count(key) / (1 + at_it[key]))
    return waiting.pop(keys.index(most))


def _send(pipe: Connection, cell: Cell) -> None:
    """Give a cell to a process. One that has died is noticed when its pipe is read."""
    with contextlib.suppress(OSError):
        pipe.send(cell)


def _start(keeper: DataKeeper, out: Path, threads: int) -> tuple[Connection, BaseProcess]:
    ours, theirs = multiprocessing.Pipe()
    arguments = (theirs, keeper, out, threads)
    process = multiprocessing.get_context("spawn").Process(target=_work, args=arguments, daemon=True)
    # Ctrl-C reaches the whole terminal; a process inherits that it ignores it, even before its first line of Python
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    theirs.close()
    return ours, process


def _stop(running: dict[Connection, _Running]) -> None:
    """A process whose rounds have begun finds its pipe closed, and gets time for a checkpoint; others end at once."""
    for pipe, one in running.items():
        pipe.close()
        if not one.reported:
            one.process.terminate()
    for one in running.values():
        one.process.join(_PATIENCE)
        one.process.kill()
        one.process.join()


def _work(pipe: Connection, keeper: DataKeeper, out: Path, threads: int) -> None:
    """The life of a process: cells as they come, of each a few reports a second and the outcome."""
    due = 0.0

    def report(done: int, accuracy: float | None) -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        due = time.monotonic() + _REPORT_EVERY
        try:
            pipe.send((done, accuracy))
        except OSError:
            raise KeyboardInterrupt from None  # the parent stops, or is gone

    torch.set_num_threads(threads)
    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):
        while True:
            pipe.send(_attempt(pipe.recv(), keeper, out, report))
