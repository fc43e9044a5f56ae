"""What gRPC's core writes to stderr, as events of the log."""

import contextlib
import fcntl
import json
import os
import re
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO

from dresfl.federation.actions import Value
from dresfl.runtimes.log import Log, LogThread

LONGEST_LINE = 8192  # bytes
_PIPE_BYTES = 2**20


def _is_event(line: str) -> bool:
    """Whether a line is one that a log has written."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("event"), str)


# gRPC's core writes to file descriptor 2 by itself, for example
#   I1115 12:40:47.759133    1034 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: …
_CORE_LINE = re.compile(r"([IWEF])\d{4} [\d:.]+ +\d+ ([\w.]+:\d+)\] (.*)")
_HANDSHAKE = re.compile(r"Handshake failed with error \w+: (?:error:\w+:SSL routines:OPENSSL_internal:)?(.*)")
_MEANING = {
    "WRONG_VERSION_NUMBER": "not TLS: plaintext, or a TLS version below 1.3",
    "HTTP_REQUEST": "not TLS: plaintext HTTP",
    "NO_SHARED_CIPHER": "a TLS version below 1.3",
    "UNSUPPORTED_PROTOCOL": "a TLS version below 1.3",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no client certificate",
    "CERTIFICATE_VERIFY_FAILED": "the certificate is not valid here",
}


def core_event(line: str) -> tuple[str, dict[str, Value]] | None:
    """The event in a line of gRPC's core; None if it is not worth one.

    >>> core_event("I1115 12:40:47.7  1034 ssl.cc:2563] Handshake failed with error X: HTTP_REQUEST: y")[0]
    'refused'
    """
    found = _CORE_LINE.match(line)
    if not found:
        return ("stderr", {"text": line}) if line.strip() else None
    level, _, text = found.groups()
    handshake = _HANDSHAKE.match(text)
    if handshake:
        code, _, detail = handshake[1].partition(": ")
        detail = "" if detail.startswith("Invalid certificate verification context") else detail
        meaning = _MEANING.get(code, code)
        return "refused", {"where": "tls", "reason": f"{meaning}: {detail}" if detail else meaning}
    return ("transport", {"text": text}) if level in "EF" else None


@contextmanager
def core_lines_as_events() -> Iterator[Log]:
    """For as long as it lasts, what gRPC's core writes to stderr becomes events; yields the log to use meanwhile.

    Descriptor 2 is led through a pipe, so this is for a process that is a coordinator or a client and nothing else.
    Nobody waits for stderr: what finds no room in the pipe is lost, and `LogThread` never makes anybody wait.
    """
    sys.stderr.flush()
    real = os.dup(2)
    log = LogThread(partial(_write_to, real))
    reading, writing = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # not allowed: then the pipe stays small
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.set_blocking(writing, False)
    os.dup2(writing, 2)
    os.close(writing)

    def follow() -> None:
        with open(reading, "rb") as pipe:
            for line in _lines(pipe):
                if _is_event(line):
                    log.pass_on(line)
                elif event := core_event(line):
                    log(event[0], **event[1])

    thread = threading.Thread(target=follow, name="core log", daemon=True)
    thread.start()
    try:
        yield log
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os.dup2(real, 2)  # closes the pipe's writing end: the thread comes to its end
        thread.join(timeout=5)
        if log.close():
            os.close(real)


def _lines(pipe: BinaryIO) -> Iterator[str]:
    """The lines that come, the end of very long ones cut off."""
    while piece := pipe.readline(LONGEST_LINE):
        line = piece.rstrip(b"\n")
        while not piece.endswith(b"\n") and (piece := pipe.readline(LONGEST_LINE)):
            pass
        yield line.decode("utf-8", "replace")


def _write_to(descriptor: int, line: str) -> None:
    """Write a line to a descriptor, whether it blocks or not."""
    data = line.encode() + b"\n"
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # as whoever started this process has set it
            select.select([], [descriptor], [])
