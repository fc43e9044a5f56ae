"""Runs a matrix: cell by cell in this process, or in worker processes that take cells until none is left.

A worker imports torch once and prefers cells of the data set it has just used. A failing cell ends neither its
worker nor the others; a worker that dies takes its cell with it and is replaced. Ctrl-C lets DReS-FL cells checkpoint.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol, final

import torch

from dresfl.errors import CheckpointError, DresError, UsageError

from .cells import Report, Splits, discard, finished, run_cell
from .matrix import Cell
from .records import Record

_PATIENCE = 30  # seconds that an interrupted worker gets for its checkpoint
_REPORT_EVERY = 0.25  # seconds between two reports of a worker


@final
@dataclass(frozen=True)
class Failure:
    """A cell that did not finish, and why."""

    cell: Cell
    message: str
    hint: str = ""
    unforeseen: bool = False  # no DresError: a bug, a lack of memory, a broken device


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
    for cell in cells:
        try:
            if finished(cell, out):
                watch.skip(cell)
            else:
                waiting.append(cell)
        except CheckpointError as error:
            if replace:
                discard(cell, out)
                waiting.append(cell)
            else:
                failures.append(Failure(cell, str(error), error.hint))
                watch.fail(failures[-1])
    needing = sorted({cell.dataset for cell in waiting if cell.dataset != "digits"})
    if needing and data is None:
        raise UsageError(f"{', '.join(needing)} need a folder of data", "give it with --data, in torchvision's layout")
    if min(jobs, len(waiting)) <= 1:
        return failures + _run_here(waiting, data, out, watch)
    return failures + _Workers(waiting, data, out, watch, jobs).run()


def _run_here(cells: Sequence[Cell], data: Path | None, out: Path, watch: Watch) -> list[Failure]:
    failures: list[Failure] = []
    splits = Splits(data, out)
    places = {data: place for place, data in enumerate(dict.fromkeys(cell.data for cell in cells))}
    for cell in sorted(cells, key=lambda cell: places[cell.data]):

        def report(done: int, accuracy: float | None, cell: Cell = cell) -> None:
            watch.advance(cell, done, accuracy)

        outcome = _attempt(cell, splits, out, report)
        if isinstance(outcome, Failure):
            failures.append(outcome)
            watch.fail(outcome)
        else:
            watch.finish(cell, outcome)
    return failures


def _attempt(cell: Cell, splits: Splits, out: Path, report: Report) -> Record | Failure:
    """Run a cell; whatever goes wrong in it is its own failure. What surprises is kept as error.txt in its folder."""
    try:
        return run_cell(cell, splits, out, report)
    except DresError as error:
        return Failure(cell, str(error), error.hint)
    except Exception as error:
        place = cell.folder(out) / "error.txt"
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(traceback.format_exc(), encoding="utf-8")
        return Failure(cell, "".join(traceback.format_exception_only(error)).splitlines()[0], f"see {place}", True)
    finally:
        gc.collect()  # the next cell may need the memory
        torch.cuda.empty_cache()  # does nothing where CUDA is not in use


# -- worker processes ------------------------------------------------------------------------------------------


@final
@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Cell | None = None
    data: object = None  # what it read last


@final
class _Workers:
    """The parent's side: hands out cells, passes on reports, replaces the dead."""

    def __init__(self, cells: Sequence[Cell], data: Path | None, out: Path, watch: Watch, jobs: int) -> None:
        self._waiting = list(cells)
        self._data, self._out, self._watch = data, out, watch
        self._jobs = min(jobs, len(cells))
        self._threads = max(1, (os.cpu_count() or 1) // self._jobs)
        self._workers: list[_Worker] = []
        self._failures: list[Failure] = []

    def run(self) -> list[Failure]:
        """Until no cell is left."""
        try:
            while self._waiting or any(worker.cell for worker in self._workers):
                while self._waiting and len(self._workers) < self._jobs:
                    self._workers.append(self._start())
                for worker in self._workers:
                    if worker.cell is None:
                        self._give(worker)
                ready = wait([worker.pipe for worker in self._workers], timeout=1)
                for worker in [worker for worker in self._workers if worker.pipe in ready]:
                    self._hear(worker)
        finally:
            self._stop()
        return self._failures

    def _start(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        arguments = (theirs, self._data, self._out, self._threads)
        process = multiprocessing.get_context("spawn").Process(target=_work, args=arguments, daemon=True)
        with _interrupts_ignored():  # Ctrl-C reaches the whole terminal; workers are told by their parent
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def _give(self, worker: _Worker) -> None:
        """The next cell on the data the worker has, else on data that the fewest others are at."""
        if not self._waiting:
            return
        busy = Counter(other.cell.data for other in self._workers if other.cell)
        remaining = Counter(cell.data for cell in self._waiting)

        def preference(cell: Cell) -> tuple[bool, float]:
            return cell.data != worker.data, busy[cell.data] / remaining[cell.data]

        cell = min(self._waiting, key=preference)
        self._waiting.remove(cell)
        worker.cell, worker.data = cell, cell.data
        with contextlib.suppress(OSError):  # a dead worker is noticed when it is heard
            worker.pipe.send(cell)

    def _hear(self, worker: _Worker) -> None:
        cell = worker.cell
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        if cell is None:
            return
        if isinstance(message, tuple):
            self._watch.advance(cell, *message)
            return
        worker.cell = None
        if isinstance(message, Failure):
            self._failures.append(message)
            self._watch.fail(message)
            if message.unforeseen:
                self._bury(worker)
        else:
            self._watch.finish(cell, message)

    def _bury(self, worker: _Worker) -> None:
        worker.process.join()
        self._workers.remove(worker)
        if worker.cell:
            failure = Failure(
                worker.cell,
                f"its process ended with exit code {worker.process.exitcode}",
                "out of memory? Run again, with fewer --jobs; finished cells are kept",
            )
            self._failures.append(failure)
            self._watch.fail(failure)

    def _stop(self) -> None:
        """Idle workers end as their pipe closes; busy ones are interrupted and get time for a checkpoint."""
        for worker in self._workers:
            if worker.cell:
                worker.process.terminate()
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes started inside inherit that SIGINT is ignored, even before their first line of Python."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@final
class _Reporter:
    """The worker's voice: a few reports a second. Told to stop, it does so between two rounds, if rounds have begun."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._next = 0.0
        self._stopping = False
        self.playing = False

    def stop(self, *_: object) -> None:
        """The handler of SIGTERM."""
        self._stopping = True
        if not self.playing:
            raise KeyboardInterrupt

    def __call__(self, done: int, accuracy: float | None) -> None:
        self.playing = True
        if self._stopping:
            raise KeyboardInterrupt
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REPORT_EVERY
        try:
            self._pipe.send((done, accuracy))
        except OSError:
            raise KeyboardInterrupt from None  # the parent is gone


def _work(pipe: Connection, data: Path | None, out: Path, threads: int) -> None:
    """A worker's life: cells in, reports and outcomes out, until the pipe closes.

    After a failure that nobody foresaw it ends, since its CUDA context may be broken; the parent starts another.
    """
    report = _Reporter(pipe)
    signal.signal(signal.SIGTERM, report.stop)
    torch.set_num_threads(threads)
    splits = Splits(data, out)
    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):
        while True:
            cell: Cell = pipe.recv()
            outcome = _attempt(cell, splits, out, report)
            report.playing = False
            pipe.send(outcome)
            if isinstance(outcome, Failure) and outcome.unforeseen:
                return
