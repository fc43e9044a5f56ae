"""How progress and results look in a terminal, and in a log."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

_LOG_LINES = 10  # per run, where stderr is not a terminal


@final
class RoundBar:
    """A live line per method on a terminal; about ten plain lines per method in a log. On stderr."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live = self._console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            TextColumn("round {task.completed:>6}/{task.total}"),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._live,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "RoundBar":
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def update(self, method: str, done: int, total: int, status: str) -> None:
        """Show that `method` has done `done` of `total` rounds."""
        if not self._live:
            if done % max(1, total // _LOG_LINES) == 0 or done == total:
                print(f"{method}: round {done}/{total}  {status}", file=sys.stderr, flush=True)
            return
        if method not in self._tasks:
            # a resumed run starts in the middle: the remaining time is estimated from here on
            self._tasks[method] = self._bars.add_task(method, total=total, completed=done, status=status)
        self._bars.update(self._tasks[method], completed=done, status=status)


def status(accuracy: float, answers: int | None = None, skipped: int | None = None, alarms: int = 0) -> str:
    """The moving part of a progress line."""
    text = f"accuracy {100 * accuracy:5.1f} %" if accuracy else "accuracy    -   "  # nothing evaluated yet
    if answers is not None:
        text += f"  survivors {answers:>3}  skipped {skipped}"
    return text + (f"  alarms {alarms}" if alarms else "")


def print_pairs(title: str, pairs: Mapping[str, Any]) -> None:
    """A two-column table on stdout."""
    table = Table(title=title, title_justify="left", show_header=False)
    for key, value in pairs.items():
        table.add_row(key, _text(value))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "\n".join(map(_text, value)) or "none"
    return str(value)


def bytes_text(count: int) -> str:
    """A byte count for people: 1.5 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def note(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)
