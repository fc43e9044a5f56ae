"""How progress and results look in a terminal, and in a log."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

if TYPE_CHECKING:
    from rich.progress import TaskID

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

_LOG_LINES = 10  # per run, where stderr is not a terminal


@final
class RoundBar(contextlib.AbstractContextManager["RoundBar"]):
    """A live line per run on a terminal; about ten plain lines per run in a log. On stderr."""

    def __init__(
        self, width: int = 12, count: str = "round {task.completed:>6}/{task.total}", period: int = 30
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.console = Console(stderr=True)
        self.live = self.console.is_terminal
        self._bars = Progress(
            TextColumn(f"{{task.description:<{width}}}"),
            BarColumn(),
            TextColumn(count),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.live,
            speed_estimate_period=period,
        )
        self._bars.start()
        self._tasks: dict[str, TaskID] = {}

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def update(self, run: str, done: int, total: int, status: str) -> None:
        """Show that `run` has done `done` of `total` rounds."""
        if not self.live:
            if done % max(1, total // _LOG_LINES) == 0 or done == total:
                note(f"{run}: round {done}/{total}  {status}")
            return
        if run not in self._tasks:
            # a resumed run starts in the middle: the remaining time is estimated from here on
            self._tasks[run] = self._bars.add_task(run, total=total, completed=done, status=status)
        self._bars.update(self._tasks[run], completed=done, status=status)

    def remove(self, run: str) -> None:
        """Take a run's line away, if it has one."""
        if run in self._tasks:
            self._bars.remove_task(self._tasks.pop(run))


@contextlib.contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr while the block runs; in a log one line. Yields a function that says what is done now."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        note(text)
        yield lambda _: None
        return
    with console.status(text) as spinner:
        yield lambda now: spinner.update(f"{text}: {now}")


def status(
    accuracy: float | None,
    answers: int | None = None,
    skipped: int | None = None,
    alarms: int = 0,
    *,
    regression: bool = False,
) -> str:
    """The moving part of a progress line. regression: the accuracy is R²."""
    text = (
        f"R² {'-' if accuracy is None else f'{accuracy:.3f}':>7}"
        if regression
        else f"accuracy {percent(accuracy, 1):>7}"
    )
    if answers is not None:
        text += f"  survivors {answers:>3}  skipped {skipped}"
    return text + (f"  alarms {alarms}" if alarms else "")


def percent(share: float | None, digits: int) -> str:
    """A share for people: 97.4 %. A dash where nothing was evaluated."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def print_pairs(title: str, pairs: Mapping[str, Any], as_json: bool = False) -> None:
    """A two-column table on stdout, or the pairs as JSON."""
    if as_json:
        print(json.dumps(pairs, indent=2, default=str))
    else:
        print_table(title, [], [[key, _text(value)] for key, value in pairs.items()])


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], words: bool = False) -> None:
    """A table on stdout; without columns it has no head. words: its cells are sentences, not figures."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=bool(columns))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or words else "right")
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
    from dresfl.experiments.bench.page import bytes_text as text

    return text(count)


def note(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


def keep_freed_memory(one_heap: bool = False) -> None:
    """For commands that compute: let this process keep memory that it has freed, for all threads together or each."""
    from dresfl.kernels.cpu import keep_freed_memory as keep

    keep(one_heap=one_heap)
