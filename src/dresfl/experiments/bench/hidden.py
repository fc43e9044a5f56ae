"""How fast the simulation of the hidden mode is: `python -m dresfl.experiments.bench.hidden --device cuda`.

Prints a JSON line for each setting: rounds a second of engine `direct`, on random rows. The first rounds, in which
kernels are compiled and a graph is recorded, are left out.
"""

import argparse
import json
import time
from typing import Any

import torch

from dresfl.coding import CodeParameters
from dresfl.kernels.threads import torch_threads
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session
from dresfl.protocol.hidden.plan import make_plan
from dresfl.protocol.hidden.settings import HiddenSettings, Schedule
from dresfl.runtimes.local.hidden_direct import HiddenDirect

from .run import machine

_ROWS = 100  # of each client
_WARM = 70  # rounds before the clock starts: the first one, and a block


def rounds_per_second(sizes: tuple[int, ...], schedule: Schedule, rounds: int, device: str) -> dict[str, Any]:
    """One setting, measured over `rounds` rounds."""
    parameters = CodeParameters(num_clients=20)
    optimizer = Optimizer("momentum", 0.001, "cosine")
    network = mlp(sizes, input_bits=4, weight_bits=10)
    warm = _WARM if device == "cuda" else 2
    settings = HiddenSettings(schedule=schedule, trusted_dealers=True)
    plan = make_plan(network, parameters, settings, optimizer, warm + rounds + 1)
    client_rows = (_ROWS,) * parameters.num_clients
    session = Session(plan.network, parameters, client_rows, seed=1, hidden=plan, device=device)
    run = HiddenDirect(session, _random_rows(session))
    while run.round_number < warm:
        run.run_rounds(warm - run.round_number)
    _wait(device)
    first, start, busy = run.round_number, time.perf_counter(), time.process_time()
    while run.round_number < first + rounds:
        run.run_rounds(first + rounds - run.round_number)
    _wait(device)
    seconds, computing = (time.perf_counter() - start) / rounds, (time.process_time() - busy) / rounds
    return {
        "sizes": sizes,
        "schedule": schedule,
        "device": device,
        "rounds": rounds,
        "ms_per_round": round(seconds * 1e3, 3),
        "cpu_ms_per_round": round(computing * 1e3, 3),  # of all threads: what other work on the machine does not change
        "rounds_per_second": round(1 / seconds, 1),
        "minutes_for_20000": round(seconds * 20_000 / 60, 2),
        "threads": torch.get_num_threads(),
        "machine": machine(),
    }


def _random_rows(session: Session) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator, found = torch.Generator().manual_seed(0), []
    for rows in session.client_rows:
        bright = torch.rand((rows, session.network.input_size), generator=generator) < 0.13
        labels = torch.randint(0, session.network.num_classes, (rows,), generator=generator)
        found.append((bright.to(torch.int32) * 16, torch.nn.functional.one_hot(labels, session.network.num_classes)))
    return found


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure the paper's network with both schedules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=0, help="0: 20 on a CPU, 2,000 on a GPU")
    parser.add_argument("--threads", type=int, default=0, help="torch's; 0 leaves them alone")
    parser.add_argument("--sizes", type=int, nargs="+", default=[784, 64, 64, 10])
    given = parser.parse_args()
    rounds = given.rounds or (2000 if given.device == "cuda" else 20)
    schedules: tuple[Schedule, ...] = ("S4", "S2")
    with torch_threads(given.threads):
        for schedule in schedules:
            print(json.dumps(rounds_per_second(tuple(given.sizes), schedule, rounds, given.device)), flush=True)


if __name__ == "__main__":
    main()
