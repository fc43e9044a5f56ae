"""Random faults from a seed, upon real processes: `dresfl serve` and `dresfl join`, killed by SIGKILL.

As in test_schedules.py, nine clients behind proxies; slower by far, so `make test` has none, and `make faults` one
for every 25 schedules. `make faults SEED=17` runs that one too.
"""

import asyncio
import functools
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dresfl.deploy.settings import Keys
from dresfl.experiments.config import load_config
from dresfl.experiments.training import train
from dresfl.experiments.trials.grpc_trial import Process, Trial, write_clients, write_trial
from dresfl.sealing import Roster

from .federation import within
from .proxy import Proxy
from .test_processes import SMALL
from .test_schedules import CHANGES, CLIENTS, Fault, Schedule

SECONDS = 400.0
POLL = 0.05  # seconds between looks at the logs
SETTINGS = (f"federation.num_clients={CLIENTS}", 'dropout.model="none"', "rounds=60")


class Processes:
    """A trial of `dresfl federate`, disturbed by a schedule."""

    def __init__(self, folder: Path, preset: str, schedule: Schedule) -> None:
        self.folder, self.schedule = folder, schedule
        self.trial = Trial(preset, clients=CLIENTS, settings=SETTINGS, mode="open")
        self.coordinator, self.clients = write_trial(self.trial, folder)
        self.proxies: list[Proxy] = []
        self.busy: set[Process] = set()  # killed, and not started again yet
        self.done: Counter[str] = Counter()

    @property
    def moments(self) -> int:
        return sum(len(process.events) for process in (self.coordinator, *self.clients))

    def look(self) -> None:
        """Read what all have logged; the proxies lead to where the coordinator listens now."""
        for process in (self.coordinator, *self.clients):
            if process.starts:
                for event in process.follow():
                    if process is self.coordinator and event.get("event") == "listening":
                        for proxy in self.proxies:
                            proxy.target = event["port"]

    async def run(self) -> dict[str, Any]:
        self.proxies = [await Proxy(None).start() for _ in range(CLIENTS)]
        self._configure()
        faults: set[asyncio.Task[None]] = set()
        try:
            return await within(f"the end of schedule {self.schedule.seed}", self._play(faults), SECONDS)
        finally:
            for task in faults:
                task.cancel()
            await asyncio.gather(*faults, return_exceptions=True)
            for process in (self.coordinator, *self.clients):
                if process.running:
                    process.kill()
            for proxy in self.proxies:
                await proxy.stop()

    async def _play(self, faults: set[asyncio.Task[None]]) -> dict[str, Any]:
        for process in (self.coordinator, *self.clients):
            process.start()
        due = list(self.schedule.faults)
        while self.coordinator.running or self.coordinator in self.busy:
            self.look()
            while due and due[0].moment <= self.moments:
                faults.add(asyncio.create_task(self.do(due.pop(0))))
            for task in [task for task in faults if task.done()]:
                task.result()
            await asyncio.sleep(POLL)
        summary = self.coordinator.result()
        await asyncio.gather(*faults)
        await within("the end of the informed clients", self._informed())
        return summary

    def _configure(self) -> None:
        """Every client finds the coordinator behind its own proxy."""
        digest = Roster.load(self.folder / "roster.json").digest
        keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", digest)
        write_clients(self.trial.run_config(), keys, "", self.folder, CLIENTS, 65535)
        for index, proxy in enumerate(self.proxies):
            path = self.folder / f"site-{index}" / "site.toml"
            path.write_text(path.read_text().replace("127.0.0.1:65535", f"127.0.0.1:{proxy.port}"))

    async def do(self, fault: Fault) -> None:
        self.done[fault.kind] += 1
        proxy = self.proxies[fault.client]
        if fault.kind in ("kill", "leave", "damage", "lose"):
            if fault.silent:
                proxy.silence()
            await self._kill(self.clients[fault.client], fault.seconds)
        elif fault.kind == "kill coordinator":
            await self._kill(self.coordinator, fault.seconds)
        elif fault.kind in ("cut", "silence"):
            proxy.cut()
        elif fault.kind == "cut all":
            for each in self.proxies:
                each.cut()
        elif fault.kind == "down":
            proxy.down = True
            proxy.cut()
            await asyncio.sleep(fault.seconds)
            proxy.down = False
        elif fault.kind == "hold":
            proxy.hold()
            await asyncio.sleep(fault.seconds)
            proxy.release()
        elif fault.kind == "delay":
            proxy.delay = 0.05
            await asyncio.sleep(3 * fault.seconds)
            proxy.delay = 0.0
        else:
            proxy.ways[fault.way].plan(fault.after, CHANGES[fault.kind])

    async def _kill(self, process: Process, seconds: float) -> None:
        if not process.running or process in self.busy:
            return
        self.busy.add(process)
        process.kill()
        await asyncio.sleep(seconds)
        process.start()
        self.busy.discard(process)

    async def _informed(self) -> None:
        """Every client that the coordinator says it has informed ends by itself, and well."""
        self.look()
        uninformed = {
            i for event in self.coordinator.events if event.get("event") == "ended without" for i in event["clients"]
        }
        informed = [client for index, client in enumerate(self.clients) if index not in uninformed]
        while any(client.running for client in informed):
            await asyncio.sleep(POLL)
        self.finals = [client.result()["weights_sha256"] for client in informed]


@functools.cache
def undisturbed() -> str:
    with tempfile.TemporaryDirectory() as folder:
        preset = Path(folder) / "small.toml"
        preset.write_text(SMALL)
        result: str = train(load_config(str(preset), list(SETTINGS)), out=Path(folder) / "run")["weights_sha256"]
        return result


def seeds() -> list[int]:
    if os.environ.get("SEED"):
        return [int(os.environ["SEED"])]
    return list(range(int(os.environ.get("SCHEDULES") or 0) // 25))


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("seed", seeds())
def test_schedule_of_processes(tmp_path: Path, seed: int) -> None:
    preset = tmp_path / "small.toml"
    preset.write_text(SMALL)
    processes = Processes(tmp_path / "trial", str(preset), Schedule.draw(seed))
    try:
        summary = asyncio.run(processes.run())
        assert summary["weights_sha256"] == undisturbed()
        assert set(processes.finals) <= {undisturbed()}
    except BaseException:
        report(processes)
        raise


def report(processes: Processes) -> None:
    print(f"seed {processes.schedule.seed}, at moment {processes.moments}, {processes.done}")
    print(*processes.schedule.faults, sep="\n")
    everybody = (processes.coordinator, *processes.clients)
    lines = [(str(event.get("time", "")), process.name, event) for process in everybody for event in process.events]
    for when, who, line in sorted(lines, key=lambda entry: entry[0]):
        print(when[14:23], who, {key: value for key, value in line.items() if key != "time"})
