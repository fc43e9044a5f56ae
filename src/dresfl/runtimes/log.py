"""Logs as JSON lines: what happened, to whom, why. No key, share or row is logged.

A log never holds up a run. `log_thread` gives one whose lines a thread of its own writes: if they cannot be written,
because a pipe is full or a disk is, lines are dropped and counted. What is repeated very often is counted too, so that
nobody can fill a disk with refusals.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, final

from dresfl.federation.actions import Value

MOST_WAITING = 2000  # lines
LONGEST_TEXT = 2000  # characters of one value
_WINDOW_SECONDS = 10.0
_MOST_IN_WINDOW = 20  # lines of one event and one client
_MOST_FOREIGN = 400  # likewise, of what other code writes to stderr: a traceback has many lines
_FOREIGN = "stderr"
_FAREWELL_SECONDS = 5.0  # at the end, for lines that wait


class Log(Protocol):
    """Writes one event. Called as log("joined", client=3)."""

    def __call__(self, event: str, **fields: Value) -> None: ...


def log_to(write: Callable[[str], object]) -> Log:
    """A log that hands each JSON line to `write`."""

    def log(event: str, **fields: Value) -> None:
        write(_line_of_log(event, fields))

    return log


def _line_of_log(event: str, fields: dict[str, Value]) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "event": event, **fields})


@final
@dataclass
class _Window:
    """Some seconds, and how often one event of one client came in them."""

    ends: float
    room: int  # for lines
    repeated: int = 0


@final
class Repeats:
    """Which events are written. The first of a kind are; while more keep coming, there is one line for many.

    >>> repeats = Repeats()
    >>> sum(repeats.admit("refused", 3, now=0.1 * i) for i in range(99)) == 20
    True
    >>> repeats.due(now=10.0) == [("refused", 3, 79)]
    True
    """

    def __init__(self) -> None:
        self._windows: dict[tuple[str, Value], _Window] = {}

    def admit(self, event: str, client: Value, now: float) -> bool:
        """Whether this one is written; if not, it is counted."""
        room = _MOST_FOREIGN if event == _FOREIGN else _MOST_IN_WINDOW
        window = self._windows.setdefault((event, client), _Window(now + _WINDOW_SECONDS, room))
        if now >= window.ends and not window.repeated:
            window.ends, window.room = now + _WINDOW_SECONDS, room
        if window.room:
            window.room -= 1
            return True
        window.repeated += 1
        return False

    def due(self, now: float, everything: bool = False) -> list[tuple[str, Value, int]]:
        """Event, client and count of what was repeated, once its seconds are over."""
        found = []
        for key, window in tuple(self._windows.items()):
            if now < window.ends and not everything:
                continue
            del self._windows[key]
            if window.repeated:
                found.append((*key, window.repeated))
                self._windows[key] = _Window(now + _WINDOW_SECONDS, room=0)  # until it is quiet for one window
        return found


@final
class LogThread:
    """A log whose lines a thread writes. Whoever logs never waits for it."""

    def __init__(self, write: Callable[[str], object]) -> None:
        """write: hands a line on; may block for ever, or raise OSError: then the line is lost."""
        self._write, self._repeats = write, Repeats()
        self._waiting: deque[tuple[str, int]] = deque()  # a line, and how many lines are lost with it
        self._dropped = 0
        self._changed = threading.Condition()
        self._closing, self._summary_at = False, 0.0
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def __call__(self, event: str, **fields: Value) -> None:
        short = {name: value[:LONGEST_TEXT] if isinstance(value, str) else value for name, value in fields.items()}
        with self._changed:
            if self._repeats.admit(event, fields.get("client"), time.monotonic()):
                self._put(_line_of_log(event, short))

    def pass_on(self, line: str) -> None:
        """Write a line that is an event already."""
        with self._changed:
            if self._repeats.admit(_FOREIGN, "event", time.monotonic()):
                self._put(line)

    def _put(self, line: str) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
            return
        self._report_dropped()
        self._waiting.append((line, 1))
        self._changed.notify()

    def _report_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._waiting.append((_line_of_log("log lines dropped", {"count": dropped}), dropped))

    def _run(self) -> None:
        while (item := self._next()) is not None:
            try:
                self._write(item[0])
            except (OSError, ValueError):  # ValueError: a file that was closed
                with self._changed:
                    self._dropped += item[1]

    def _next(self) -> tuple[str, int] | None:
        """The next line; None at the end."""
        with self._changed:
            while True:
                self._summarise(time.monotonic())
                if self._waiting:
                    return self._waiting.popleft()
                if self._closing:
                    return None
                self._changed.wait(timeout=1.0)

    def _summarise(self, now: float) -> None:
        """Say what was repeated; look once a second, and at the end."""
        if now < self._summary_at and not self._closing:
            return
        self._summary_at = now + 1.0
        for event, client, count in self._repeats.due(now, everything=self._closing):
            fields: dict[str, Value] = {} if client is None else {"client": client}
            self._put(_line_of_log("repeated", {"what": event, **fields, "count": count}))

    def close(self, seconds: float = _FAREWELL_SECONDS) -> bool:
        """Write what waits, but not for ever; whether all is written. Later lines are lost."""
        with self._changed:
            self._report_dropped()
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()


@contextmanager
def log_thread(write: Callable[[str], object]) -> Iterator[Log]:
    """A log with a thread of its own that hands JSON lines to `write`, for as long as it lasts."""
    log = LogThread(write)
    try:
        yield log
    finally:
        log.close()
