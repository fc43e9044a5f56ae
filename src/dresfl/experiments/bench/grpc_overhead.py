"""What the gRPC runtime costs: seconds a round beside the local driver, relay speed, memory of many rounds, 200 sites.

    python -m dresfl.experiments.bench.grpc_overhead WHAT

    rounds    20 sites as processes, and the local driver, on the same cores
    relay     4 sites as processes, sealed slices through the coordinator
    memory    the coordinator's memory over 2,000 rounds of a small model
    many      200 sites at once

The coordinator is this process (for `rounds`: one of its own); sites are others. Figures go to stdout as JSON.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import prepare
from dresfl.experiments.trials.grpc_trial import Trial, federate
from dresfl.federation import Agreement
from dresfl.model import Dense, Square
from dresfl.optimizers import Optimizer
from dresfl.protocol import Client, RoundRecord, Training
from dresfl.runtimes.grpc_runtime import Credentials, Hub, HubSettings, Pace, Site, SiteSettings, log_to
from dresfl.runtimes.local import LocalFederation
from dresfl.sealing import CertificateAuthority, Identity, Roster, certificate_request
from dresfl.storage import ShareStore, data_digest

OPTIMIZER = Optimizer(method="momentum", learning_rate=0.01, schedule="constant")


@dataclass(frozen=True)
class Setting:
    """A federation on random rows."""

    clients: int
    rows: int
    features: int
    hidden: int
    rounds: int

    def agreement(self, roster: Roster) -> Agreement:
        return Agreement(
            layers=(Dense(self.hidden), Square(), Dense(10)),
            input_shape=(self.features,),
            num_clients=self.clients,
            rounds=self.rounds,
            batch_size=32,
            roster=roster.digest,
        )

    def site_rows(self, index: int, agreement: Agreement) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        inputs = torch.rand((self.rows, self.features), generator=generator)
        labels = torch.randint(10, (self.rows,), generator=generator)
        return agreement.quantizer.integers(inputs), torch.nn.functional.one_hot(labels, 10).to(torch.int32)


SETTINGS = {
    "relay": Setting(clients=5, rows=2000, features=784, hidden=16, rounds=1),
    "memory": Setting(clients=6, rows=20, features=64, hidden=32, rounds=2000),
    "many": Setting(clients=200, rows=4, features=8, hidden=4, rounds=20),
}


# -- keys ------------------------------------------------------------------------------------------------------


def make_keys(folder: Path, clients: int) -> None:
    authority = CertificateAuthority.create()
    authority.save(folder / "ca")
    identities = [Identity.create("server"), *(Identity.create(f"site-{i}") for i in range(clients))]
    Roster.create(identities[0], identities[0].card, [i.card for i in identities[1:]]).save(folder / "roster.json")
    for identity in identities:
        identity.save(folder / identity.name)
        hosts = ["127.0.0.1"] if identity.name == "server" else []
        (folder / identity.name / "certificate.pem").write_bytes(
            authority.sign(certificate_request(identity), server=hosts)
        )


def credentials(folder: Path, name: str) -> Credentials:
    certificate, authority = (folder / name / "certificate.pem").read_bytes(), folder / "ca" / "ca.cert.pem"
    roster = Roster.load(folder / "roster.json")
    return Credentials(Identity.load(folder / name), certificate, authority.read_bytes(), roster)


# -- sites, in processes of their own --------------------------------------------------------------------------


async def run_sites(setting: Setting, folder: Path, port: int, indices: list[int]) -> None:
    async def one(index: int) -> None:
        own = credentials(folder, f"site-{index}")
        agreement = setting.agreement(own.roster)
        rows = setting.site_rows(index, agreement)
        with ShareStore.open(folder / f"store-{index}", data_digest(*rows), agreement.roster) as store:
            settings = SiteSettings(server=f"127.0.0.1:{port}")
            await Site(settings, agreement, own, store, rows, log_to(lambda line: None)).run()

    await asyncio.gather(*(one(index) for index in indices))


def start_sites(what: str, folder: Path, port: int, groups: list[list[int]]) -> list["subprocess.Popen[bytes]"]:
    arguments = [sys.executable, __file__, what, "--folder", str(folder), "--port", str(port), "--sites"]
    return [subprocess.Popen([*arguments, *map(str, group)]) for group in groups]  # noqa: S603


# -- the coordinator, here -------------------------------------------------------------------------------------


def run_hub(what: str, groups: int, watch: Any) -> tuple[Hub, dict[str, float]]:
    """A whole run; the hub, and when each event came first (seconds)."""
    times: dict[str, float] = {}
    setting, began = SETTINGS[what], time.monotonic()

    def note(line: str) -> None:
        event = json.loads(line)
        times.setdefault(event["event"], time.monotonic() - began)
        if event["event"] == "ready" and event["ready"] == setting.clients:
            times["all ready"] = time.monotonic() - began
        if event["event"] in ("joined", "ready"):
            times["last " + event["event"]] = time.monotonic() - began

    # 200 sites flush to 200 disks; here they would all wait for one
    memory = "/dev/shm" if what == "many" and Path("/dev/shm").is_dir() else None  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory) as name:
        folder = Path(name)
        make_keys(folder, setting.clients)
        own = credentials(folder, "server")
        agreement = setting.agreement(own.roster)
        processes: list[subprocess.Popen[bytes]] = []

        async def run() -> Hub:
            settings = HubSettings(folder=folder / "run", linger=20.0, pace=Pace(deadline=300.0))
            hub = Hub(settings, agreement, own, lambda s: Training(s, OPTIMIZER, setting.rounds), watch, log_to(note))
            parts = [list(range(i, setting.clients, groups)) for i in range(groups)]
            await hub.run(lambda port: processes.extend(start_sites(what, folder, port, parts)))
            return hub

        hub = asyncio.run(run())
        for process in processes:
            process.wait(60)
        return hub, times


def megabytes() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


# -- what is measured ------------------------------------------------------------------------------------------


def measure_rounds(clients: int, rounds: int) -> dict[str, Any]:
    settings = (f"rounds={rounds}", f"evaluate_every={rounds}")
    config = load_config("digits", [*settings, f"federation.num_clients={clients}", 'dropout.model="none"'])
    prepared = prepare(config, None)
    session, data = prepared.session, prepared.client_data()
    server = Training(session, config.optimizer, rounds)
    local = LocalFederation(session, server, data, prepared.dropouts, "coded")
    local.run_round()
    began = time.perf_counter()
    for _ in range(50):
        local.run_round()
    driver = (time.perf_counter() - began) / 50
    parties = [Client(session, i, secret, *data[i]) for i, secret in enumerate(_secrets(clients))]
    for dealer in parties:
        for share in dealer.deal_to(range(clients)):
            parties[share.receiver].receive(share)
    began = time.perf_counter()
    for _ in range(5):
        task = server.task()
        answers = [party.answer(task) for party in parties]
        for answer in answers:
            server.receive(answer)
    every = (time.perf_counter() - began) / 5
    with tempfile.TemporaryDirectory() as folder:
        note = lambda text: print(text, file=sys.stderr)  # noqa: E731
        result = federate(Trial("digits", clients, settings=settings), Path(folder) / "trial", note)
    return {
        "clients": clients,
        "grpc s/round": result["seconds_per_round"],
        "local driver s/round (R answers)": driver,
        "local s/round, all N answers one by one": every,
        "limit: 1.5 x local driver + 0.1": 1.5 * driver + 0.1,
        "weights_sha256": result["weights_sha256"],
    }


def _secrets(count: int) -> list[Any]:
    from dresfl.field import SecretSeed

    return [SecretSeed.fresh() for _ in range(count)]


def measure_relay() -> dict[str, Any]:
    setting = SETTINGS["relay"]
    peaks: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.02):
            peaks.append(megabytes())

    thread = threading.Thread(target=sample)
    thread.start()
    hub, times = run_hub("relay", setting.clients, lambda record, answers: None)
    over.set()
    thread.join()
    assert hub.running is not None
    relayed = hub.running.relay.relayed_bytes
    seconds = times["all ready"] - times["terms settled"]
    return {
        "sites": setting.clients,
        "relayed MB": relayed / 1e6,
        "seconds, dealing, sealing, opening and storing included": seconds,
        "MB/s": relayed / 1e6 / seconds,
        "coordinator's memory before and at most, MB": [peaks[0], max(peaks)],
    }


def measure_memory() -> dict[str, Any]:
    seen: dict[int, float] = {}

    def watch(record: RoundRecord, answers: int) -> None:
        if record.round_number % 200 == 199:
            seen[record.round_number + 1] = round(megabytes(), 1)

    run_hub("memory", 1, watch)
    return {"MB after round": seen}


def measure_many() -> dict[str, Any]:
    _, times = run_hub("many", 8, lambda record, answers: None)
    return {"sites": SETTINGS["many"].clients, "coordinator MB": megabytes(), "seconds until": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rounds", *SETTINGS])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--sites", type=int, nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if options.sites is not None:
        asyncio.run(run_sites(SETTINGS[options.what], options.folder, options.port, options.sites))
        return
    measured = {
        "rounds": lambda: measure_rounds(options.clients, options.rounds),
        "relay": measure_relay,
        "memory": measure_memory,
        "many": measure_many,
    }[options.what]()
    print(json.dumps({"measured": options.what, "cores": os.cpu_count(), **measured}, indent=2))


if __name__ == "__main__":
    main()
