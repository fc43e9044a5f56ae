"""What a round of the hidden mode costs: `python -m dresfl.experiments.bench.hidden_round`, a JSON line a setting.

As many clients as a hop needs play the real protocol in one thread. Seconds are those of the thread's CPU: the median
over the clients of one round, then over the rounds after the first. Messages are packed and unpacked as on a network,
but not sent.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from dresfl.coding import CodeParameters
from dresfl.kernels.threads import torch_threads
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session
from dresfl.protocol.hidden.plan import make_plan
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.local.hidden import HiddenFederation
from dresfl.runtimes.local.hidden_timing import timed_round

from .run import machine


@final
@dataclass(frozen=True)
class Setting:
    """One setting that is measured."""

    sizes: tuple[int, ...]
    num_clients: int
    schedule: str = "S4"
    max_colluders: int = 1
    num_shards: int = 1
    batch_size: int = 64
    check: str = "A"
    rounds: int = 3  # that are played; the first is not counted


SETTINGS = {
    "S4": Setting((784, 64, 64, 10), 20),
    "S2": Setting((784, 64, 64, 10), 20, schedule="S2"),
    "one hidden layer": Setting((784, 64, 10), 9),
    "four hidden layers": Setting((784, 64, 64, 64, 64, 10), 20),
    "check C": Setting((784, 64, 64, 10), 20, check="C"),
    "two shards": Setting((784, 64, 64, 10), 20, num_shards=2, batch_size=32),
    "two colluders": Setting((784, 64, 64, 10), 20, schedule="S2", max_colluders=2),
    "four colluders": Setting((784, 64, 64, 10), 20, schedule="S2", max_colluders=4, rounds=2),
}


def session_of(setting: Setting, planned_rounds: int = 20_000) -> Session:
    """A session of a setting, planned for a long run, with a few rows for each client."""
    code = CodeParameters(setting.num_clients, setting.num_shards, setting.max_colluders, setting.batch_size)
    network = mlp(setting.sizes, input_bits=4, weight_bits=10)
    settings = HiddenSettings(schedule=setting.schedule, check=setting.check, kappa=74)  # type: ignore[arg-type]
    optimizer = Optimizer(method="momentum", learning_rate=0.02, schedule="cosine")
    rows = (8,) * setting.num_clients
    plan = make_plan(network, code, settings, optimizer, planned_rounds, client_rows=rows)
    return Session(plan.network, code, rows, seed=1, hidden=plan, run=bytes(32))


def _rows(session: Session) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rows like those of handwritten digits: one pixel in five is not black."""
    generator, network, found = torch.Generator().manual_seed(1), session.network, []
    for rows in session.client_rows:
        shape = rows, network.input_size
        drawn = torch.rand(shape, generator=generator) < 0.2
        labels = torch.randint(0, network.num_classes, (rows,), generator=generator)
        inputs = torch.randint(0, 17, shape, generator=generator) * drawn
        found.append((inputs, torch.nn.functional.one_hot(labels, network.num_classes)))
    return found


def measure(setting: Setting) -> dict[str, Any]:
    """CPU seconds of a client and of the coordinator in a round, with what travels."""
    session = session_of(setting)
    federation = HiddenFederation(session, _rows(session))
    plan, needed = session.hidden_plan, session.answers_needed
    federation.clients = federation.clients[:needed]
    clients, coordinators = [], []
    for _ in range(setting.rounds):
        client, coordinator = timed_round(federation)
        clients.append(client)
        coordinators.append(coordinator)
    families = session.hidden_families
    held = families.seed_sets.held_by(0)
    return {
        "network": "-".join(map(str, setting.sizes)),
        "clients": setting.num_clients,
        "colluders": setting.max_colluders,
        "shards": setting.num_shards,
        "batch": setting.batch_size,
        "schedule": setting.schedule,
        "check": setting.check,
        "threshold": session.recovery_threshold,
        "answers_needed": needed,
        "trips": plan.trips,
        "primes": len(plan.moduli),
        "values_opened": plan.values_per_round,
        "upload_mb": plan.upload_bytes / 1e6,
        "download_mb": plan.download_bytes / 1e6,
        "mask_seeds_of_a_client": sum(number in families.mask_seeds for number in held),
        "zero_words_of_a_client": sum(number in families.zero_seeds(total=False) for number in held),
        "client_ms": 1e3 * statistics.median(clients[1:]),
        "coordinator_ms": 1e3 * statistics.median(coordinators[1:]),
        "security_bits": round(plan.security_bits, 1),
        "return_mb": 2 * session.network.num_parameters * len(plan.moduli) * session.field.residue_bytes / 1e6,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", choices=[*SETTINGS, []], help="which settings; all if none is named")
    chosen = parser.parse_args(arguments).settings or list(SETTINGS)
    with torch_threads(1):
        for name in chosen:
            row = measure(SETTINGS[name])
            rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
            print(json.dumps({"setting": name, **machine(), **rounded}), flush=True)


if __name__ == "__main__":
    main()
