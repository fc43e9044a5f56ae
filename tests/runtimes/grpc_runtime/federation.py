"""A small federation on loopback: a coordinator and clients as tasks in one process, over real TLS."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import torch

from consortium import OPTIMIZER, Consortium
from dresfl.federation import CoordinatorSettings, RoundTiming, Terms, Windows, Workplace
from dresfl.model import weights_sha256
from dresfl.protocol import Session, Task, Training
from dresfl.runtimes.coordinator_host import CoordinatorHost
from dresfl.runtimes.grpc_runtime import ConnectSettings, GrpcClient, GrpcCoordinator, ListenSettings
from dresfl.runtimes.log import Log, log_to
from dresfl.storage import ShareStore, data_digest

T = TypeVar("T")

LIMIT = 90.0  # seconds: the bound of everything that a test waits for; on an idle machine it comes within two


async def within(what: str, awaitable: Awaitable[T], seconds: float = LIMIT, report: Callable[[], str] = str) -> T:
    """What is waited for; or an AssertionError that says what it was, and what had happened by then."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await awaitable
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"waited {seconds} seconds for {what}\n{report()}") from None


class Events:
    """A log that remembers, and can be waited on. Any thread may write to it."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self.log: Log = log_to(self._take)

    def _take(self, line: str) -> None:
        self.lines.append(json.loads(line))
        self._loop.call_soon_threadsafe(self._news.set)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    def last(self, count: int = 15) -> str:
        return "\n".join(map(str, self.lines[-count:]))

    async def until(self, what: str, condition: Callable[["Events"], bool], seconds: float = LIMIT) -> None:
        """Wait until a condition holds; `what` is the condition in words."""
        await within(what, self._until(condition), seconds, self.last)

    async def _until(self, condition: Callable[["Events"], bool]) -> None:
        while not condition(self):
            self._news.clear()
            await self._news.wait()

    async def seen(self, event: str, count: int = 1) -> dict[str, Any]:
        await self.until(f"event {event!r}, {count} of them", lambda events: len(events.of(event)) >= count)
        return self.of(event)[count - 1]


class Pause:
    """A point in the run where the machine waits for the test."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reached = asyncio.Event()
        self._over = threading.Event()

    def hold(self) -> None:
        """The machine's thread is here."""
        self._loop.call_soon_threadsafe(self._reached.set)
        if not self._over.wait(LIMIT):
            raise AssertionError(f"a pause took more than {LIMIT} seconds")

    async def __aenter__(self) -> None:
        await within("the round after which the run pauses", self._reached.wait())

    async def __aexit__(self, *_: object) -> None:
        self._over.set()


