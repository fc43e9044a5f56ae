"""Where the time of one client's gradient and of one coded round goes on this CPU, kernel call by kernel call.

    python -m dresfl.experiments.bench.cpu_profile --out profile.jsonl

One JSON line for each finding. Every time is the least of many, in microseconds, with the thread count beside it.
Residues are synthetic; the setting is that of the `mnist` preset.
"""

import argparse
import functools
import importlib
import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from dresfl.files import write_atomic
from dresfl.kernels import cpu
from dresfl.kernels.cpu.sharing import kernels_alone_share
from dresfl.kernels.threads import torch_threads
from dresfl.protocol import Answer, encoded_gradient, mask_rows

from . import stages
from .timing import Call

_SECONDS = 0.1  # for each thing that is timed

Found = dict[str, Any]


def least(call: Callable[[], object], seconds: float = _SECONDS, runs: int = 5) -> float:
    """Microseconds of the fastest of the calls that fit into some seconds, at least `runs`."""
    call()
    best, end, count = float("inf"), time.perf_counter() + seconds, 0
    while count < runs or time.perf_counter() < end:
        start = time.perf_counter_ns()
        call()
        best = min(best, (time.perf_counter_ns() - start) / 1e3)
        count += 1
    return best


def machine() -> Iterator[Found]:
    """What this CPU is, and how the vector loops were compiled for it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {key.strip(): value.strip() for key, value in info.items()}
    yield {
        "what": "machine",
        "model": fields.get("model name", platform.processor()),
        "family": f"{fields.get('cpu family')} {fields.get('model')} {fields.get('stepping')}",
        "MHz": fields.get("cpu MHz"),
        "flags": sorted(flag for flag in fields.get("flags", "").split() if flag.startswith(("avx", "fma", "amx"))),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "mkl": torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]
        "threads": torch.get_num_threads(),
        "caches": {
            str(path.name): [(path / name).read_text().strip() for name in ("level", "type", "size")]
            for path in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
        },
    }
    if cpu._compiled is not None:
        import llvmlite.binding as llvm

        compiled = cpu._compiled
        yield {"what": "llvm", "cpu": llvm.get_host_cpu_name(), "tile": [compiled.ROWS, compiled.WIDTH]}


def products() -> Iterator[Found]:
    """Every product of a gradient (1 client) and of a round (9 clients): ours, torch's, in GFLOP/s."""
    session = stages.Setting().session("cpu")
    field = session.field
    bound = field._bound
    for answers in (1, session.recovery_threshold):
        for left, right in _pairs(session, answers):
            operations = 2 * left.numel() * right.shape[-1]
            right_bound = 2**12 if right.dim() == 2 else bound

            def ours(left: Tensor = left, right: Tensor = right, right_bound: int = right_bound) -> Tensor:
                return cpu.matmul(left, right, field._p, field._inv_p, bound, right_bound)

            def bare(left: Tensor = left, right: Tensor = right) -> Tensor:
                return torch.matmul(left, right)

            for threads in (1, 2):
                with torch_threads(threads), threadpool_limits(threads):
                    times = {"ours": least(ours), "torch": least(bare)}
                yield {
                    "what": "product",
                    "shape": f"{tuple(left.shape)} @ {tuple(right.shape)}",
                    "transposed": [left.stride(-1) != 1, right.stride(-1) != 1],
                    "threads": threads,
                    "us": {key: round(value, 1) for key, value in times.items()},
                    "gflops": {key: round(operations / value / 1e3, 1) for key, value in times.items()},
                }


def _pairs(session: stages.Session, answers: int) -> list[tuple[Tensor, Tensor]]:
    """The factors of the layers' products as the network meets them: coded rows are slices."""
    field, network = session.field, session.network
    coded = stages.residues(field, answers, session.batch_size, session.row_width)
    pairs = []
    for depth, parameters in enumerate(network.parameters):
        fan_in, fan_out = parameters.fan
        inputs = coded[..., :fan_in] if depth == 0 else stages.residues(field, answers, session.batch_size, fan_in)
        deltas = stages.residues(field, answers, session.batch_size, fan_out)
        weights = torch.randint(-4096, 4096, (fan_in, fan_out)).double()
        pairs += [(inputs, weights), (inputs.swapaxes(-1, -2), deltas)]
        if depth:
            pairs.append((deltas, weights.T))
    return pairs


@contextmanager
def _recorded() -> Iterator[list[tuple[str, str, float]]]:
    """Every compiled kernel that runs, every concatenation and gather: (name, sizes, microseconds)."""
    calls: list[tuple[str, str, float]] = []
    chain = importlib.import_module("dresfl.kernels.cpu.chain")
    share, cat = cpu.share, torch.cat

    def timed_share(kernel: Any, units: int, large: bool, numbers: Any, *tensors: Tensor) -> None:
        start = time.perf_counter_ns()
        share(kernel, units, large, numbers, *tensors)
        calls.append((getattr(kernel, "__name__", "?"), str(numbers[:4]), (time.perf_counter_ns() - start) / 1e3))

    def timed_cat(*arguments: Any, **named: Any) -> Tensor:
        start = time.perf_counter_ns()
        found: Tensor = cat(*arguments, **named)
        calls.append(("torch.cat", str(tuple(found.shape)), (time.perf_counter_ns() - start) / 1e3))
        return found

    cpu.share = chain.share = timed_share  # type: ignore[attr-defined]
    torch.cat = timed_cat
    try:
        yield calls
    finally:
        cpu.share = chain.share = share  # type: ignore[attr-defined]
        torch.cat = cat


