"""How fast the simulation of the hidden mode is, and whether a GPU gives the CPU's bits.

    python -m dresfl.experiments.bench.hidden --device cuda --check
    python -m dresfl.experiments.bench.hidden --device cuda --networks conv head

prints a JSON line for each network and schedule: rounds a second of engine `direct`, on random rows. The first rounds,
in which kernels are compiled and a graph is recorded, are left out. `--check` plays some rounds first: single ones on
the CPU, single ones on the device, and blocks of them on the device, which a GPU replays as a graph. All three must
come to the same weights.
"""

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

import torch
from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.kernels.threads import torch_threads
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session
from dresfl.protocol.hidden.plan import make_plan
from dresfl.protocol.hidden.settings import HiddenSettings, Schedule
from dresfl.runtimes.local.hidden_direct import HiddenDirect

from .run import machine

_ROWS = 100  # of each client
_WARM = 70  # rounds before the clock starts: the first one, and a block
_CHECKED = 6  # rounds that are compared

Data = list[tuple[Tensor, Tensor]]


def _head(width: int, classes: int) -> Network:
    """A head on VGG19's features, as in the recipes: rows of norm 1, small values."""
    layers = Dense(width, init=15.8), Quadratic(), Dense(width), Quadratic(), Dense(classes)
    return Network(layers, (25_088,), input_bits=9, input_magnitude=-3.0)


NETWORKS: dict[str, Network] = {
    "mlp": mlp((784, 64, 64, 10), input_bits=4, weight_bits=10),
    "conv": Network(
        (Conv2d(16, kernel=5, stride=2), Square(), Flatten(), Dense(100), Square(), Dense(10)), (28, 28, 1), 4
    ),
    "head": _head(64, 10),
    "wide-head": _head(128, 100),
}


def session_of(network: Network, schedule: Schedule, rounds: int, device: str) -> Session:
    """A session of 20 clients that trains a network for so many rounds."""
    parameters = CodeParameters(num_clients=20)
    settings = HiddenSettings(schedule=schedule, trusted_dealers=True, kappa=78)
    plan = make_plan(network, parameters, settings, Optimizer("momentum", 0.001, "cosine"), rounds)
    client_rows = (_ROWS,) * parameters.num_clients
    return Session(plan.network, parameters, client_rows, seed=1, hidden=plan, device=device)


def rounds_per_second(network: Network, schedule: Schedule, rounds: int, device: str) -> dict[str, Any]:
    """One setting, measured over `rounds` rounds."""
    warm = _WARM if device == "cuda" else 2
    session = session_of(network, schedule, warm + rounds + 1, device)
    run = HiddenDirect(session, _random_rows(session))
    _play(run, warm)
    _wait(device)
    start, busy = time.perf_counter(), time.process_time()
    _play(run, warm + rounds)
    _wait(device)
    seconds, computing = (time.perf_counter() - start) / rounds, (time.process_time() - busy) / rounds
    return {
        "parameters": network.num_parameters,
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


def same_bits(network: Network, schedule: Schedule, rounds: int, device: str) -> dict[str, bool]:
    """Whether single rounds and blocks on a device come to the weights of single rounds on the CPU."""
    session = session_of(network, schedule, rounds, "cpu")
    data = _random_rows(session)
    wanted = HiddenDirect(session, data, in_blocks=False)
    _play(wanted, rounds)
    found = {}
    for name, in_blocks in (("single", False), ("blocks", True)):
        run = HiddenDirect(dataclasses.replace(session, device=device), data, in_blocks=in_blocks)
        _play(run, rounds)
        found[name] = run.weights.equal(wanted.weights)
    return found


def _play(run: HiddenDirect, until: int) -> None:
    while run.round_number < until:
        run.run_rounds(until - run.round_number)


def _random_rows(session: Session) -> Data:
    """A tenth of the inputs is lit; so brightly that a row of small inputs has a norm of about 1."""
    generator, network, found = torch.Generator().manual_seed(0), session.network, []
    full = round(2.0 ** (network.input_bits + network.input_magnitude))
    for rows in session.client_rows:
        lit = torch.rand((rows, network.input_size), generator=generator) < 0.13
        labels = torch.randint(0, network.num_classes, (rows,), generator=generator)
        bright = full if network.input_magnitude >= 0 else full // 8
        found.append((lit.to(torch.int32) * bright, torch.nn.functional.one_hot(labels, network.num_classes)))
    return found


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure networks with both schedules; exit with 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=0, help="0: 20 on a CPU, 2,000 on a GPU")
    parser.add_argument("--threads", type=int, default=0, help="torch's; 0 leaves them alone")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=["mlp"])
    parser.add_argument("--schedules", nargs="+", choices=("S4", "S2"), default=["S4", "S2"])
    parser.add_argument("--check", action="store_true", help="compare the bits first")
    given = parser.parse_args()
    rounds = given.rounds or (2000 if given.device == "cuda" else 20)
    with torch_threads(given.threads):
        for name in given.networks:
            for schedule in given.schedules:
                line: dict[str, Any] = {"network": name}
                if given.check:
                    line["same_bits"] = same_bits(NETWORKS[name], schedule, _CHECKED, given.device)
                line |= rounds_per_second(NETWORKS[name], schedule, rounds, given.device)
                print(json.dumps(line), flush=True)
                if not all(line.get("same_bits", {}).values()):
                    sys.exit(1)


if __name__ == "__main__":
    main()
