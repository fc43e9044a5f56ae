"""Bundles under way: one thread for each, so that one that is stuck holds up no other.

Flower says that a reply is there before its bytes are; if its node dies in between, fetching it blocks for minutes.
"""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, final

_FIRST_POLL = 0.05  # seconds between two looks for a reply; then longer each time
_LONGEST_POLL = 0.5
_MOST_ERRORS = 8  # of Flower's connection, one after the other: it may be back at the next attempt

_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class Failure:
    """Flower's word that there will be no reply."""

    reason: str


class Carrier(Protocol):
    """What is needed of Flower. `fetch` is called from many threads at once."""

    def nodes(self) -> Collection[int]:
        """The nodes that are online, as far as is known."""

    def send(self, bundles: Sequence[tuple[int, bytes]], ttl: float) -> list[str | None]:
        """Send a bundle to each of these nodes; Flower's ids of them, None for one that it did not take."""

    def fetch(self, flower_id: str) -> bytes | Failure | None:
        """The reply to a bundle; None if there is none yet."""


@final
@dataclass(frozen=True)
class Arrival:
    """A reply, or the reason why there is none."""

    ticket: int
    node: int
    request: bytes
    reply: bytes | Failure


@final
class Post:
    """Sends bundles and gathers what comes back, in the order of coming."""

    def __init__(self, carrier: Carrier, ttl: float) -> None:
        """ttl: seconds after which a bundle and its reply are given up for good."""
        self._carrier, self._ttl = carrier, ttl
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._tickets = itertools.count()
        self._closed = threading.Event()
        self._errors = 0  # in a row, when asked who is there

    def nodes(self, known: set[int]) -> set[int]:
        """The nodes that are online; those known before, if Flower cannot say just now."""
        try:
            found = set(self._carrier.nodes())
        except Exception:  # whatever Flower's connection raises; see _MOST_ERRORS
            self._errors += 1
            if self._errors > _MOST_ERRORS:
                raise
            return known
        self._errors = 0
        return found

    def send(self, bundles: Sequence[tuple[int, bytes]]) -> list[int]:
        """Send a bundle to each of these nodes; a ticket for each, which its arrival will have."""
        tickets = [next(self._tickets) for _ in bundles]
        try:
            ids = self._carrier.send(bundles, self._ttl)
        except Exception as error:
            _log.warning("%s: %s", type(error).__name__, error)
            ids = [None] * len(bundles)
        for ticket, (node, data), flower_id in zip(tickets, bundles, ids, strict=True):
            if flower_id is None:
                self._arrivals.put(Arrival(ticket, node, data, Failure("Flower did not take the bundle")))
            else:
                watch = (ticket, node, data, flower_id)
                threading.Thread(target=self._watch, args=watch, name=f"reply {ticket}", daemon=True).start()
        return tickets

    def _watch(self, ticket: int, node: int, request: bytes, flower_id: str) -> None:
        pause, until = _FIRST_POLL, time.monotonic() + self._ttl
        reply: bytes | Failure | None = None
        errors = 0
        while reply is None:
            if self._closed.wait(pause):
                return
            pause = min(1.3 * pause, _LONGEST_POLL)
            try:
                reply = self._carrier.fetch(flower_id)
                errors = 0
            except Exception as error:
                errors += 1
                if errors > _MOST_ERRORS:
                    reply = Failure(f"{type(error).__name__}: {error}")
            if reply is None and time.monotonic() > until:
                reply = Failure("no reply came in time")
        self._arrivals.put(Arrival(ticket, node, request, reply))

    def next(self, seconds: float) -> Arrival | None:
        """What arrives within so many seconds, if anything does."""
        try:
            return self._arrivals.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def close(self) -> None:
        """Wait for nothing any more."""
        self._closed.set()
