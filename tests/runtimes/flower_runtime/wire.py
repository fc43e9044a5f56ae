"""A stand-in for Flower: nodes in threads, each bundle answered by a fresh FlowerClient, and faults on request."""

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from consortium import OPTIMIZER, Consortium
from dresfl.federation import CoordinatorSettings, RoundTiming
from dresfl.federation.messages import FROM_COORDINATOR, Message, decode
from dresfl.protocol import RoundRecord, Session, Training
from dresfl.runtimes.coordinator_host import CoordinatorHost
from dresfl.runtimes.flower_runtime.bundles import Request
from dresfl.runtimes.flower_runtime.client import FlowerClient
from dresfl.runtimes.flower_runtime.coordinator import WINDOWS, FlowerCoordinator
from dresfl.runtimes.flower_runtime.post import Failure, Post

Kinds = tuple[type[Message], ...]
Fault = Callable[[int, Kinds, bytes], bytes | Failure | None]


def client_of(consortium: Consortium, index: int) -> FlowerClient:
    """A client as a bundle finds it: made anew over its store."""
    identity, rows = consortium.clients_keys[index], consortium.rows[index]
    folder = consortium.folder / f"store-{index}"
    return FlowerClient(consortium.agreement, identity, consortium.roster, folder, lambda: rows, silent)


def silent(event: str, **fields: object) -> None:
    """A log that nobody reads."""


def settings(deadline: float = 60.0, linger: float = 60.0, **timing: object) -> CoordinatorSettings:
    return CoordinatorSettings(RoundTiming(deadline=deadline, **timing), linger, WINDOWS)  # type: ignore[arg-type]


@dataclass
class Wire:
    """Carries bundles. node 100+i is client i. `fault` may swallow, change or fail a reply."""

    consortium: Consortium
    fault: Fault = lambda node, kinds, reply: reply
    away: set[int] = field(default_factory=set)
    lasting: bool = False  # whether clients stay in memory from one bundle to the next, as a worker does
    sent: list[tuple[int, Kinds]] = field(default_factory=list)  # to which node, which messages; none: connect
    seen: list[bytes] = field(default_factory=list)  # everything that went over the wire

    def __post_init__(self) -> None:
        self._clients: dict[int, FlowerClient] = {}
        self.client_of_node = {100 + i: i for i in range(self.consortium.clients)}
        self._inboxes: dict[int, queue.SimpleQueue[tuple[str, bytes]]] = {}
        self._replies: dict[str, bytes | Failure] = {}
        for node in self.client_of_node:
            self.start(node)

    def start(self, node: int) -> None:
        self._inboxes[node] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(node, self._inboxes[node]), daemon=True).start()

    def _serve(self, node: int, inbox: "queue.SimpleQueue[tuple[str, bytes]]") -> None:
        while True:
            number, data = inbox.get()
            index = self.client_of_node[node]
            client = self._clients.get(index) if self.lasting else None
            client = self._clients[index] = client or client_of(self.consortium, index)
            reply = client.handle(data)
            self.seen += [data, reply]
            passed = self.fault(node, self.kinds(data), reply)
            if passed is not None:
                self._replies[number] = passed

    def kinds(self, data: bytes) -> Kinds:
        messages = Request.decode(data, self.consortium.roster).messages
        return tuple(type(decode(message, FROM_COORDINATOR)) for message in messages)

    def nodes(self) -> Collection[int]:
        return set(self._inboxes) - self.away

    def send(self, bundles: Sequence[tuple[int, bytes]], ttl: float) -> list[str | None]:
        ids: list[str | None] = []
        for node, data in bundles:
            self.sent.append((node, self.kinds(data)))
            ids.append(f"{node}/{len(self.sent)}")
            self._inboxes[node].put((ids[-1] or "", data))
        return ids

    def fetch(self, flower_id: str) -> bytes | Failure | None:
        return self._replies.pop(flower_id, None)


@dataclass
class Run:
    """A coordinator over a wire, what it logged, and how its rounds ended."""

    consortium: Consortium
    settings: CoordinatorSettings = field(default_factory=settings)
    pause: float = 0.05
    events: list[tuple[str, dict]] = field(default_factory=list)
    records: list[RoundRecord] = field(default_factory=list)

    def make_training(self, session: Session) -> Training:
        return Training(session, OPTIMIZER, self.consortium.rounds)

    def watch(self, record: RoundRecord, answers: int) -> None:
        self.records.append(record)

    def log(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    def play(self, wire: Wire) -> Training | None:
        folder = self.consortium.folder / "run"
        folder.mkdir(exist_ok=True)
        identity, roster = self.consortium.coordinator, self.consortium.roster
        self.host = CoordinatorHost(
            self.settings, self.consortium.agreement, identity, roster, folder, self.make_training, self.watch, self.log
        )
        self.coordinator = FlowerCoordinator(
            self.host, identity, roster, self.log, self.settings.timing.deadline, self.pause
        )
        self.coordinator.run(Post(wire, 60.0))
        return self.host.machine.training

    def of(self, event: str) -> list[dict]:
        return [fields for name, fields in self.events if name == event]
