"""Logs as JSON lines: what happened, to whom, why. No key, share or row is logged."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from dresfl.federation.actions import Value


class Log(Protocol):
    """Writes one event. Called as log("joined", client=3)."""

    def __call__(self, event: str, **fields: Value) -> None: ...


def log_to(write: Callable[[str], object]) -> Log:
    """A log that hands each JSON line to `write`."""

    def log(event: str, **fields: Value) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        write(json.dumps({"time": now, "event": event, **fields}))

    return log
