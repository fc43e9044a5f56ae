"""What gRPC's core writes to stderr, as events of the log."""

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dresfl.federation.actions import Value
from dresfl.runtimes.log import Log, log_to


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
    """
    sys.stderr.flush()
    real = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    lock = threading.Lock()

    def write(line: str) -> None:
        data = line.encode() + b"\n"
        with lock:
            while data:
                data = data[os.write(real, data) :]

    log = log_to(write)

    def follow() -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if _is_event(line):
                    write(line.rstrip("\n"))
                elif event := core_event(line.rstrip("\n")):
                    log(event[0], **event[1])

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield log
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)  # closes the pipe's writing end: the thread comes to its end
        thread.join(timeout=5)
