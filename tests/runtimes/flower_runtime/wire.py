"""A stand-in for Flower: nodes in threads, a letter answered by a fresh Site each time, and faults on request."""

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from consortium import OPTIMIZER, Consortium
from dresfl.protocol import RoundRecord, Session, Training
from dresfl.runtimes.flower_runtime.coordinator import Coordinator, Settings
from dresfl.runtimes.flower_runtime.letters import Kind
from dresfl.runtimes.flower_runtime.post import Failure, Post
from dresfl.runtimes.flower_runtime.site import Site

Fault = Callable[[int, Kind, bytes], bytes | Failure | None]


def site_of(consortium: Consortium, index: int) -> Site:
    """A client as a letter finds it: made anew over its store."""
    store = consortium.folder / f"store-{index}"
    return Site(consortium.agreement, consortium.sites[index], consortium.roster, store, lambda: consortium.rows[index])


@dataclass
class Wire:
    """Carries letters. node 100+i is client i. `fault` may swallow, change or fail a reply."""

    consortium: Consortium
    fault: Fault = lambda node, kind, reply: reply
    away: set[int] = field(default_factory=set)
    sent: list[tuple[int, str]] = field(default_factory=list)
    seen: list[bytes] = field(default_factory=list)  # everything that went over the wire

    def __post_init__(self) -> None:
        self._inboxes = {100 + i: queue.SimpleQueue() for i in range(self.consortium.clients)}
        self._replies: dict[str, bytes | Failure] = {}
        for node in self._inboxes:
            threading.Thread(target=self._serve, args=(node,), daemon=True).start()

    def _serve(self, node: int) -> None:
        while True:
            number, data = self._inboxes[node].get()
            reply = site_of(self.consortium, node - 100).handle(data)
            self.seen += [data, reply]
            passed = self.fault(node, Kind(data[1]), reply)
            if passed is not None:
                self._replies[number] = passed

    def nodes(self) -> Collection[int]:
        return set(self._inboxes) - self.away

    def send(self, letters: Sequence[tuple[int, str, bytes]], ttl: float) -> list[str | None]:
        ids: list[str | None] = []
        for node, kind, data in letters:
            self.sent.append((node, kind))
            ids.append(f"{node}/{len(self.sent)}")
            self._inboxes[node].put((ids[-1], data))
        return ids

    def fetch(self, message_id: str) -> bytes | Failure | None:
        return self._replies.pop(message_id, None)


@dataclass
class Run:
    """A coordinator over a wire, what it logged, and how its rounds ended."""

    consortium: Consortium
    settings: Settings = field(default_factory=lambda: Settings(deadline=60.0, linger=60.0))
    events: list[tuple[str, dict]] = field(default_factory=list)
    records: list[RoundRecord] = field(default_factory=list)

    def make_server(self, session: Session) -> Training:
        return Training(session, OPTIMIZER, self.consortium.rounds)

    def watch(self, record: RoundRecord, answers: int) -> None:
        self.records.append(record)

    def play(self, wire: Wire) -> Training:
        folder = self.consortium.folder / "run"
        folder.mkdir(exist_ok=True)
        self.coordinator = Coordinator(
            self.settings,
            self.consortium.agreement,
            self.consortium.server,
            self.consortium.roster,
            folder,
            self.make_server,
            self.watch,
            lambda event, **fields: self.events.append((event, fields)),
        )
        return self.coordinator.run(Post(wire, 60.0))

    def of(self, event: str) -> list[dict]:
        return [fields for name, fields in self.events if name == event]
