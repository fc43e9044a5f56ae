"""Jumps of the wall clock and the end of the own certificate, in the log."""

from typing import Any

from dresfl.runtimes.clock import ClockWatch

DAY = 86400.0


class Clocks:
    """A wall clock and a steady one, set by hand."""

    def __init__(self, valid_days: float = 1000.0) -> None:
        self.wall, self.steady = 1e9, 5.0
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.watch = ClockWatch(self.log, 1e9 + valid_days * DAY, "it ends", lambda: self.wall, lambda: self.steady)

    def log(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    def after(self, seconds: float, jump: float = 0.0) -> list[str]:
        """The events of a look after so many seconds, in which somebody set the wall clock."""
        self.steady += seconds
        self.wall += seconds + jump
        before = len(self.lines)
        self.watch.look()
        return [event for event, _ in self.lines[before:]]


def test_a_jump_is_logged_once() -> None:
    clocks = Clocks()
    assert clocks.after(5) == []
    assert clocks.after(5, jump=3600) == ["clock jumped"]
    assert clocks.lines[-1][1]["seconds"] == 3600
    assert clocks.after(5) == []
    assert clocks.after(5, jump=-7200.5) == ["clock jumped"]
    assert clocks.lines[-1][1]["seconds"] == -7200.5


def test_a_clock_that_is_corrected_little_by_little_has_not_jumped() -> None:
    clocks = Clocks()
    assert [clocks.after(5, jump=0.0025) for _ in range(1000)] == [[]] * 1000


def test_a_certificate_is_warned_of_once_a_day_and_at_its_end() -> None:
    clocks = Clocks(valid_days=31.5)
    assert clocks.after(DAY) == []
    assert clocks.after(DAY) == ["certificate expires"]
    assert clocks.lines[-1][1]["days"] == 29.5
    assert clocks.after(60) == []
    assert clocks.after(DAY) == ["certificate expires"]
    assert clocks.after(29 * DAY) == ["certificate expired"]
    assert clocks.after(DAY) == []
