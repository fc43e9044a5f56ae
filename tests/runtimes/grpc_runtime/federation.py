"""A small federation on loopback: a hub and sites as tasks in one process, over real TLS."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from consortium import OPTIMIZER, Consortium
from dresfl.protocol import Session, Task, Training
from dresfl.runtimes.grpc_runtime import Hub, HubSettings, Log, Site, SiteSettings, log_to
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
    """A running hub and its sites."""

    def __init__(self, consortium: Consortium, **settings: Any) -> None:
        self.consortium = consortium
        self.settings = HubSettings(**{"folder": consortium.folder / "hub", "linger": 5.0, **settings})
        self.hub_events = Events()
        self.site_events = [Events() for _ in consortium.sites]
        self.port = 0
        self.hub: Hub | None = None
        self.records: list[Any] = []
        self.pauses: dict[int, Pause] = {}
        self.saved: dict[str, torch.Tensor] | None = None  # the checkpoint
        self.make_server: Callable[[Session], Training] = self._make_server

    def _make_server(self, session: Session) -> Training:
        server = Training(session, OPTIMIZER, self.consortium.rounds)
        if self.saved is not None:
            server.restore(self.saved)
        return server

    @property
    def running(self) -> Any:
        """What the hub has once the terms are settled."""
        assert self.hub is not None
        assert self.hub.running is not None
        return self.hub.running

    def _watch(self, record: Any, answers: int) -> None:
        self.records.append(record)
        self.saved = self.running.server.state()
        if record.round_number in self.pauses:
            self.pauses.pop(record.round_number).hold()

    def pause_after(self, number: int) -> "Pause":
        """Stop the rounds after this one, until the pause is over."""
        self.pauses[number] = Pause()
        return self.pauses[number]

    async def start_hub(self) -> asyncio.Task[Training]:
        """A hub, listening when this returns; on the port of the one before, if there was one."""
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        settings = replace(self.settings, listen=f"127.0.0.1:{self.port}")
        consortium = self.consortium
        credentials = consortium.credentials(consortium.server)
        self.hub = Hub(settings, consortium.agreement, credentials, self.make_server, self._watch, self.hub_events.log)
        task = asyncio.create_task(self.hub.run(listening.set_result))
        await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        self.port = listening.result()
        return task

    def site_settings(self) -> SiteSettings:
        return SiteSettings(server=f"127.0.0.1:{self.port}", first_delay=0.05, longest_delay=0.2)

    def start_site(self, index: int, **changes: Any) -> asyncio.Task[Task]:
        return asyncio.create_task(self._site(index, **changes))

    async def _site(self, index: int, **changes: Any) -> Task:
        consortium = self.consortium
        rows = changes.pop("rows", consortium.rows[index])
        credentials = changes.pop("credentials", None) or consortium.credentials(consortium.sites[index])
        agreement = changes.pop("agreement", consortium.agreement)
        folder = changes.pop("folder", consortium.folder / f"site-{index}")
        with ShareStore.open(folder, data_digest(*rows)) as store:
            log, keep = self.site_events[index].log, changes.pop("keep", lambda task: None)
            return await Site(self.site_settings(), agreement, credentials, store, rows, log, keep).run()

    def start_sites(self, but: tuple[int, ...] = ()) -> dict[int, asyncio.Task[Task]]:
        return {i: self.start_site(i) for i in range(self.consortium.clients) if i not in but}
