"""A whole federation in one thread, over real folders: what its disks hold can be damaged between two starts.

The machines, the stores, the run's folder and the recorder are the real ones; messages pass from hand to hand, and the
clock moves only when everybody waits. So an endless wait is seen at once.
"""

import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from consortium import OPTIMIZER, Consortium
from dresfl.deploy.model import keep_model
from dresfl.deploy.serve import run_coordinator
from dresfl.deploy.settings import CoordinatorConfig, Keys, Listening
from dresfl.errors import DresError, IdentityError, Refused
from dresfl.federation import Site, Workplace
from dresfl.federation.actions import (
    Action,
    Close,
    Disconnect,
    Finish,
    GiveUp,
    Leave,
    Log,
    Send,
    SendSlice,
    SendToCoordinator,
    Work,
)
from dresfl.model import weights_sha256
from dresfl.runtimes import coordinator_host
from dresfl.runtimes.coordinator_host import CoordinatorHost
from dresfl.storage import ShareStore, data_digest, spool
from dresfl.storage.at_rest import StorageKey

_IDLE = 40  # times that everybody waits in vain: then it is for ever
_RETURNS = 8  # of one client: then it comes back for ever


class Stopped(Exception):
    """The run was stopped on purpose, as by a signal."""


@dataclass
class Outcome:
    """How a start of the whole federation went."""

    weights: dict[str, str] = field(default_factory=dict)  # of everybody who has come to the end
    errors: dict[str, DresError] = field(default_factory=dict)  # of everybody who has ended otherwise
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    waits: bool = False  # whether the coordinator waited in vain

    def of(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.events if name == event]


@dataclass
class SmallFederation:
    """Everybody's folders under one, and what it takes to start them."""

    consortium: Consortium
    folder: Path
    storage_key: Path | None = None  # of everybody, to keep it simple
    changes: dict[str, object] = field(default_factory=dict)  # of fed.toml

    def copy(self, folder: Path) -> "SmallFederation":
        shutil.copytree(self.folder, folder, symlinks=True)
        return SmallFederation(self.consortium, folder, self.storage_key, self.changes)

    @property
    def config(self) -> CoordinatorConfig:
        values: dict[str, object] = {
            "name": "small",
            "agreement": "",
            "folder": str(self.folder / "coordinator"),
            "keys": Keys("", "", "", "", ""),
            "evaluate_every": 2,
            "storage_key": str(self.storage_key or ""),
            "network": Listening(deadline=5.0, linger=5.0),
            "optimizer": OPTIMIZER,
        }
        return CoordinatorConfig(**{**values, **self.changes})  # type: ignore[arg-type]

    def model(self, client: int) -> Path:
        return self.folder / f"model-{client}.safetensors"

    def start(self, stop: Callable[[CoordinatorHost], bool] = lambda host: False, use_earlier: bool = False) -> Outcome:
        """Start everybody and let them run, to the end or until `stop` says so after a message."""
        outcome = Outcome()
        consortium, clock = self.consortium, SimpleNamespace(now=100.0)

        def log(event: str, **fields: object) -> None:
            outcome.events.append((event, fields))

        def carry_out(host: CoordinatorHost) -> None:
            _Play(self, host, outcome, clock, stop).run()

        with (
            mock.patch.object(coordinator_host, "time", SimpleNamespace(monotonic=lambda: clock.now)),
            mock.patch.object(spool, "MEMORY_BYTES", 0),  # slices go to the disk
            mock.patch("os.fsync"),  # nobody pulls the plug here
            mock.patch("os.fdatasync"),
        ):
            try:
                summary = run_coordinator(
                    self.config,
                    consortium.agreement,
                    consortium.coordinator,
                    consortium.roster,
                    log,
                    "grpc",
                    carry_out,
                    use_earlier=use_earlier,
                )
                outcome.weights["coordinator"] = summary["weights_sha256"]
            except Stopped:
                pass
            except DresError as error:
                outcome.errors["coordinator"] = error
        return outcome


class _Client:
    """One client's process."""

    def __init__(self, federation: SmallFederation, index: int) -> None:
        consortium, rows = federation.consortium, federation.consortium.rows[index]
        key = StorageKey.find(str(federation.storage_key or ""))
        roster = consortium.agreement.roster
        self.store = ShareStore.open(federation.folder / f"client-{index}", data_digest(*rows), roster, key)
        keep = partial(keep_model, str(federation.model(index)), consortium.agreement)
        identity = consortium.clients_keys[index]
        self.workplace = Workplace(
            consortium.agreement, identity, consortium.roster, self.store, lambda: rows, keep_model=keep
        )
        self.site = Site(consortium.agreement, consortium.roster, index, self.workplace.introduce)
        self.returns = 0


