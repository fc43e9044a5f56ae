"""How the progress of many runs looks in a terminal, and in a log."""

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from . import display

if TYPE_CHECKING:
    from dresfl.experiments.reproduce import Cell, Failure, Record

_LOG_EVERY = 30  # seconds between two lines about running cells, where stderr is not a terminal


@final
class MatrixBar(contextlib.AbstractContextManager["MatrixBar"]):
    """A bar over all rounds of the matrix and a line for each running cell; in a log, a line per finished cell."""

    def __init__(self, cells: "Sequence[Cell]") -> None:
        self._total = sum(cell.config.rounds for cell in cells)
        self._count, self._ended = len(cells), 0
        self._done: dict[str, int] = {}
        self._started, self._reported, self._before = time.monotonic(), time.monotonic(), 0
        self._bar = display.RoundBar(width=32, count="{task.completed}/{task.total}", period=600)
        self._refresh()

    def __exit__(self, *exception: object) -> None:
        self._bar.__exit__()

    def skip(self, cell: "Cell") -> None:
        self._before += cell.config.rounds
        self._end(cell)

    def advance(self, cell: "Cell", done: int, accuracy: float | None) -> None:
        if cell.name not in self._done:
            self._before += done  # an interrupted cell goes on in the middle
        self._done[cell.name] = done
        status = display.status(accuracy)
        if self._bar.live:
            self._bar.update(cell.name, done, cell.config.rounds, status)
            self._refresh()
        elif time.monotonic() - self._reported > _LOG_EVERY:
            self._reported = time.monotonic()
            self._say(f"{cell.name}: round {done}/{cell.config.rounds}  {status}")

    def finish(self, cell: "Cell", record: "Record") -> None:
        self._end(cell)
        self._say(f"{cell.name}: {record.percent:.2f} %, {cell.config.rounds} rounds, {record.result['seconds']:.1f} s")

    def fail(self, failure: "Failure") -> None:
        self._end(failure.cell)
        self._say(f"{failure.cell.name}: FAILED: {failure.message}")

    def _end(self, cell: "Cell") -> None:
        self._ended += 1
        self._done[cell.name] = cell.config.rounds
        self._bar.remove(cell.name)
        self._refresh()

    def _refresh(self) -> None:
        if self._bar.live:
            status = f"{self._ended} of {self._count} cells"
            self._bar.update("all rounds", sum(self._done.values()), self._total, status)

    def _say(self, text: str) -> None:
        if self._bar.live:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            display.note(f"{self._standing()}  {text}")

    def _standing(self) -> str:
        done = sum(self._done.values())
        elapsed = time.monotonic() - self._started
        rate = (done - self._before) / elapsed if elapsed else 0.0
        left = f"{(self._total - done) / rate:.0f} s" if rate > 0 else "?"
        return f"[{self._ended}/{self._count}] {100 * done / max(1, self._total):.0f} % of all rounds, ETA {left}"
