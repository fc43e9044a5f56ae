"""What the gRPC runtime costs: seconds a round next to the local runtime, how fast the relay is, and a large model.

    python -m dresfl.experiments.bench.network rounds --clients 20 --rounds 300
    python -m dresfl.experiments.bench.network blinding --clients 12 --rounds 300
    python -m dresfl.experiments.bench.network relay --clients 5 --rows 2000
    python -m dresfl.experiments.bench.network large --clients 4 --rounds 4
    python -m dresfl.experiments.bench.network hidden --clients 20 --rounds 20 --schedule S4 --round-trip 0.02

Clients are processes of their own, all on this machine. Figures go to stdout as JSON.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, final

import numpy as np

from dresfl.deploy.serve import serve
from dresfl.deploy.settings import (
    AgreedFederation,
    AgreedModel,
    AgreementFile,
    ClientConfig,
    ClientData,
    Connecting,
    CoordinatorConfig,
    Keys,
    Listening,
    load_settings,
)
from dresfl.deploy.toml import to_toml
from dresfl.errors import UsageError
from dresfl.experiments.config import load_config
from dresfl.experiments.training import train
from dresfl.experiments.trials.grpc_trial import Process, Trial, federate, make_keys
from dresfl.federation.agreement import ACCEPTED
from dresfl.files import write_atomic
from dresfl.model import Dense, Square
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.log import log_to

from .delay import DelayedLink


def measure_rounds(clients: int, rounds: int) -> dict[str, Any]:
    """The digits preset with every client a process, and in one process."""
    settings = (f"rounds={rounds}", f"evaluate_every={rounds}", "threads=1")
    config = load_config("digits", [*settings, f"federation.num_clients={clients}", 'dropout.model="none"'])
    with tempfile.TemporaryDirectory() as name:
        local = train(config, out=Path(name) / "local")
        result = federate(Trial("digits", clients, settings=settings, mode="open"), Path(name) / "trial")
    return {
        "clients": clients,
        "grpc_seconds_per_round": result["seconds"] / rounds,
        "local_seconds_per_round": local["seconds"] / rounds,
        "same_weights": result["weights_sha256"] == local["weights_sha256"],
    }


def measure_blinding(clients: int, rounds: int, turns: int = 3) -> dict[str, Any]:
    """The digits preset with every client a process: seconds a round with everything on, and without blinding."""
    settings = (f"rounds={rounds}", f"evaluate_every={rounds}", "threads=1")
    seconds: dict[bool, list[float]] = {True: [], False: []}
    weights = set()
    for _ in range(turns):
        for blinded in (True, False):
            with tempfile.TemporaryDirectory() as name:
                result = federate(Trial("digits", clients, settings=settings, blinded=blinded, mode="open"), Path(name))
            seconds[blinded].append(result["seconds"] / rounds)
            weights.add(result["weights_sha256"])
    medians = {blinded: statistics.median(values) for blinded, values in seconds.items()}
    return {
        "clients": clients,
        "rounds": rounds,
        "blinded_seconds_per_round": seconds[True],
        "unblinded_seconds_per_round": seconds[False],
        "ratio_of_medians": medians[True] / medians[False],
        "same_weights": len(weights) == 1,
    }


def measure_relay(clients: int, rows: int, features: int = 784) -> dict[str, Any]:
    """Dealing, sealing, relaying, opening and storing of random rows, until every client is ready."""
    times: dict[str, float] = {}

    def note(line: str) -> None:
        event = json.loads(line)
        times[event["event"] if event["event"] != "ready" else f"ready {event['ready']}"] = time.monotonic()

    with tempfile.TemporaryDirectory() as name:
        everybody = AgreedFederation(max_colluders=(clients - 1) // 2)  # so that the round needs every client
        model = AgreedModel((Dense(10),), (features,))
        agreed = AgreementFile(1, model, "open", rows_can_be_computed=ACCEPTED, federation=everybody)
        federation = Federation(Path(name), agreed, clients, rows)
        shared = serve(federation.config(), log_to(note), federation.start_clients)["bytes_shared"]
        for process in federation.clients:
            process.process.wait(60)
    seconds = times[f"ready {clients}"] - times["terms settled"]
    return {"clients": clients, "bytes_shared": shared, "seconds": seconds, "bytes_per_second": shared / seconds}


def measure_large(clients: int, rounds: int, width: int = 2000) -> dict[str, Any]:
    """Rounds of one dense layer of width² weights: seconds, CPU seconds, and the most memory that was resident."""
    with tempfile.TemporaryDirectory() as name:
        model, code = AgreedModel((Dense(width),), (width,)), AgreedFederation(batch_size=8)
        agreed = AgreementFile(rounds, model, "open", rows_can_be_computed=ACCEPTED, federation=code)
        federation = Federation(Path(name), agreed, clients, rows=30)
        coordinator, first = federation.coordinator, federation.clients[0]
        began: dict[str, float] = {}
        now: dict[str, float] = {}
        coordinator.start()
        while coordinator.running:
            for event in coordinator.follow():
                if event["event"] == "listening":
                    federation.start_clients(event["port"])
                if event["event"] == "rounds" and not began:
                    began = _used(coordinator, first)
                if event["event"] == "progress":
                    now = _used(coordinator, first)
            time.sleep(0.01)
        sha = coordinator.result()["weights_sha256"]
        for process in federation.clients:
            process.process.wait(60)
    spent = {key: (now[key] - began[key]) / rounds for key in ("seconds", "coordinator_cpu", "client_cpu")}
    return {
        "clients": clients,
        "parameters": width * width + width,
        **{f"{key}_per_round": value for key, value in spent.items()},
        "coordinator_peak_bytes": now["coordinator_peak"],
        "client_peak_bytes": now["client_peak"],
        "weights_sha256": sha,
    }


def measure_hidden(clients: int, rounds: int, schedule: str, round_trip: float) -> dict[str, Any]:
    """Rounds of 784-64-64-10 in the hidden mode, with every client a process, over links with a delay."""
    with tempfile.TemporaryDirectory() as name:
        layers = Dense(64), Square(), Dense(64), Square(), Dense(10)
        settings = HiddenSettings(schedule=schedule)  # type: ignore[arg-type]
        agreed = AgreementFile(
            rounds,
            AgreedModel(layers, (784,)),
            federation=AgreedFederation(),
            hidden=settings,
            optimizer=Optimizer(method="momentum", learning_rate=0.01),
        )
        federation = Federation(Path(name), agreed, clients, rows=8)
        coordinator, first = federation.coordinator, federation.clients[0]
        marks: list[tuple[int, dict[str, float]]] = []
        link: DelayedLink | None = None
        coordinator.start()
        while coordinator.running:
            for event in coordinator.follow():
                if event["event"] == "listening":
                    link = DelayedLink(event["port"], round_trip / 2)
                    federation.start_clients(link.port)
                if event["event"] == "rounds":
                    marks.append((0, _used(coordinator, first)))
                if event["event"] == "progress":
                    marks.append((event["round"], _used(coordinator, first)))
            time.sleep(0.01)
        result = coordinator.result()
        for process in federation.clients:
            process.process.wait(60)
        if link is not None:
            link.close()
    (start, began), (end, now) = marks[0], marks[-1]
    spent = {key: (now[key] - began[key]) / (end - start) for key in ("seconds", "coordinator_cpu", "client_cpu")}
    return {
        "clients": clients,
        "schedule": schedule,
        "round_trip": round_trip,
        "rounds": end - start,
        **{f"{key}_per_round": value for key, value in spent.items()},
        "weights_sha256": result["weights_sha256"],
    }


def _used(coordinator: Process, client: Process) -> dict[str, float]:
    """The clock, and what Linux says of two processes: CPU seconds, and the most bytes that were resident."""
    used = {"seconds": time.monotonic()}
    for name, process in (("coordinator", coordinator), ("client", client)):
        folder = Path("/proc") / str(process.process.pid)
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        used[f"{name}_cpu"] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        used[f"{name}_peak"] = 1024.0 * int(lines["VmHWM"].split()[0])
    return used


@final
class Federation:
    """A folder with keys and configurations for a coordinator and clients with random rows."""

    def __init__(
        self, folder: Path, agreed: AgreementFile, clients: int, rows: int, optimizer: Optimizer | None = None
    ) -> None:
        self._folder, self._rows = folder, rows
        self._features, self._classes = agreed.model.input_shape[0], _classes(agreed)
        self.clients = [Process(f"site-{i}", "join", folder / f"site-{i}", "site.toml") for i in range(clients)]
        self.coordinator = Process("coordinator", "serve", folder / "coordinator", "fed.toml")
        roster = make_keys(folder, [process.name for process in self.clients])
        self._keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", roster.digest)
        listening = Listening("127.0.0.1:0", deadline=600.0)
        config = CoordinatorConfig(
            "bench",
            "../agreement.toml",
            "run",
            self._keys,
            rows_can_be_computed=ACCEPTED,
            network=listening,
            optimizer=optimizer or Optimizer(),
        )
        write_atomic(folder / "agreement.toml", to_toml(agreed).encode())
        write_atomic(folder / "coordinator" / "fed.toml", to_toml(config).encode())

    def config(self) -> CoordinatorConfig:
        """The coordinator's configuration, for a coordinator in this process."""
        return load_settings(CoordinatorConfig, self._folder / "coordinator" / "fed.toml")

    def start_clients(self, port: int) -> None:
        generator, shape = np.random.default_rng(1), (self._rows, self._features)
        connecting, data = Connecting(f"127.0.0.1:{port}"), ClientData(file="rows.npz")
        settings = ClientConfig(
            "../agreement.toml", "store", self._keys, connecting, data, rows_can_be_computed=ACCEPTED
        )
        for process in self.clients:
            inputs, labels = generator.random(shape, dtype=np.float32), generator.integers(self._classes, size=shape[0])
            np.savez(self._folder / process.name / "rows.npz", inputs=inputs, labels=labels)
            write_atomic(self._folder / process.name / "site.toml", to_toml(settings).encode())
            process.start()


def _classes(agreed: AgreementFile) -> int:
    last = agreed.model.layers[-1]
    if not isinstance(last, Dense):
        raise UsageError("the last layer must be dense")
    return last.units


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rounds", "blinding", "relay", "large", "hidden"])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--rows", type=int, default=2000, help="of each client, for relay (an odd number of clients)")
    parser.add_argument("--schedule", default="S4", choices=["S2", "S4"], help="of the hidden mode")
    parser.add_argument(
        "--round-trip", type=float, default=0.0, help="seconds of delay between clients and coordinator"
    )
    options = parser.parse_args()
    if options.what == "rounds":
        measured = measure_rounds(options.clients, options.rounds)
    elif options.what == "blinding":
        measured = measure_blinding(options.clients, options.rounds)
    elif options.what == "hidden":
        measured = measure_hidden(options.clients, options.rounds, options.schedule, options.round_trip)
    elif options.what == "large":
        measured = measure_large(options.clients, options.rounds)
    else:
        measured = measure_relay(options.clients, options.rows)
    print(json.dumps({"measured": options.what, **measured}, indent=2))


if __name__ == "__main__":
    main()
