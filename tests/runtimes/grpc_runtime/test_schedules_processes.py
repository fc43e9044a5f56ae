"""Random faults from a seed, upon real processes: `dresfl server` and `dresfl client`, killed by SIGKILL.

As in test_schedules.py, nine sites behind proxies; slower by far, so `make test` has none, and `make faults` one
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
from dresfl.experiments.trials.grpc_trial import Party, Trial, write_sites, write_trial
from dresfl.sealing import Roster

from .proxy import Proxy
from .test_processes import SMALL
from .test_schedules import CHANGES, CLIENTS, Deed, Schedule, not_for_ever

SECONDS = 400.0
POLL = 0.05  # seconds between looks at the logs
SETTINGS = (f"federation.num_clients={CLIENTS}", 'dropout.model="none"', "rounds=60")


class Processes:
    """A trial of `dresfl federate`, disturbed by a schedule."""

    def __init__(self, folder: Path, preset: str, schedule: Schedule) -> None:
        self.folder, self.schedule = folder, schedule
        self.trial = Trial(preset, clients=CLIENTS, settings=SETTINGS)
        self.server, self.sites = write_trial(self.trial, folder)
        self.proxies: list[Proxy] = []
        self.busy: set[Party] = set()  # killed, and not started again yet
        self.done: Counter[str] = Counter()

    @property
    def moments(self) -> int:
        return sum(len(party.events) for party in (self.server, *self.sites))

    def look(self) -> None:
        """Read what all have logged; the proxies lead to where the coordinator listens now."""
        for party in (self.server, *self.sites):
            if party.starts:
                for event in party.follow():
                    if party is self.server and event.get("event") == "listening":
                        for proxy in self.proxies:
                            proxy.target = event["port"]

    async def run(self) -> dict[str, Any]:
        self.proxies = [await Proxy(None).start() for _ in range(CLIENTS)]
        self._configure()
        deeds: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.timeout(SECONDS):
                for party in (self.server, *self.sites):
                    party.start()
                due = list(self.schedule.deeds)
                while self.server.running or self.server in self.busy:
                    self.look()
                    while due and due[0].moment <= self.moments:
                        deeds.add(asyncio.create_task(self.do(due.pop(0))))
                    for task in [task for task in deeds if task.done()]:
                        task.result()
                    await asyncio.sleep(POLL)
                summary = self.server.result()
                await asyncio.gather(*deeds)
                await self._told()
                return summary
        finally:
            for task in deeds:
                task.cancel()
            await asyncio.gather(*deeds, return_exceptions=True)
            for party in (self.server, *self.sites):
                if party.running:
                    party.kill()
            for proxy in self.proxies:
                await proxy.stop()

    def _configure(self) -> None:
        """Every site finds the coordinator behind its own proxy."""
        digest = Roster.load(self.folder / "roster.json").digest
        keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", digest)
        write_sites(self.trial.run_config(), keys, "", self.folder, CLIENTS, 65535)
        for index, proxy in enumerate(self.proxies):
            path = self.folder / f"site-{index}" / "site.toml"
            path.write_text(path.read_text().replace("127.0.0.1:65535", f"127.0.0.1:{proxy.port}"))

    async def do(self, deed: Deed) -> None:
        self.done[deed.kind] += 1
        proxy = self.proxies[deed.client]
        if deed.kind in ("kill", "leave", "damage", "lose"):
            if deed.silent:
                proxy.silence()
            await self._kill(self.sites[deed.client], deed.seconds)
        elif deed.kind == "kill coordinator":
            await self._kill(self.server, deed.seconds)
        elif deed.kind in ("cut", "silence"):
            proxy.cut()
        elif deed.kind == "cut all":
            for each in self.proxies:
                each.cut()
        elif deed.kind == "down":
            proxy.down = True
            proxy.cut()
            await asyncio.sleep(deed.seconds)
            proxy.down = False
        elif deed.kind == "hold":
            proxy.hold()
            await asyncio.sleep(deed.seconds)
            proxy.release()
        elif deed.kind == "delay":
            proxy.delay = 0.05
            await asyncio.sleep(3 * deed.seconds)
            proxy.delay = 0.0
        else:
            proxy.ways[deed.way].plan(deed.after, CHANGES[deed.kind])

    async def _kill(self, party: Party, seconds: float) -> None:
        if not party.running or party in self.busy:
            return
        self.busy.add(party)
        party.kill()
        await asyncio.sleep(seconds)
        party.start()
        self.busy.discard(party)

    async def _told(self) -> None:
        """Every site that the coordinator says it has told ends by itself, and well."""
        self.look()
        untold = {i for event in self.server.events if event.get("event") == "ended without" for i in event["clients"]}
        told = [site for index, site in enumerate(self.sites) if index not in untold]
        async with asyncio.timeout(60):
            while any(site.running for site in told):
                await asyncio.sleep(POLL)
        self.finals = [site.result()["weights_sha256"] for site in told]


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


@pytest.mark.parametrize("seed", seeds())
def test_schedule_of_processes(tmp_path: Path, seed: int) -> None:
    preset = tmp_path / "small.toml"
    preset.write_text(SMALL)
    with not_for_ever(seed, SECONDS):
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
    print(*processes.schedule.deeds, sep="\n")
    parties = (processes.server, *processes.sites)
    lines = [(str(event.get("time", "")), party.name, event) for party in parties for event in party.events]
    for when, who, line in sorted(lines, key=lambda entry: entry[0]):
        print(when[14:23], who, {key: value for key, value in line.items() if key != "time"})
