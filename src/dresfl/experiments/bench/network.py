"""What the gRPC runtime costs: seconds a round next to the local runtime, and how fast the relay is.

    python -m dresfl.experiments.bench.network rounds --clients 20 --rounds 300
    python -m dresfl.experiments.bench.network relay --clients 5 --rows 2000

Clients are processes of their own, all on this machine. Figures go to stdout as JSON.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

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
from dresfl.experiments.config import load_config
from dresfl.experiments.training import train
from dresfl.experiments.trials.grpc_trial import Process, Trial, federate, make_keys
from dresfl.files import write_atomic
from dresfl.model import Dense
from dresfl.runtimes.log import log_to


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

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [Process(f"site-{i}", "join", folder / f"site-{i}", "site.toml") for i in range(clients)]
        roster = make_keys(folder, [process.name for process in processes])
        keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", roster.digest)
        everybody = AgreedFederation(max_colluders=(clients - 1) // 2)  # so that the round needs every client
        agreed = AgreementFile(rounds=1, model=AgreedModel((Dense(10),), (features,)), federation=everybody)
        coordinator = CoordinatorConfig("relay", "../agreement.toml", "run", keys, network=Listening("127.0.0.1:0"))
        write_atomic(folder / "agreement.toml", to_toml(agreed).encode())
        write_atomic(folder / "coordinator" / "fed.toml", to_toml(coordinator).encode())

        def start(port: int) -> None:
            generator = np.random.default_rng(1)
            settings = ClientConfig(
                "../agreement.toml", "store", keys, Connecting(f"127.0.0.1:{port}"), ClientData(file="rows.npz")
            )
            for process in processes:
                inputs = generator.random((rows, features), dtype=np.float32)
                np.savez(folder / process.name / "rows.npz", inputs=inputs, labels=generator.integers(10, size=rows))
                write_atomic(folder / process.name / "site.toml", to_toml(settings).encode())
                process.start()

        config = load_settings(CoordinatorConfig, folder / "coordinator" / "fed.toml")
        shared = serve(config, log_to(note), start)["bytes_shared"]
        for process in processes:
            process.process.wait(60)
    seconds = times[f"ready {clients}"] - times["terms settled"]
    return {"clients": clients, "bytes_shared": shared, "seconds": seconds, "bytes_per_second": shared / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rounds", "relay"])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--rows", type=int, default=2000, help="of each client, for relay (an odd number of clients)")
    options = parser.parse_args()
    if options.what == "rounds":
        measured = measure_rounds(options.clients, options.rounds)
    else:
        measured = measure_relay(options.clients, options.rows)
    print(json.dumps({"measured": options.what, **measured}, indent=2))


if __name__ == "__main__":
    main()
