"""A thousand clients in one process, and codes up to 32 shards and 32 colluders: what a round costs. Prints JSON lines.

    python -m dresfl.experiments.bench.scale > results/speed/scale.jsonl

Times are CPU time of one thread, in turns, so that other work on the machine matters little.

- `round`: a coded round of N clients, beside one of 20 clients with the same network and batch.
- `hidden round`: the same in the hidden mode by engine `direct`, which is the one that simulates many clients.
- `code`: a coded round of 1,000 clients by K and T, and the time of its decoding coefficients: by discrete logarithms,
  as rounds compute them, and as plain products.
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dresfl.api.simulate_hidden import hidden_session
from dresfl.coding import CodeParameters
from dresfl.coding.lagrange import lagrange_sums, product_factors
from dresfl.kernels.threads import torch_threads
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.local.hidden_direct import HiddenDirect

from . import stages
from .run import machine
from .stages import Setting
from .timing import Call, interleaved

FORMAT = "dresfl scale 1"

MNIST, DIGITS = (784, 64, 64, 10), (64, 32, 32, 10)
_ROWS = 32  # of each client: time does not depend on them
_HIDDEN_ROUNDS = 20_000  # that a plan is made for: more than are played


def rounds(layers: Sequence[int], clients: Sequence[int], batch: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A round for each number of clients, K = T = 1; the first one is what the others are compared with."""
    codes = {count: CodeParameters(count, batch_size=batch) for count in clients}
    sessions = {count: Setting(tuple(layers), code, _ROWS).session("cpu") for count, code in codes.items()}
    calls = {count: stages.rounds(session) for count, session in sessions.items()}
    timings = interleaved({count: call for count, (call, _) in calls.items()}, seconds, clock=time.process_time)
    first = timings[clients[0]].median
    for count, (_, units) in calls.items():
        found = timings[count].per(units)
        yield {
            "what": "round",
            "layers": list(layers),
            "batch": batch,
            "clients": count,
            "answers": sessions[count].recovery_threshold,
            "seconds": found.median,
            "best_seconds": found.best,
            "turns": found.runs,
            f"ratio_to_{clients[0]}": found.median / first,
        }


def hidden_rounds(
    layers: Sequence[int], clients: Sequence[int], batch: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """A round of the hidden mode on clear values for each number of clients, K = T = 1."""
    calls: dict[int, Call] = {}
    for count in clients:
        setting = Setting(tuple(layers), CodeParameters(count, batch_size=batch), _ROWS)
        network, rows = setting.session("cpu").network, (_ROWS,) * count
        optimizer = Optimizer("momentum", learning_rate=1e-3)
        session = hidden_session(network, setting.code, HiddenSettings(), optimizer, _HIDDEN_ROUNDS, rows, seed=1)
        engine = HiddenDirect(session, stages.synthetic_rows(session))
        calls[count] = functools.partial(engine.run_rounds, 1)
    timings = interleaved(calls, seconds, clock=time.process_time)
    for count, found in timings.items():
        yield {
            "what": "hidden round",
            "layers": list(layers),
            "batch": batch,
            "clients": count,
            "seconds": found.median,
            "best_seconds": found.best,
            "turns": found.runs,
            f"ratio_to_{clients[0]}": found.median / timings[clients[0]].median,
        }


def codes(
    layers: Sequence[int], clients: int, sizes: Sequence[int], batch: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """A round for K = T of each size, and its coefficients by both ways."""
    for size in sizes:
        code = CodeParameters(clients, size, size, batch)
        session = Setting(tuple(layers), code, _ROWS).session("cpu")
        call, units = stages.rounds(session)
        ways = _coefficients(session)
        timings = interleaved({"round": call, **ways}, seconds, clock=time.process_time)
        yield {
            "what": "code",
            "layers": list(layers),
            "batch": batch,
            "clients": clients,
            "shards": size,
            "colluders": size,
            "answers": session.recovery_threshold,
            "moduli": len(session.field.moduli),
            "seconds": timings["round"].per(units).median,
            "logarithms_seconds": timings["logarithms"].median,
            "products_seconds": timings["products"].median,
        }


def _coefficients(session: Session) -> dict[str, Call]:
    """The coefficients of the sum, for another set of survivors in every call."""
    code, field, generator = session.code, session.field, torch.Generator().manual_seed(1)

    def survivors() -> torch.Tensor:
        order = torch.randperm(session.num_clients, generator=generator)[: session.recovery_threshold]
        return order.sort().values.unsqueeze(0) + code.client_points[0]

    def products() -> torch.Tensor:
        at_targets, weights, inverses = product_factors(field, survivors(), code.data_points)
        return field.mul(field.sum(field.mul(inverses, at_targets.unsqueeze(3)), 2), weights)

    return {"logarithms": lambda: lagrange_sums(field, survivors(), code.data_points), "products": products}


def lines(seconds: float, clients: int = 1000) -> Iterator[dict[str, Any]]:
    """Everything, line by line."""
    yield {"format": FORMAT, "machine": machine(), "threads": 1, "clock": "CPU time"}
    for layers in (MNIST, DIGITS):
        yield from rounds(layers, (20, 100, clients), 64, seconds)
        yield from hidden_rounds(layers, (20, clients), 64, seconds)
    yield from codes(DIGITS, clients, (1, 2, 4, 8, 16, 32), 16, seconds)
    yield from codes(MNIST, clients, (1, 8, 32), 16, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each comparison")
    options = parser.parse_args()
    with torch_threads(1):
        for line in lines(options.seconds):
            text = json.dumps(json.loads(json.dumps(line), parse_float=lambda digits: float(f"{float(digits):.4g}")))
            print(text, flush=True)
            print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
