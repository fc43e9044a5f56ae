"""What the gRPC runtime costs: seconds a round next to the local runtime, and how fast the relay is.

    python -m dresfl.experiments.bench.network rounds --clients 20 --rounds 300
    python -m dresfl.experiments.bench.network relay --clients 5 --rows 2000

Clients are processes of their own, all on this machine. Figures go to stdout as JSON.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from dresfl.deploy.settings import (
    AgreedFederation,
    AgreedModel,
    AgreementFile,
    ClientConfig,
    ClientData,
    Connecting,
    Keys,
)
from dresfl.deploy.toml import to_toml
from dresfl.experiments.config import load_config
from dresfl.experiments.training import train
from dresfl.experiments.trials.grpc_trial import Trial, federate, make_keys
from dresfl.federation import CoordinatorSettings
from dresfl.files import write_atomic
from dresfl.kernels.threads import torch_threads
from dresfl.model import Dense
from dresfl.optimizers import Optimizer
from dresfl.protocol import Training
from dresfl.runtimes.coordinator_host import CoordinatorHost
from dresfl.runtimes.grpc_runtime import Credentials, GrpcCoordinator, ListenSettings
from dresfl.runtimes.log import log_to
from dresfl.sealing import Identity


def measure_rounds(clients: int, rounds: int) -> dict[str, Any]:
    """The digits preset with every client a process, and in one process."""
    settings = (f"rounds={rounds}", f"evaluate_every={rounds}", "threads=1")
    config = load_config("digits", [*settings, f"federation.num_clients={clients}", 'dropout.model="none"'])
    with tempfile.TemporaryDirectory() as name:
        local = train(config, out=Path(name) / "local")
        result = federate(Trial("digits", clients, settings=settings), Path(name) / "trial")
    return {
        "clients": clients,
        "grpc_seconds_per_round": result["seconds"] / rounds,
        "local_seconds_per_round": local["seconds"] / rounds,
        "same_weights": result["weights_sha256"] == local["weights_sha256"],
    }


def measure_relay(clients: int, rows: int, features: int = 784) -> dict[str, Any]:
    """Dealing, sealing, relaying, opening and storing of random rows, until every client is ready."""
    times: dict[str, float] = {}

    def note(line: str) -> None:
        event = json.loads(line)
        times[event["event"] if event["event"] != "ready" else f"ready {event['ready']}"] = time.monotonic()

    with tempfile.TemporaryDirectory() as name, torch_threads(1):
        folder = Path(name)
        names = [f"site-{i}" for i in range(clients)]
        roster = make_keys(folder, names)
        everybody = AgreedFederation(max_colluders=(clients - 1) // 2)  # so that the round needs every client
        file = AgreementFile(rounds=1, model=AgreedModel((Dense(10),), (features,)), federation=everybody)
        agreement = file.with_roster(roster)
        write_atomic(folder / "agreement.toml", to_toml(file).encode())
        own = folder / "coordinator" / "keys"
        certificate, authority = (own / "certificate.pem").read_bytes(), (folder / "ca" / "ca.cert.pem").read_bytes()
        credentials = Credentials(Identity.load(own), certificate, authority, roster)
        processes: list[subprocess.Popen[bytes]] = []

        def start(port: int) -> None:
            generator = np.random.default_rng(1)
            keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", roster.digest)
            for client in names:
                inputs = generator.random((rows, features), dtype=np.float32)
                np.savez(folder / client / "rows.npz", inputs=inputs, labels=generator.integers(10, size=rows))
                connecting, data = Connecting(f"127.0.0.1:{port}"), ClientData(file="rows.npz")
                settings = ClientConfig("../agreement.toml", "store", keys, connecting, data)
                write_atomic(folder / client / "site.toml", to_toml(settings).encode())
                command = [sys.executable, "-m", "dresfl", "join", "--config", str(folder / client / "site.toml")]
                processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))  # noqa: S603

        async def run() -> int:
            host = CoordinatorHost(
                CoordinatorSettings(),
                agreement,
                credentials.identity,
                roster,
                folder,
                lambda session: Training(session, Optimizer(), rounds=1),
                lambda record, answers: None,
                log_to(note),
            )
            await GrpcCoordinator(ListenSettings(), host, credentials, log_to(note)).run(start)
            return 0 if host.machine.relay is None else host.machine.relay.relayed_bytes

        relayed = asyncio.run(run())
        for process in processes:
            process.wait(60)
    seconds = times[f"ready {clients}"] - times["terms settled"]
    return {"clients": clients, "relayed_bytes": relayed, "seconds": seconds, "bytes_per_second": relayed / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rounds", "relay"])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--rows", type=int, default=2000, help="of each client, for relay (an odd number of clients)")
    options = parser.parse_args()
    measured = (
        measure_rounds(options.clients, options.rounds)
        if options.what == "rounds"
        else measure_relay(options.clients, options.rows)
    )
    print(json.dumps({"measured": options.what, **measured}, indent=2))


if __name__ == "__main__":
    main()
