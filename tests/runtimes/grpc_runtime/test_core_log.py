"""Lines of gRPC's core, as events of the log."""

import json
import os

import pytest

from dresfl.runtimes.grpc_runtime.core_log import core_event, core_lines_as_events


def test_only_events_pass_as_events(capfd: pytest.CaptureFixture[str]) -> None:
    event = '{"time": "now", "event": "joined", "client": 3}'
    others = ["{", '{"key": "value"}', '{"event": 5}', '{"event": "cut", ', '{"a":' * 100_000]
    with core_lines_as_events() as log:
        for line in (event, *others):
            data = line.encode() + b"\n"
            while data:
                data = data[os.write(2, data) :]
        log("own")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert json.loads(event) in lines
    assert [line["text"] for line in lines if line["event"] == "stderr"] == others
    assert len(lines) == len(others) + 2


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
