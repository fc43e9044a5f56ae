"""Random faults from a seed: every run ends with the weights of an undisturbed one, or says why not; none hangs.

Nine clients, each behind a proxy of its own, in one process over real gRPC and TLS. A schedule is a list of faults.
Each has its moment: when so many lines have been logged and rounds played, by whomever. The seed alone decides what is
drawn; what it hits depends on the machine too. `make faults` runs 100 schedules, `make faults SCHEDULES=1000` more of
them, `make faults SEED=17` that one.
"""

import asyncio
import contextlib
import functools
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from consortium import OPTIMIZER, Consortium
from dresfl.errors import DresError
from dresfl.federation import RoundTiming, Workplace
from dresfl.model import weights_sha256
from dresfl.protocol import RoundRecord, Session, Task, Training, slices
from dresfl.runtimes.grpc_runtime import ConnectSettings, GrpcClient
from dresfl.storage import ShareStore, data_digest
from dresfl.storage.tensors import load_tensors, save_tensors

from .federation import LIMIT, Events, Network, within
from .proxy import Proxy, broken, dropped, flipped, garbage

CLIENTS, NEEDED, ROUNDS = 9, 5, 30
MOMENTS = 100  # about as many as an undisturbed run has
SECONDS = 200.0  # for one schedule; an undisturbed run takes two
SLOW = 15.0
BYTES = 30_000  # about as many as pass between a client and the coordinator

FAULTS = {  # how often each is drawn
    "kill": 4,  # a client, as SIGKILL would; it comes back with its folder
    "leave": 1,  # a client, for good, once there are enough without it
    "damage": 1,  # a client is killed, and one of its shares is damaged
    "lose": 1,  # a client is killed, and comes back without its folder
    "kill coordinator": 3,  # it comes back with its folder
    "cut": 3,  # connections of one client
    "cut all": 1,
    "cut later": 3,  # in the middle of a frame
    "down": 2,  # no connection for a while
    "silence": 1,  # half-open connections
    "hold": 2,  # nothing passes for a while
    "delay": 2,  # everything passes late for a while
    "flip": 3,
    "drop": 1,
    "garbage": 1,
}
WAYS = ("up", "down")
CHANGES = {"cut later": broken, "flip": flipped, "drop": dropped, "garbage": garbage}


@dataclass(frozen=True)
class Fault:
    """What happens at a moment, to whom, and for how long."""

    moment: int
    kind: str
    client: int
    seconds: float
    way: str
    after: int  # bytes
    silent: bool  # a killed client's connections are left half open


@dataclass(frozen=True)
class Schedule:
    """All that a seed decides."""

    seed: int
    faults: tuple[Fault, ...]
    checkpoint_every: int
    slice_bytes: int
    timing: RoundTiming

    @classmethod
    def draw(cls, seed: int) -> "Schedule":
        generator = random.Random(seed)
        faults = [
            Fault(
                moment=generator.randrange(MOMENTS),
                kind=generator.choices(list(FAULTS), list(FAULTS.values()))[0],
                client=generator.randrange(CLIENTS),
                seconds=generator.choice((0.0, 0.05, 0.3, 1.0, generator.choice((1.0, 8.0)))),
                way=generator.choice(WAYS),
                after=generator.choice((0, generator.randrange(3000), generator.randrange(BYTES))),
                silent=generator.random() < 0.3,
            )
            for _ in range(generator.randint(*generator.choice(((3, 9), (3, 9), (12, 24)))))
        ]
        return cls(
            seed,
            tuple(sorted(faults, key=lambda fault: fault.moment)),
            generator.choice((1, 1, 3, 10)),
            generator.choice((400, 2000, 2**20)),
            RoundTiming(generator.choice((0.0, 0.02)), generator.choice((0.5, 3.0))),
        )


class Counted(Events):
    """Events that count as moments."""

    def __init__(self, moment: Callable[[], None]) -> None:
        self._moment = moment
        super().__init__()

    def _take(self, line: str) -> None:
        super()._take(line)
        self._moment()


