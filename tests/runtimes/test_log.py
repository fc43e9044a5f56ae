"""A log never holds up a run: what cannot be written is dropped and counted, what is repeated is counted."""

import json
import threading
from typing import Any

import pytest

from dresfl.runtimes.log import LONGEST_TEXT, MOST_WAITING, LogThread, Repeats, log_thread

LIMIT = 30.0  # seconds for what comes at once


class Pipe:
    """What a log writes to: full at first, or broken, or fine."""

    def __init__(self, full: bool = False) -> None:
        self.lines: list[dict[str, Any]] = []
        self.broken = False
        self.reached, self.room = threading.Event(), threading.Event()
        if not full:
            self.room.set()

    def write(self, line: str) -> None:
        self.reached.set()
        assert self.room.wait(LIMIT)
        if self.broken:
            raise BrokenPipeError
        self.lines.append(json.loads(line))


def test_lines_come_in_order_and_all_by_the_end() -> None:
    pipe = Pipe()
    with log_thread(pipe.write) as log:
        for client in range(500):
            log("joined", client=client, name="x" * 5000)
    assert [line["client"] for line in pipe.lines] == list(range(500))
    assert len(pipe.lines[0]["name"]) == LONGEST_TEXT


def test_nobody_waits_for_a_full_pipe() -> None:
    """Lines are dropped, and their number is said as soon as there is room."""
    pipe = Pipe(full=True)
    log = LogThread(pipe.write)
    log("first")
    assert pipe.reached.wait(LIMIT)
    for client in range(MOST_WAITING + 300):  # in this thread: it would hang here
        log("joined", client=client)
    pipe.room.set()
    while log._waiting:  # until there is room
        threading.Event().wait(0.001)
    log("later")
    assert log.close(LIMIT)
    assert [line["event"] for line in pipe.lines[-2:]] == ["log lines dropped", "later"]
    assert pipe.lines[-2]["count"] == 300
    assert len(pipe.lines) == 1 + MOST_WAITING + 2


def test_the_end_does_not_wait_for_ever() -> None:
    pipe = Pipe(full=True)
    log = LogThread(pipe.write)
    log("first")
    assert pipe.reached.wait(LIMIT)
    assert not log.close(seconds=0.01)
    log("too late")
    pipe.room.set()
    assert log.close(LIMIT)


def test_a_broken_pipe_ends_nothing() -> None:
    pipe = Pipe()
    pipe.broken = True
    log = LogThread(pipe.write)
    for client in range(5):
        log("joined", client=client)
    while log._waiting or log._dropped < 5:
        threading.Event().wait(0.001)
    pipe.broken = False
    log("back")
    assert log.close(LIMIT)
    assert [line["event"] for line in pipe.lines] == ["log lines dropped", "back"]
    assert pipe.lines[0]["count"] == 5


# -- repeated events -------------------------------------------------------------------------------------------


def test_the_first_are_written_and_then_there_is_one_line_for_many() -> None:
    repeats = Repeats()
    written, summaries = 0, []
    for step in range(10_000):  # a flood of a hundred seconds
        now = step / 100
        written += repeats.admit("refused", 3, now)
        summaries += repeats.due(now)
    summaries += repeats.due(1000.0)
    assert written == 20
    assert len(summaries) == 10
    assert sum(count for _, _, count in summaries) == 10_000 - 20
    assert repeats.due(2000.0) == []
    assert repeats._windows == {}


def test_a_flood_of_one_hides_nobody_else() -> None:
    repeats = Repeats()
    for _ in range(1000):
        repeats.admit("refused", 3, 0.0)
    assert repeats.admit("refused", 4, 0.0)
    assert repeats.admit("joined", 3, 0.0)
    assert not repeats.admit("refused", 3, 0.0)


def test_after_a_quiet_time_events_are_written_again() -> None:
    repeats = Repeats()
    for _ in range(1000):
        repeats.admit("refused", 3, 0.0)
    assert repeats.due(10.0) == [("refused", 3, 980)]
    assert not repeats.admit("refused", 3, 11.0)  # it goes on
    assert repeats.due(20.0) == [("refused", 3, 1)]
    assert repeats.due(30.0) == []
    assert repeats.admit("refused", 3, 31.0)


def test_events_now_and_then_are_all_written() -> None:
    repeats = Repeats()
    assert all(repeats.admit("progress", None, float(second)) for second in range(1000))
    assert repeats.due(5000.0) == []


def test_a_flood_through_the_log() -> None:
    pipe = Pipe()
    with log_thread(pipe.write) as log:
        for number in range(5000):
            log("refused", client=2, name=f"peer {number}")
    assert [line["event"] for line in pipe.lines] == ["refused"] * 20 + ["repeated"]
    assert (pipe.lines[-1]["what"], pipe.lines[-1]["client"], pipe.lines[-1]["count"]) == ("refused", 2, 4980)


@pytest.mark.parametrize("lines", [100])
def test_a_traceback_is_not_cut_short(lines: int) -> None:
    pipe = Pipe()
    with log_thread(pipe.write) as log:
        for number in range(lines):
            log("stderr", text=f"line {number}")
    assert len(pipe.lines) == lines
