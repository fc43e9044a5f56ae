"""A small federation on loopback: a coordinator and clients as tasks in one process, over real TLS."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from consortium import OPTIMIZER, Consortium
from dresfl.federation import CoordinatorSettings, RoundTiming, Windows, Workplace
from dresfl.protocol import Session, Task, Training
from dresfl.runtimes.coordinator_host import CoordinatorHost
from dresfl.runtimes.grpc_runtime import ConnectSettings, GrpcClient, GrpcCoordinator, ListenSettings
from dresfl.runtimes.log import Log, log_to
from dresfl.storage import ShareStore, data_digest


@dataclass
class Events:
    """A log that remembers, and can be waited on."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._news = asyncio.Event()
        self.log: Log = log_to(self._take)

    def _take(self, line: str) -> None:
        self.lines.append(json.loads(line))
        self._news.set()

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    async def until(self, condition: Callable[["Events"], bool], seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while not condition(self):
                self._news.clear()
                await self._news.wait()

    async def seen(self, event: str, count: int = 1) -> dict[str, Any]:
        await self.until(lambda events: len(events.of(event)) >= count)
        return self.of(event)[count - 1]


class Pause:
    """A point in the run where the rounds wait for the test."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reached = asyncio.Event()
        self._over = threading.Event()

    def hold(self) -> None:
        """The rounds' thread is here."""
        self._loop.call_soon_threadsafe(self._reached.set)
        assert self._over.wait(60)

    async def __aenter__(self) -> None:
        await asyncio.wait_for(self._reached.wait(), 60)

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
    ) -> None:
        self.consortium = consortium
        self.settings = CoordinatorSettings(timing or RoundTiming(), linger, windows or Windows())
        self.keepalive = keepalive
        self.coordinator_events = Events()
        self.client_events = [Events() for _ in consortium.clients_keys]
        self.port = 0
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

    def _watch(self, record: Any, answers: int) -> None:
        self.records.append(record)
        self.saved = self.machine.training.state()
        if record.round_number in self.pauses:
            self.pauses.pop(record.round_number).hold()

    def pause_after(self, number: int) -> "Pause":
        """Stop the rounds after this one, until the pause is over."""
        self.pauses[number] = Pause()
        return self.pauses[number]

    async def start_coordinator(self) -> asyncio.Task[Training]:
        """A coordinator, listening when this returns; on the port of the one before, if there was one."""
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        consortium, log = self.consortium, self.coordinator_events.log
        folder = consortium.folder / "coordinator"
        folder.mkdir(exist_ok=True)
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
        settings = ListenSettings(f"127.0.0.1:{self.port}", self.keepalive)
        credentials = consortium.credentials(consortium.coordinator)
        self.coordinator = GrpcCoordinator(settings, self.host, credentials, log)
        task = asyncio.create_task(self._serve(self.host, self.coordinator, listening))
        await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        self.port = listening.result()
        return task

    async def _serve(self, host: CoordinatorHost, coordinator: GrpcCoordinator, listening: Any) -> Training:
        await coordinator.run(listening.set_result)
        assert host.machine.training is not None
        return host.machine.training

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
        with ShareStore.open(folder, data_digest(*rows)) as store:
            keep = changes.pop("keep", lambda task: None)
            workplace = Workplace(
                agreement, credentials.identity, credentials.roster, store, lambda: rows, keep_model=keep
            )
            log = self.client_events[index].log
            return await GrpcClient(self.connect_settings(), agreement, credentials, workplace, log).run()

    def start_clients(self, but: tuple[int, ...] = ()) -> dict[int, asyncio.Task[Task]]:
        return {i: self.start_client(i) for i in range(self.consortium.clients) if i not in but}