class Stage(Network):
    """The federation of a schedule: clients that can be killed, each behind its own proxy, and checkpoints on disk."""

    def __init__(self, consortium: Consortium, schedule: Schedule) -> None:
        super().__init__(consortium, keepalive=2.0, linger=4.0, timing=schedule.timing)
        self.schedule = schedule
        self.moments = 0
        self._loop, self._moved = asyncio.get_running_loop(), asyncio.Event()
        self.coordinator_events: Events = Counted(self._moment)
        self.client_events: list[Events] = [Counted(self._moment) for _ in consortium.clients_keys]
        self.proxies: list[Proxy] = []
        self.clients: dict[int, asyncio.Task[Task]] = {}
        self.coordinator_task: asyncio.Task[Training] | None = None
        self._number = 0
        self._servers: dict[int, Training] = {}
        self.dead: set[int] = set()  # killed, and not back yet
        self.gone: set[int] = set()  # for good
        self.lost: set[int] = set()  # their folders
        self.damaged: set[int] = set()
        self.late: set[int] = set()  # killed when the end was known: they may come back to nobody
        self.done: Counter[str] = Counter()
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    # -- moments ---------------------------------------------------------------------------------------------

    def _moment(self) -> None:
        self._loop.call_soon_threadsafe(self._count)

    def _count(self) -> None:
        self.moments += 1
        self._moved.set()

    async def moment(self, number: int) -> None:
        while self.moments < number:
            self._moved.clear()
            await self._moved.wait()

    # -- the coordinator -------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start a coordinator on a new port, with what the one before left on the disk."""
        self._number += 1
        self.make_training = functools.partial(self._restored, self._number)
        self._watch = functools.partial(self._record, self._number)  # type: ignore[method-assign]
        self.port = 0
        self.coordinator_task = await self.start_coordinator()
        for proxy in self.proxies:
            proxy.target = self.port

    @property
    def _checkpoint(self) -> Path:
        return self.consortium.folder / "coordinator" / "checkpoint.safetensors"

    def _restored(self, number: int, session: Session) -> Training:
        server = self._servers[number] = Training(session, OPTIMIZER, self.consortium.rounds)
        if self._checkpoint.exists():
            server.restore(load_tensors(self._checkpoint)[0])
        return server

    def _record(self, number: int, record: RoundRecord, answers: int) -> None:
        if number != self._number:
            return  # a dead one's thread
        server = self._servers[number]
        if server.round_number % self.schedule.checkpoint_every == 0 or server.done:
            save_tensors(self._checkpoint, server.state(), {})
        self._moment()

    async def kill_coordinator(self, seconds: float) -> None:
        """Without a goodbye, and what it still does is not on the disk."""
        task = self.coordinator_task
        if task is None or task.done():
            return
        self._number += 1
        self.coordinator_task = None
        for proxy in self.proxies:
            proxy.target = None
            proxy.cut()
        await ended(task)
        await asyncio.sleep(seconds)
        await self.begin()

    # -- clients ---------------------------------------------------------------------------------------------

    def settings_of(self, index: int) -> ConnectSettings:
        return replace(self.connect_settings(), coordinator=f"127.0.0.1:{self.proxies[index].port}")

    async def _client(self, index: int, **changes: Any) -> Task:
        """A client that, when its task is cancelled, leaves its folder as a killed process would."""
        consortium, rows = self.consortium, self.consortium.rows[index]
        credentials = consortium.credentials(consortium.clients_keys[index])
        store = ShareStore.open(consortium.folder / f"client-{index}", data_digest(*rows))
        log, agreement = self.client_events[index].log, consortium.agreement
        try:
            workplace = Workplace(agreement, credentials.identity, credentials.roster, store, lambda: rows)
            return await GrpcClient(self.settings_of(index), agreement, credentials, workplace, log).run()
        except asyncio.CancelledError:
            for table in store._tables.values():
                table.close(flush=False)
            raise
        finally:
            store.close()

    async def kill(self, index: int, silent: bool) -> bool:
        """Without a goodbye: its connections are broken, or lost, before it can say anything."""
        task = self.clients[index]
        if task.done() or index in self.dead:
            return False
        self.dead.add(index)
        proxy = self.proxies[index]
        proxy.silence() if silent else proxy.cut()
        await ended(task)
        if any(server.done for server in self._servers.values()):
            self.late.add(index)
        return True

    @property
    def all_shared(self) -> bool:
        """Every client has been ready once: from here on, some may leave for good."""
        return len({event["client"] for event in self.coordinator_events.of("ready")}) == CLIENTS

    def spare(self, index: int) -> bool:
        """Whether the run can do without this client, and without those it has lost already."""
        return self.all_shared and len(self.gone | self.lost | self.damaged | {index}) <= CLIENTS - NEEDED

    # -- faults ----------------------------------------------------------------------------------------------

    async def play(self) -> None:
        async with asyncio.TaskGroup() as group:
            for fault in self.schedule.faults:
                await self.moment(fault.moment)
                group.create_task(self.do(fault))

    async def do(self, fault: Fault) -> None:
        self.done[fault.kind] += 1
        kind, proxy = fault.kind, self.proxies[fault.client]
        if kind in ("kill", "leave", "damage", "lose"):
            await self._strike(fault)
        elif kind == "kill coordinator":
            await self.kill_coordinator(fault.seconds)
        elif kind == "cut":
            proxy.cut()
        elif kind == "cut all":
            for each in self.proxies:
                each.cut()
        elif kind == "down":
            proxy.down = True
            proxy.cut()
            await asyncio.sleep(fault.seconds)
            proxy.down = False
        elif kind == "silence":
            proxy.silence()
        elif kind == "hold":
            proxy.hold()
            await asyncio.sleep(fault.seconds)
            proxy.release()
        elif kind == "delay":
            proxy.delay = 0.05
            await asyncio.sleep(3 * fault.seconds)
            proxy.delay = 0.0
        else:
            proxy.ways[fault.way].plan(fault.after, CHANGES[kind])

    async def _strike(self, fault: Fault) -> None:
        index, spare = fault.client, self.spare(fault.client)
        if not await self.kill(index, fault.silent):
            return
        folder = self.consortium.folder / f"client-{index}"
        if fault.kind == "leave" and spare:
            self.gone.add(index)
            return
        if fault.kind == "lose" and spare:
            self.lost.add(index)
            shutil.rmtree(folder)
        if fault.kind == "damage" and spare:
            self.damaged.add(index)
            rows = sorted(folder.glob("*/shares.rows"))
            for path in rows:
                path.write_bytes(flipped(path.read_bytes()))
        await asyncio.sleep(fault.seconds)
        self.clients[index] = self.start_client(index)
        self.dead.discard(index)

    async def run(self) -> Training:
        """Until the coordinator has all rounds."""
        self.proxies = [await Proxy(None).start() for _ in range(CLIENTS)]
        playing: asyncio.Task[None] | None = None
        try:
            await self.begin()
            self.clients = self.start_clients()
            playing = asyncio.create_task(self.play())
            while self.coordinator_task is None or not self.coordinator_task.done():
                parts = {part for part in (self.coordinator_task, playing) if part is not None and not part.done()}
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED, timeout=0.1)  # it may change
                if playing.done():
                    playing.result()
            server = self.coordinator_task.result()
            await ended(playing)
            await self._informed()
            return server
        finally:
            if playing is not None:
                await ended(playing)
            for part in (self.coordinator_task, *self.clients.values()):
                if part is not None:
                    await ended(part)
            for proxy in self.proxies:
                await proxy.stop()

    async def _informed(self) -> None:
        """Every client that the coordinator says it has informed must end by itself."""
        uninformed = {index for event in self.coordinator_events.of("ended without") for index in event["clients"]}
        waiting = [task for index, task in self.clients.items() if index not in uninformed | self.gone | self.late]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=LIMIT)
            names = [index for index, task in self.clients.items() if task in late]
            assert not names, f"clients {names} were informed of the end, but did not hear of it"


