"""How progress and results look in a terminal, and in a log."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from rich.progress import TaskID

_LOG_LINES = 10  # per run, where stderr is not a terminal


@final
class RoundBar:
    """A live line per method on a terminal; about ten plain lines per method in a log. On stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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


def status(accuracy: float | None, answers: int | None = None, skipped: int | None = None, alarms: int = 0) -> str:
    """The moving part of a progress line."""
    text = f"accuracy {percent(accuracy, 1):>7}"
    if answers is not None:
        text += f"  survivors {answers:>3}  skipped {skipped}"
    return text + (f"  alarms {alarms}" if alarms else "")


def percent(share: float | None, digits: int) -> str:
    """A share for people: 97.4 %. A dash where nothing was evaluated."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def print_pairs(title: str, pairs: Mapping[str, Any]) -> None:
    """A two-column table on stdout."""
    _print(title, None, [[key, _text(value)] for key, value in pairs.items()])


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout."""
    _print(title, columns, rows)


def _print(title: str, columns: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=columns is not None)
    for index, column in enumerate(columns or ()):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if value is None:
        return "-"
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


def keep_freed_memory() -> None:
    """For commands that compute: let this process keep memory that it has freed."""
    from dresfl.kernels.cpu import keep_freed_memory as keep

    keep()
