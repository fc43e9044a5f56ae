"""The speed of the exact int8 product on the GPU at hand: one JSON line per shape.

    PYTHONPATH=src python benchmarks/int8_gemm.py [--seconds 1.0] [--only forward]

Operands are uniform residues, as every coded value is: zeros would draw less power and run a quarter faster. Each
shape runs for `--seconds` back to back, so the figure is one the GPU's power limit lets it keep; `tops_start` is the
median of the first 20 launches. TOPS = 2·M·N·m·n·k / s / 1e12, with the reduction to int8, and any copy, inside.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dresfl.kernels.int8_triton import matmul_int8

PRIMES = [p for p in range(23, 256) if all(p % q for q in range(2, 16))][::-1]  # 46 of them, 251 first


class Case(NamedTuple):
    """M channels of N products (m,n) @ (n,k); layout: which factor is stored with its inner axis contiguous."""

    name: str
    channels: int
    matrices: int
    m: int
    n: int
    k: int
    left_inner: bool = True
    right_inner: bool = True
    square: bool = False


CASES = [
    Case("forward, 25088 features", 30, 1, 1280, 25088, 4096),
    Case("forward, 4096 features", 30, 1, 1280, 4096, 4096),
    Case("forward, 4096 features, squared", 30, 1, 1280, 4096, 4096, square=True),
    Case("square matrices", 4, 1, 8192, 8192, 8192),
    Case("forward, right factor not inner-major", 30, 1, 1280, 4096, 4096, right_inner=False),
    Case("weight gradient, 25088 features", 30, 1, 25088, 1280, 4096, left_inner=False, right_inner=False),
    Case("weight gradient, 4096 features", 30, 1, 4096, 1280, 4096, left_inner=False, right_inner=False),
    Case("1024 features and units", 30, 1, 1280, 1024, 1024),
    Case("20 clients, own rows, own weights", 30, 20, 64, 784, 64),
    Case("20 clients, weight gradient", 30, 20, 784, 64, 64, left_inner=False, right_inner=False),
    Case("one channel", 1, 1, 1280, 4096, 4096),
    Case("784 features, 64 units", 30, 1, 1280, 784, 64),
    Case("784 features, 64 units, 9 channels", 9, 1, 64, 784, 64),
]


def residues(moduli: list[int], *shape: int) -> Tensor:
    out = torch.empty((len(moduli), *shape), dtype=torch.int8, device="cuda")
    for channel, p in zip(out, moduli, strict=True):
        channel.random_(-(p // 2), p // 2 + 1)
    return out


def launch_times(call: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of each launch, for about `seconds`."""
    call()  # compiles
    torch.cuda.synchronize()
    times: list[float] = []
    while sum(times) < 1000 * seconds:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(21)]  # type: ignore[no-untyped-call]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.cuda.synchronize()
        times += [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return times


def wrong_values(case: Case, left: Tensor, right: Tensor, z: Tensor, primes: list[int]) -> int:
    """How many of a 256 × 256 corner of the first and last matrix differ from a float64 product, exact below 2^53."""
    wrong = 0
    for channel, matrix in ((0, 0), (case.channels - 1, case.matrices - 1)):
        p = primes[channel]
        exact = left[channel, matrix, -256:].double() @ right[channel, matrix, :, -256:].double()
        exact -= p * torch.round(exact / p)
        wrong += int((z[channel, matrix, -256:, -256:] != exact).sum())
    return wrong


def measure(case: Case, seconds: float) -> dict[str, object]:
    primes = PRIMES[: case.channels]
    moduli = torch.tensor(primes, dtype=torch.int32, device="cuda")
    n = case.matrices
    left = residues(primes, n, case.m, case.n) if case.left_inner else residues(primes, n, case.n, case.m).mT
    right = residues(primes, n, case.k, case.n).mT if case.right_inner else residues(primes, n, case.n, case.k)
    out = torch.full((case.channels, n, case.m, case.k), 77, dtype=torch.int8, device="cuda")

    def call() -> object:
        if case.square:
            return matmul_int8(left, right, moduli, square=True, out=out)
        return matmul_int8(left, right, moduli, out=out)

    call()
    wrong = wrong_values(case, left, right, out, primes)
    times = launch_times(call, seconds)
    steady = statistics.median(times[len(times) // 2 :])
    work = 2 * case.channels * n * case.m * case.n * case.k
    return {
        **case._asdict(),
        "tops": round(work / steady / 1e9, 1),
        "tops_start": round(work / statistics.median(times[:20]) / 1e9, 1),
        "ms": round(steady, 4),
        "exact": wrong == 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to run each shape")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    options = parser.parse_args()
    exact = True
    for case in CASES:
        if options.only in case.name:
            row = measure(case, options.seconds)
            exact &= bool(row["exact"])
            print(json.dumps(row | {"gpu": torch.cuda.get_device_name()}), flush=True)
            torch.cuda.empty_cache()
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