async def ended(task: "asyncio.Task[Any]") -> None:
    """Cancel, and wait for the end; what it was is kept in the task."""
    task.cancel()
    await within("a task to end that was cancelled", asyncio.wait({task}))


@dataclass
class Outcome:
    """How a schedule ended."""

    weights: str = ""
    finals: dict[int, str] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)  # by client; -1: the coordinator


def play(consortium: Consortium, schedule: Schedule) -> tuple[Outcome, Stage]:
    stages: list[Stage] = []

    async def run() -> Outcome:
        stage = Stage(consortium, schedule)
        stages.append(stage)
        outcome = Outcome()
        try:
            server = await within(f"the end of schedule {schedule.seed}", stage.run(), SECONDS)
            outcome.weights = weights_sha256(server)
        except DresError as error:
            outcome.refusals[-1] = str(error)
        for index, task in stage.clients.items():
            if task.cancelled():
                continue
            error = task.exception()
            if error is None:
                outcome.finals[index] = weights_sha256(task.result().weights)
            elif isinstance(error, DresError):
                outcome.refusals[index] = str(error)
            else:
                raise AssertionError(f"client {index} failed") from error
        return outcome

    try:
        return asyncio.run(run()), stages[0]
    except BaseException:
        if stages:
            report(stages[0])
        raise