def traces() -> Iterator[Found]:
    """One gradient and one round, call by call: the least time of each call over many runs, and what is left."""
    session = stages.Setting().session("cpu")
    local = stages.federation(session)
    calls: dict[str, Call] = {"gradient": stages.gradient(session), "round": lambda: local.run_rounds(1)}
    bare = {"gradient": stages.bare_gradient(session), "round": stages.bare_round(session)}
    for name, call in calls.items():
        for threads in (1, 2):
            with torch_threads(threads), threadpool_limits(threads):
                total = least(call, 1.5)
                limits = {library: round(least(run, 0.8), 1) for library, run in bare[name].items()}
                runs: list[list[tuple[str, str, float]]] = []
                with _recorded() as recorded:
                    for _ in range(30):
                        recorded.clear()
                        call()
                        runs.append(list(recorded))
            usual = [run for run in runs if [c[:2] for c in run] == [c[:2] for c in runs[-1]]]
            parts = [
                [*entries[0][:2], round(min(entry[2] for entry in entries), 1)] for entries in zip(*usual, strict=True)
            ]
            inside = sum(part[2] for part in parts)
            yield {
                "what": name,
                "threads": threads,
                "us": round(total, 1),
                "bare_us": limits,
                "ratio": round(total / min(limits.values()), 2),
                "inside_calls_us": round(inside, 1),
                "left_us": round(total - inside, 1),
                "calls": parts,
            }


def sections() -> Iterator[Found]:
    """The sections of one coded round, one after the other, as the local runtime plays it."""
    session = stages.Setting().session("cpu")
    local = stages.federation(session)
    clients = list(range(session.recovery_threshold))
    for threads in (1, 2):
        best: dict[str, float] = {}
        with torch_threads(threads), threadpool_limits(threads), kernels_alone_share():
            for _ in range(25):
                ticks = [("", time.perf_counter_ns())]

                def tick(name: str, ticks: list[tuple[str, int]] = ticks) -> None:
                    ticks.append((name, time.perf_counter_ns()))

                number = local.training.round_number
                batch = session.batch_rows(number)
                tick("batch")
                shards = local.rows[local.hidden_rows(batch)]
                tick("gather")
                masked = mask_rows(session, local.keys[batch.dealers], batch.rows, shards)
                tick("mask")
                answers = encoded_gradient(session, local.training.weights, *masked, clients).unbind(1)
                tick("encode and gradients")
                for client in clients[:-1]:
                    local.training.receive(Answer(number, client, answers[client]))
                tick("receive")
                session.code.sum_decoder(clients)
                tick("decoder")
                local.training.receive(Answer(number, clients[-1], answers[-1]))
                tick("decode and step")
                for (_, start), (name, end) in itertools.pairwise(ticks):
                    best[name] = min(best.get(name, float("inf")), (end - start) / 1e3)
        yield {"what": "sections", "threads": threads, "us": {key: round(value, 1) for key, value in best.items()}}


def assembly() -> Iterator[Found]:
    """How often each instruction stands in the compiled product: broadcasts apart from or inside multiply-adds."""
    import collections

    if cpu._compiled is None:
        return
    for text in cpu._compiled.product.inspect_asm().values():
        lines = [line.split("#")[0].split() for line in text.splitlines() if line.startswith("\t") and "zmm" in line]
        counts = collections.Counter(line[0] + (" mem" if "(" in " ".join(line) else "") for line in lines if line)
        yield {"what": "assembly", "zmm": dict(counts.most_common(20))}


def hand_over() -> Iterator[Found]:
    """What a call costs beyond its work: one kernel on almost nothing, on one thread and two; copies of 4 MB."""
    session = stages.Setting().session("cpu")
    field = session.field
    small = torch.zeros((len(field.moduli), 64), dtype=torch.float64)
    for threads in (1, 2):
        with torch_threads(threads), threadpool_limits(threads):
            call = functools.partial(
                cpu.share, cpu._compiled.reduce, 64, True, (len(field.moduli), 64), small, field._p, field._inv_p
            )
            share = least(call)
        yield {"what": "hand-over", "threads": threads, "us": round(share, 2)}
    block = torch.zeros(2**19, dtype=torch.float64)
    there = torch.zeros_like(block)
    with torch_threads(1), threadpool_limits(1):
        yield {
            "what": "copies of 4 MB",
            "clone_us": round(least(block.clone), 1),
            "copy_us": round(least(lambda: there.copy_(block)), 1),
            "python_call_us": round(least(lambda: torch.empty(8)), 2),
        }


def main() -> None:
    """Measure everything, and write it line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    parser.add_argument(
        "--parts", nargs="*", default=["machine", "sections", "traces", "assembly", "products", "hand_over"]
    )
    options = parser.parse_args()
    cpu.keep_freed_memory()
    lines: list[str] = []
    for part in options.parts:
        for found in globals()[part]():
            lines.append(json.dumps(found))
            print(lines[-1], flush=True)
            write_atomic(options.out, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