class Network:
    """A running coordinator and its clients."""

    def __init__(
        self,
        consortium: Consortium,
        timing: RoundTiming | None = None,
        linger: float = 5.0,
        keepalive: float = 20.0,
        windows: Windows | None = None,
        handshake: float = 10.0,
    ) -> None:
        self.consortium = consortium
        self.settings = CoordinatorSettings(timing or RoundTiming(), linger, windows or Windows())
        self.keepalive, self.handshake = keepalive, handshake
        self.coordinator_events = Events()
        self.client_events = [Events() for _ in consortium.clients_keys]
        self.port = 0
        self.wall_ahead = 0.0  # seconds by which the coordinator's wall clock is wrong
        self.host: CoordinatorHost | None = None
        self.coordinator: GrpcCoordinator | None = None
        self.records: list[Any] = []
        self.pauses: dict[int, Pause] = {}
        self.saved: dict[str, torch.Tensor] | None = None  # the checkpoint
        self.make_training: Callable[[Session], Training] = self._make_server

    def _make_server(self, session: Session) -> Training:
        server = Training(session, OPTIMIZER, self.consortium.rounds)
        if self.saved is not None:
            server.restore(self.saved)
        return server

    @property
    def machine(self) -> Any:
        """The coordinator's machine."""
        assert self.host is not None
        return self.host.machine

    @property
    def terms(self) -> Terms:
        """The run's terms, as the coordinator's disk has them."""
        path = self.consortium.folder / "coordinator" / "terms.json"
        return Terms.from_json(path.read_bytes(), self.consortium.agreement)

    def _watch(self, record: Any, answers: int) -> None:
        self.records.append(record)
        training = self.machine.training
        self.saved = None if training is None else training.state()
        if record.round_number in self.pauses:
            self.pauses.pop(record.round_number).hold()

    def pause_after(self, number: int) -> "Pause":
        """Stop the rounds after this one, until the pause is over."""
        self.pauses[number] = Pause()
        return self.pauses[number]

    async def start_coordinator(self) -> asyncio.Task[torch.Tensor]:
        """A coordinator, listening when this returns; on the port of the one before, if there was one."""
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        consortium, log = self.consortium, self.coordinator_events.log
        folder = consortium.folder / "coordinator"
        folder.mkdir(parents=True, exist_ok=True)
        self.host = CoordinatorHost(
            self.settings,
            consortium.agreement,
            consortium.coordinator,
            consortium.roster,
            folder,
            self.make_training,
            self._watch,
            log,
        )
        settings = ListenSettings(f"127.0.0.1:{self.port}", self.keepalive, self.handshake)
        credentials = consortium.credentials(consortium.coordinator)
        self.coordinator = GrpcCoordinator(settings, self.host, credentials, log, lambda: time.time() + self.wall_ahead)
        task = asyncio.create_task(self._serve(self.host, self.coordinator, listening))
        both = asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
        await within("the coordinator to listen", both, report=self.report)
        if task.done():
            task.result()
        self.port = listening.result()
        return task

    async def _serve(self, host: CoordinatorHost, coordinator: GrpcCoordinator, listening: Any) -> torch.Tensor:
        await coordinator.run(listening.set_result)
        weights = host.machine.model if host.machine.training is None else host.machine.training.weights
        assert weights is not None
        return weights

    def connect_settings(self) -> ConnectSettings:
        return ConnectSettings(f"127.0.0.1:{self.port}", self.keepalive, first_delay=0.05, longest_delay=0.2)

    def start_client(self, index: int, **changes: Any) -> asyncio.Task[Task]:
        return asyncio.create_task(self._client(index, **changes))

    async def _client(self, index: int, **changes: Any) -> Task:
        consortium = self.consortium
        rows = changes.pop("rows", consortium.rows[index])
        identity = consortium.clients_keys[index]
        credentials = changes.pop("credentials", None) or consortium.credentials(identity)
        agreement = changes.pop("agreement", consortium.agreement)
        folder = changes.pop("folder", consortium.folder / f"client-{index}")
        with ShareStore.open(folder, data_digest(*rows), allowance=consortium.allowance) as store:
            keep = changes.pop("keep", lambda task: None)
            workplace = Workplace(
                agreement, credentials.identity, credentials.roster, store, lambda: rows, keep_model=keep
            )
            log = self.client_events[index].log
            return await GrpcClient(self.connect_settings(), agreement, credentials, workplace, log, folder).run()

    async def finish(self, coordinator: asyncio.Task[torch.Tensor], clients: dict[int, asyncio.Task[Task]]) -> str:
        """Wait for the end of a run; the digest of its weights, which all these clients have."""
        finals = await within("the clients' end", asyncio.gather(*clients.values()), report=self.report)
        weights = weights_sha256(await within("the coordinator's end", coordinator, report=self.report))
        assert {weights_sha256(task.weights) for task in finals} <= {weights}
        return weights

    def report(self) -> str:
        """The last that everybody said."""
        parts = [("coordinator", self.coordinator_events)]
        parts += [(f"client {i}", events) for i, events in enumerate(self.client_events)]
        return "\n".join(f"{name}:\n{events.last()}" for name, events in parts)

    def start_clients(self, but: tuple[int, ...] = ()) -> dict[int, asyncio.Task[Task]]:
        return {i: self.start_client(i) for i in range(self.consortium.clients) if i not in but}


async def stop(task: asyncio.Task[Any]) -> None:
    """End a client or a coordinator as Ctrl-C would."""
    task.cancel()
    await within("a task to end that was cancelled", asyncio.wait({task}))
    assert task.cancelled()
