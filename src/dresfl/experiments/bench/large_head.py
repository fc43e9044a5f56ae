"""One coded round of the paper's largest head, 25088-4096-4096-10, 20 clients, batch 64, on a GPU.

    python -m dresfl.experiments.bench.large_head

Synthetic sparse rows like VGG features. The learning rate is tiny, so that random labels hardly move the weights.
Prints one JSON line: milliseconds a round (median of blocks of four), the field, peak memory, the longest kernels.
"""

import functools
import json
import math

import torch
from torch.profiler import ProfilerActivity, profile

from dresfl.errors import DresError
from dresfl.runtimes.local import LocalFederation

from . import stages
from .timing import interleaved

_KERNELS, _NAME = 24, 160  # how many are printed, and how much of their names


def _play(local: LocalFederation, rounds: int) -> None:
    played = local.run_rounds(rounds)
    if len(played) != rounds or any(record.outcome != "stepped" for record, _ in played):
        raise DresError(f"a round did not step: {played[-1]}")


def main() -> None:
    """Measure the round on the GPU."""
    session = stages.Setting(layers=(25088, 4096, 4096, 10), rows_per_client=8).session("cuda")
    local = stages.federation(session, density=0.1, learning_rate=1e-9)
    calls = {rounds: functools.partial(_play, local, rounds) for rounds in (1, 4)}
    first = interleaved({1: calls[1]}, 0.0, device="cuda", least=1, cold=[1])[1].median  # compiles the kernels
    seconds = interleaved({4: calls[4]}, 0.0, device="cuda", least=5, cold=[4])[4].per(4).median
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        calls[1]()
        torch.cuda.synchronize()
    kernels = sorted(profiled.key_averages(), key=lambda event: -event.device_time_total)
    found = {
        "milliseconds": round(1e3 * seconds, 2),
        "first_round_seconds": round(first, 1),
        "channels": len(session.field.moduli),
        "modulus_bits": round(math.log2(session.field.modulus), 1),
        "needed_bits": round(session.needed_bits, 1),
        "parameters": session.network.num_parameters,
        "answers": session.recovery_threshold,
        "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        "all_kernels_ms": round(sum(event.device_time_total for event in kernels) / 1e3, 2),
        "kernels_ms": [
            [event.key[:_NAME], event.count, round(event.device_time_total / 1e3, 2)] for event in kernels[:_KERNELS]
        ],
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
