"""A stand-in for Flower: nodes in threads, a letter answered by a fresh Site each time, and faults on request."""

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dresfl.flower.coordinator import Coordinator, Settings
from dresfl.flower.letters import Kind
from dresfl.flower.post import Failure, Post
from dresfl.flower.site import Site
from dresfl.local import LocalFederation, no_dropouts
from dresfl.model import Dense, Square, weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.party import Agreement, make_session
from dresfl.protocol import RoundRecord, Server, Session
from dresfl.sealing import Identity, Roster

OPTIMIZER = Optimizer(method="momentum", learning_rate=0.05, schedule="constant")
Fault = Callable[[int, Kind, bytes], bytes | Failure | None]


@dataclass
class Consortium:
    """Everybody's keys and rows."""

    folder: Path
    clients: int = 7
    rounds: int = 6

    def __post_init__(self) -> None:
        self.server = Identity.create("coordinator")
        self.sites = [Identity.create(f"site-{i}") for i in range(self.clients)]
        self.roster = Roster.create(self.server, self.server.card, [site.card for site in self.sites])
        self.agreement = Agreement(
            layers=(Dense(4), Square(), Dense(3)),
            input_shape=(5,),
            num_clients=self.clients,
            rounds=self.rounds,
            batch_size=8,
            roster=self.roster.digest,
        )
        generator = torch.Generator().manual_seed(7)
        self.rows = []
        for i in range(self.clients):
            inputs = torch.rand((9 + i, 5), generator=generator)
            labels = torch.randint(3, (9 + i,), generator=generator)
            targets = torch.nn.functional.one_hot(labels, 3).to(torch.int32)
            self.rows.append((self.agreement.quantizer.integers(inputs), targets))

    def site(self, index: int) -> Site:
        return Site(
            self.agreement,
            self.sites[index],
            self.roster,
            self.folder / f"store-{index}",
            lambda: self.rows[index],
        )

    def expected(self) -> str:
        """The weights of an undisturbed run in one process."""
        session = make_session(self.agreement, tuple(len(x) for x, _ in self.rows), b"", b"")
        server = Server(session, OPTIMIZER, self.rounds)
        federation = LocalFederation(session, server, self.rows, no_dropouts(self.clients, 0), "coded")
        while not server.done:
            federation.run_round()
        return weights_sha256(server.weights)


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
            reply = self.consortium.site(node - 100).handle(data)
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

    def make_server(self, session: Session) -> Server:
        return Server(session, OPTIMIZER, self.consortium.rounds)

    def watch(self, record: RoundRecord, answers: int) -> None:
        self.records.append(record)

    def play(self, wire: Wire) -> Server:
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
