"""The CPU kernels beside what they replace and the bare float64 products they contain. Prints JSON lines.

    python benchmarks/cpu_kernels.py [--threads 1] [--times 15] [--flint]

Every row is one interleaved comparison in one process: medians in microseconds, then ratios. `bare_torch` and
`bare_numpy` are the float64 products alone, by torch's BLAS and NumPy's; `plain` the torch kernels, `ours` these.
On one thread, time is the thread's own CPU time, which a shared machine disturbs least.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dresfl.field import PublicStream, ResidueField
from dresfl.field.lifting import garner_inverses, radix_limbs
from dresfl.kernels import chacha20, cpu, residues
from dresfl.model import mlp

# nine channels of 24 bits, 216 bits together
PRIMES = (16777099, 16777121, 16777127, 16777139, 16777141, 16777153, 16777183, 16777199, 16777213)
MODULI = torch.tensor(PRIMES, dtype=torch.float64)
INVERSES = 1.0 / MODULI
BOUND = PRIMES[-1] // 2 + 1 + residues.SLACK
WEIGHT_BOUND = 1000
CHANNELS = len(PRIMES)


def medians(runs: dict[str, Callable[[], object]], times: int, clock: Callable[[], float]) -> dict[str, float]:
    """Microseconds of each, taken in turn so that all meet the same disturbances."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(times + 2):
        for name, run in runs.items():
            start = clock()
            run()
            if turn >= 2:
                found[name].append(clock() - start)
    return {name: round(statistics.median(values) * 1e6, 1) for name, values in found.items()}


def uniform(*shape: int) -> Tensor:
    half = PRIMES[0] // 2
    return torch.randint(-half, half + 1, (CHANNELS, *shape)).to(torch.float64)


def weights(*shape: int) -> Tensor:
    return torch.randint(-WEIGHT_BOUND, WEIGHT_BOUND + 1, shape).to(torch.float64)


def products() -> dict[str, tuple[Tensor, Tensor, int]]:
    """The products that occur: alone, in one client's gradient, and in a round of nine clients."""
    return {
        "64x784x64": (uniform(64, 784), uniform(784, 64), BOUND),
        "256x784x256": (uniform(256, 784), uniform(784, 256), BOUND),
        "client forward 64x784 @ 784x64": (uniform(1, 64, 784), weights(784, 64), WEIGHT_BOUND),
        "client weight gradient 784x64 @ 64x64": (uniform(1, 64, 784).swapaxes(-1, -2), uniform(1, 64, 64), BOUND),
        "client forward 64x64 @ 64x64": (uniform(1, 64, 64), weights(64, 64), WEIGHT_BOUND),
        "client forward 64x64 @ 64x10": (uniform(1, 64, 64), weights(64, 10), WEIGHT_BOUND),
        "round forward 9 x 64x784 @ 784x64": (uniform(9, 64, 784), weights(784, 64), WEIGHT_BOUND),
        "round weight gradient 9 x 784x64 @ 64x64": (
            uniform(9, 64, 784).swapaxes(-1, -2),
            uniform(9, 64, 64),
            BOUND,
        ),
        "encode 9x2 @ 2x50816": (uniform(9, 2), uniform(2, 50816), BOUND),
        "decode 1x9 @ 9x55050": (uniform(1, 9), uniform(9, 55050), BOUND),
    }


def report(**row: object) -> None:
    print(json.dumps(row), flush=True)


def compare_products(times: int, clock: Callable[[], float], flint: bool) -> None:
    for name, (left, right, bound) in products().items():
        a, b = left.numpy(), right.numpy()
        runs: dict[str, Callable[[], object]] = {
            "bare_torch": lambda left=left, right=right: torch.matmul(left, right),
            "bare_numpy": lambda a=a, b=b: np.matmul(a, b),
            "plain": lambda left=left, right=right, bound=bound: residues.matmul(
                left, right, MODULI, INVERSES, BOUND, bound
            ),
            "ours": lambda left=left, right=right, bound=bound: cpu.matmul(left, right, MODULI, INVERSES, BOUND, bound),
        }
        found = medians(runs, times, clock)
        ratios = {f"ours/{other}": round(found["ours"] / found[other], 3) for other in ("bare_torch", "bare_numpy")}
        ratios["plain/bare_torch"] = round(found["plain"] / found["bare_torch"], 3)
        if flint and name[0].isdigit():
            found["flint_200_bits"] = flint_product(left.shape[-2], left.shape[-1], right.shape[-1])
            ratios["flint/ours"] = round(found["flint_200_bits"] / found["ours"], 1)
        gigaflops = 2 * CHANNELS * left[0].numel() * right.shape[-1] / found["ours"] / 1e3
        report(what="product", case=name, microseconds=found, **ratios, gigaflops=round(gigaflops, 1))


def flint_product(rows: int, inner: int, columns: int) -> float:
    """python-flint's fmpz_mod_mat over 2^200 − 75, best of three, microseconds."""
    import random

    import flint

    rng = random.Random(1)  # noqa: S311
    p = 2**200 - 75
    context = flint.fmpz_mod_ctx(p)

    def matrix(m: int, n: int) -> flint.fmpz_mod_mat:
        return flint.fmpz_mod_mat(m, n, [rng.randrange(p) for _ in range(m * n)], context)

    left, right = matrix(rows, inner), matrix(inner, columns)
    flint.ctx.threads = torch.get_num_threads()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        left * right
        best = min(best, time.perf_counter() - start)
    return round(best * 1e6, 1)


