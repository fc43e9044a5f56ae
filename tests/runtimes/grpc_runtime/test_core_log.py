"""Lines of gRPC's core, as events of the log."""

import contextlib
import json
import os
import threading

import pytest

from dresfl.runtimes.grpc_runtime.core_log import core_event, core_lines_as_events
from dresfl.runtimes.log import LONGEST_TEXT


def test_only_events_pass_as_events(capfd: pytest.CaptureFixture[str]) -> None:
    event = '{"time": "now", "event": "joined", "client": 3}'
    others = ["{", '{"key": "value"}', '{"event": 5}', '{"event": "cut", ', '{"a":' * 100_000]
    with core_lines_as_events() as log:
        for line in (event, *others):
            write_all(2, line.encode() + b"\n")
        log("own")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert json.loads(event) in lines
    assert [line["text"] for line in lines if line["event"] == "stderr"] == [text[:LONGEST_TEXT] for text in others]
    assert len(lines) == len(others) + 2


def test_a_full_stderr_stops_neither_the_core_nor_the_log() -> None:
    """Nobody reads: what is written is dropped, and what is read later says how much."""
    reading, writing = os.pipe()
    kept = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        with core_lines_as_events() as log:
            for number in range(60_000):  # in this thread: it would hang here
                with contextlib.suppress(BlockingIOError):
                    os.write(2, b"E1115 12:40:47.759133    1034 other.cc:1] bad %d\n" % number)
                if number % 5 == 0:
                    log("joined", client=number)
            found, ended = list[str](), threading.Event()

            def read() -> None:
                with open(reading, encoding="utf-8") as pipe:
                    for line in pipe:
                        found.append(line)
                        if "first line that found room" in line:
                            ended.set()

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            number = 0
            while not ended.wait(0.01):
                log("first line that found room", client=(number := number + 1))
    finally:
        os.dup2(kept, 2)  # the last writing end of the pipe
        os.close(kept)
    reader.join(30)
    assert not reader.is_alive()
    events = [json.loads(line) for line in found]
    counts = [event["count"] for event in events if event["event"] == "log lines dropped"]
    assert sum(counts) > 5000
    assert len(events) < 12_000 - 5000


def test_a_closed_stderr_ends_nothing() -> None:
    reading, writing = os.pipe()
    kept = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    os.close(reading)
    try:
        with core_lines_as_events() as log:
            for client in range(100):
                log("joined", client=client)
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        with contextlib.suppress(BlockingIOError):
            data = data[os.write(descriptor, data) :]


def test_lines_of_the_core() -> None:
    head = "I1115 12:40:47.759133    1034 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: "
    known = {
        "error:100000b8:SSL routines:OPENSSL_internal:NO_SHARED_CIPHER: Invalid certificate": "1.3",
        "error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid certificate": "plaintext",
        "error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired": "expired",
        "something new": "something new",
    }
    for text, meaning in known.items():
        event = core_event(head + text)
        assert event is not None
        assert event[0] == "refused"
        assert meaning in str(event[1]["reason"])
    assert core_event("I1115 12:40:47.759133    1034 other.cc:1] fine") is None
    assert core_event("E1115 12:40:47.759133    1034 other.cc:1] bad") == ("transport", {"text": "bad"})
    assert core_event("Traceback (most recent call last):") is not None
    assert core_event("") is None
