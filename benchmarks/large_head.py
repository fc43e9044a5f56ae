"""One coded round of the paper's largest head, 25088-4096-4096-10, 20 clients, batch 64, on a GPU.

    PYTHONPATH=src python benchmarks/large_head.py

Synthetic sparse rows like VGG features. A tiny learning rate keeps random labels from driving the weights away.
Prints one JSON line: milliseconds a round (median of blocks of four), the field, peak memory, the longest kernels.
"""

import json
import math
import statistics
import time

import torch
from torch.profiler import ProfilerActivity, profile

from dresfl.coding import CodeParameters
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, Training
from dresfl.runtimes.local import LocalFederation, no_dropouts

ROWS = 8


def federation() -> tuple[Session, LocalFederation]:
    network = mlp((25088, 4096, 4096, 10), input_bits=4, weight_bits=10)
    session = Session(network, CodeParameters(20), (ROWS,) * 20, seed=5, device="cuda")
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(20):
        dense = torch.randint(17, (ROWS, 25088), dtype=torch.int32, generator=generator)
        inputs = dense * (torch.rand((ROWS, 25088), generator=generator) < 0.1)
        labels = torch.randint(10, (ROWS,), generator=generator)
        data.append((inputs, torch.nn.functional.one_hot(labels, 10).to(torch.int32)))
    server = Training(session, Optimizer(learning_rate=1e-9), rounds=1000)
    return session, LocalFederation(session, server, data, no_dropouts(20, 1), "coded")


def timed(rounds: int, local: LocalFederation) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    played = local.run_rounds(rounds)
    torch.cuda.synchronize()
    if len(played) != rounds or any(record.outcome != "stepped" for record, _ in played):
        raise SystemExit(f"a round did not step: {played[-1]}")
    return (time.perf_counter() - start) / rounds


def main() -> None:
    session, local = federation()
    first = timed(1, local)  # compiles the kernels
    seconds = [timed(4, local) for _ in range(5)]
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        timed(1, local)
    kernels = sorted(profiled.key_averages(), key=lambda event: -event.device_time_total)[:8]
    field = session.field
    print(
        json.dumps(
            {
                "milliseconds": round(1e3 * statistics.median(seconds), 2),
                "first_round_seconds": round(first, 1),
                "channels": len(field.moduli),
                "modulus_bits": round(math.log2(field.modulus), 1),
                "needed_bits": round(session.needed_bits, 1),
                "parameters": session.network.num_parameters,
                "answers": session.recovery_threshold,
                "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
                "kernels_ms": {event.key[:60]: round(event.device_time_total / 1e3, 2) for event in kernels},
                "gpu": torch.cuda.get_device_name(),
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