def compare_gradient(times: int, clock: Callable[[], float], clients: int) -> None:
    """The whole gradient of 784-64-64-10 at batch 64, beside the float64 products it contains."""
    network = mlp((784, 64, 64, 10), input_bits=4, weight_bits=10)
    field = ResidueField(PRIMES, CHANNELS - 1)
    rows = uniform(clients, 64, 794)
    inputs, targets = rows[..., :784], rows[..., 784:]
    integers = network.initial_weights(PublicStream(1))
    layers = [
        (uniform(clients, 64, fan_in), weights(fan_in, fan_out), uniform(clients, 64, fan_out))
        for fan_in, fan_out in (parameters.fan for parameters in network.parameters)
    ]
    arrays = [tuple(x.numpy() for x in layer) for layer in layers]

    def bare(factors: Sequence[tuple[Any, Any, Any]], product: Callable[[Any, Any], object]) -> None:
        for depth, (x, matrix, delta) in enumerate(factors):
            product(x, matrix)
            product(x.swapaxes(-1, -2), delta)
            if depth:
                product(delta, matrix.T)

    runs: dict[str, Callable[[], object]] = {
        "bare_torch": lambda: bare(layers, torch.matmul),
        "bare_numpy": lambda: bare(arrays, np.matmul),
        "gradient": lambda: network.gradient(field, integers, inputs, targets),
    }
    found = medians(runs, times, clock)
    ratios = {f"gradient/{name}": round(found["gradient"] / found[name], 3) for name in ("bare_torch", "bare_numpy")}
    report(what="gradient", clients=clients, microseconds=found, **ratios)


def compare_passes(times: int, clock: Callable[[], float]) -> None:
    rows = 28608
    keys = torch.randint(-(2**31), 2**31, (rows, 8)).to(torch.int32)
    counters, nonces = torch.arange(rows, dtype=torch.int32), keys[:, :3].contiguous()
    garner, radix = garner_inverses(PRIMES), radix_limbs(PRIMES)
    gradient = uniform(55050)
    column = MODULI.view(-1, 1, 1)

    def torch_digits() -> Tensor:
        digits = residues.canonical_(gradient.clone(), MODULI)
        for i in range(CHANNELS - 1):
            rest = digits[i + 1 :]
            rest -= digits[i]
            rest *= garner[i, i + 1 :].view(-1, 1)
            residues.canonical_(residues.reduce_(rest, MODULI[i + 1 :], INVERSES[i + 1 :]), MODULI[i + 1 :])
        return digits

    for size in ((64, 64), (784, 64), (9 * 784, 64)):
        x, y, z = uniform(*size), uniform(*size), uniform(*size)
        bias = uniform(1, size[1])
        pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "reduce in place": (
                lambda z=z: residues.reduce_(z, MODULI, INVERSES),
                lambda z=z: cpu.reduce_(z, MODULI, INVERSES),
            ),
            "add bias": (
                lambda x=x, bias=bias: residues.reduce_(x + bias, MODULI, INVERSES),
                lambda x=x, bias=bias: cpu.add_reduce(x, bias, MODULI, INVERSES),
            ),
            "square": (
                lambda x=x: residues.reduce_(x * x, MODULI, INVERSES),
                lambda x=x: cpu.square_reduce(x, MODULI, INVERSES),
            ),
            "2·x·delta": (
                lambda x=x, y=y: residues.reduce_((x + x) * y, MODULI, INVERSES),
                lambda x=x, y=y: cpu.double_mul_reduce(x, y, MODULI, INVERSES),
            ),
            "scale": (
                lambda x=x: residues.reduce_(x * column, MODULI, INVERSES),
                lambda x=x: cpu.scale_reduce(x, MODULI, MODULI, INVERSES),
            ),
        }
        for name, (plain, ours) in pairs.items():
            found = medians({"plain": plain, "ours": ours}, times, clock)
            moved = 16e-3 * x.numel()  # read once, written once
            report(
                what="pass",
                case=f"{name} {CHANNELS}x{size[0]}x{size[1]}",
                microseconds=found,
                speedup=round(found["plain"] / found["ours"], 1),
                gigabytes_per_second=round(moved / found["ours"], 1),
            )
    whole: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        f"ChaCha20, {rows} blocks": (
            lambda: chacha20.chacha20_blocks(keys, counters, nonces),
            lambda: cpu.chacha20_blocks(keys, counters, nonces),
        ),
        "mixed-radix digits of 55050 values": (
            torch_digits,
            lambda: cpu.mixed_radix_digits(gradient, MODULI, INVERSES, garner),
        ),
    }
    for name, (plain, ours) in whole.items():
        found = medians({"plain": plain, "ours": ours}, times, clock)
        report(what="pass", case=name, microseconds=found, speedup=round(found["plain"] / found["ours"], 1))
    if cpu.is_compiled():
        digits = torch_digits()
        found = medians({"ours": lambda: cpu.nearest_float64(digits, radix)}, times, clock)
        report(what="pass", case="digits to float64, 55050 values", microseconds=found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument(
        "--flint", action="store_true", help="time python-flint's 200-bit products too (slow to set up)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    start = time.perf_counter()
    cpu.matmul(uniform(8, 8), uniform(8, 8), MODULI, INVERSES, BOUND, BOUND)
    first = round(time.perf_counter() - start, 2)
    kept = cpu.keep_freed_memory()
    report(
        what="setting",
        compiled=cpu.is_compiled(),
        threads=arguments.threads,
        first_product_seconds=first,
        keeps_freed_memory=kept,
        torch=torch.__version__,
        numpy=np.__version__,
    )
    compare_products(arguments.times, clock, arguments.flint)
    compare_gradient(arguments.times, clock, 1)
    compare_gradient(arguments.times, clock, 9)
    compare_passes(arguments.times, clock)


if __name__ == "__main__":
    main()