def report(stage: Stage) -> None:
    """What pytest shows of a schedule that failed."""
    print(f"seed {stage.schedule.seed}, at moment {stage.moments}, {stage.done}")
    print(*stage.schedule.faults, sep="\n")
    lines = [(line["time"], "coordinator", line) for line in stage.coordinator_events.lines]
    for index, events in enumerate(stage.client_events):
        lines += [(line["time"], f"client {index}", line) for line in events.lines]
    for when, who, line in sorted(lines, key=lambda entry: entry[0]):
        print(when[14:23], who, {key: value for key, value in line.items() if key != "time"})


@functools.cache
def expected() -> str:
    return Consortium(Path(), clients=CLIENTS, rounds=ROUNDS).expected()


def seeds() -> list[int]:
    if os.environ.get("SEED"):
        return [int(os.environ["SEED"])]
    return list(range(int(os.environ.get("SCHEDULES") or 6)))


def note(outcome: Outcome, stage: Stage) -> None:
    """One line for each schedule in the file that FAULTS_LOG names; the events of slow ones beside it."""
    name, seed = os.environ.get("FAULTS_LOG"), stage.schedule.seed
    if not name:
        return
    line = {
        "seed": seed,
        "same": outcome.weights == expected(),
        "informed": len(outcome.finals),
        "refused": outcome.refusals,
        "seconds": round(stage.seconds, 1),
        "faults": stage.done,
        "unused": sum(len(way.plans) for proxy in stage.proxies for way in proxy.ways.values()),
    }
    with open(name, "a") as file:
        file.write(json.dumps(line) + "\n")
    if stage.seconds > SLOW:
        with open(f"{name}.{seed}", "w") as file, contextlib.redirect_stdout(file):
            report(stage)


@pytest.mark.timeout(SECONDS + 100)
@pytest.mark.parametrize("seed", seeds())
def test_schedule(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Schedule.draw(seed)
    monkeypatch.setattr(slices, "SLICE_BYTES", schedule.slice_bytes)
    outcome, stage = play(Consortium(tmp_path, clients=CLIENTS, rounds=ROUNDS), schedule)
    note(outcome, stage)
    try:
        assert outcome.weights == expected()
        assert set(outcome.finals.values()) <= {outcome.weights}
        assert set(outcome.refusals) <= stage.lost  # nobody else has a reason
    except AssertionError:
        report(stage)
        raise