class _Play:
    """One start, message by message."""

    def __init__(
        self,
        federation: SmallFederation,
        host: CoordinatorHost,
        outcome: Outcome,
        clock: SimpleNamespace,
        stop: Callable[[CoordinatorHost], bool],
    ) -> None:
        self.federation, self.host, self.outcome, self.clock, self.stop = federation, host, outcome, clock, stop
        self.to_coordinator: deque[tuple[int, bytes]] = deque()
        self.to_clients: deque[tuple[int, bytes]] = deque()
        self.away: list[int] = []  # clients that come back when everybody waits
        self.clients: dict[int, _Client] = {}
        self.ended = False

    def run(self) -> None:
        try:
            self._coordinate(self.host.start())
            for index in range(self.federation.consortium.clients):
                try:
                    self.clients[index] = _Client(self.federation, index)
                except DresError as error:
                    self.outcome.errors[f"client {index}"] = error
            for index in list(self.clients):
                self._connect(index)
            self._until_the_end()
        finally:
            for client in self.clients.values():
                client.store.close()

    def _until_the_end(self) -> None:
        idle = 0
        while not self.ended:
            if self.to_coordinator:
                index, data = self.to_coordinator.popleft()
                if index in self.clients:
                    self._coordinate(self.host.received(index, data))
            elif self.to_clients:
                index, data = self.to_clients.popleft()
                if index in self.clients:
                    self._perform(index, self.clients[index].site.received(data, self.clock.now))
            elif self.away:
                self._connect(self.away.pop(0))
            else:
                idle += 1
                if idle > _IDLE:
                    self.outcome.waits = True
                    raise Stopped
                self._wait()
                continue
            if self.stop(self.host):
                raise Stopped
        for index, client in list(self.clients.items()):  # whoever has not heard of the end is not told any more
            while (at := client.site.wake_at) is not None and index in self.clients:
                self._perform(index, client.site.tick(at))

    def _wait(self) -> None:
        times = [at for at in (client.site.wake_at for client in self.clients.values()) if at is not None]
        if (at := self.host.machine.wake_at) is not None:
            times.append(at)
        self.clock.now = max(self.clock.now, min(times, default=self.clock.now + 1.0))
        for index, client in list(self.clients.items()):
            if client.site.wake_at is not None and client.site.wake_at <= self.clock.now:
                self._perform(index, client.site.tick(self.clock.now))
        self._coordinate(self.host.tick())

    def _connect(self, index: int) -> None:
        self._coordinate(self.host.connected(index))
        self._perform(index, self.clients[index].site.connected(self.clock.now))

    def _lose(self, index: int, error: DresError | None) -> None:
        """A client's connection ends; without an error it comes back."""
        for queue in (self.to_coordinator, self.to_clients):
            kept = [entry for entry in queue if entry[0] != index]
            queue.clear()
            queue.extend(kept)
        self._coordinate(self.host.disconnected(index))
        if (client := self.clients.get(index)) is None:
            return
        client.returns += 1
        client.site.disconnected(self.clock.now)
        if error is None and client.returns <= _RETURNS:
            self.away.append(index)
            return
        del self.clients[index]
        client.store.close()
        if error is not None:
            self.outcome.errors[f"client {index}"] = error
        else:
            self.outcome.waits = True  # it would come back for ever

    def _perform(self, index: int, actions: list[Action]) -> None:
        left = deque(actions)
        while left and index in self.clients:
            client, action = self.clients[index], left.popleft()
            match action:
                case SendToCoordinator():
                    self.to_coordinator.append((index, action.message.encode()))
                case Work():
                    left.extend(client.site.worked(action, client.workplace.perform(action), self.clock.now))
                case Log():
                    self.outcome.events.append((action.event, dict(action.fields)))
                case Disconnect():
                    self._lose(index, None)
                    return
                case GiveUp():
                    said = [data for sender, data in self.to_coordinator if sender == index]
                    self._coordinate(self.host.received(index, *said))  # it is told before the client ends
                    self._lose(index, action.error)
                    return
                case Leave():
                    self.outcome.weights[f"client {index}"] = weights_sha256(action.final.weights)
                    del self.clients[index]
                    client.store.close()

    def _coordinate(self, actions: list[object]) -> None:
        left = deque(actions)
        while left:
            action = left.popleft()
            match action:
                case Send():
                    self.to_clients.append((action.client, action.message.encode()))
                case SendSlice():
                    relayed = self.host.stored_slice(action)
                    if relayed is None:
                        left.extend(self.host.slice_lost(action))
                    else:
                        self.to_clients.append((action.receiver, relayed.encode()))
                case Close():
                    final = isinstance(action.error, Refused | IdentityError)
                    if action.client in self.clients and action.error is not None:
                        self._lose(action.client, action.error if final else None)
                case Finish():
                    if action.error is not None:
                        raise action.error
                    self.ended = True
