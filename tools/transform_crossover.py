"""Where would transforms encode and decode faster than the matrix products of the package? Prints JSON lines.

    python tools/transform_crossover.py > results/speed/transforms.jsonl

Three ways to compute a dealer's shares, N clients, n = K + T values in each polynomial:

- matrix: `LagrangeCode.encode`, N·n multiplications for each column.
- fourier: the same shares at the same points. All points of the code are consecutive integers, so that u(α)/v(α) =
  Σ_k w_k u(β_k)/(α − β_k) is a convolution with 1/d: one complex Fourier transform forth and one back, exact in
  float64 since the values enter in two halves. `coding.logarithms` explains v and w.
- ntt: another code, with roots of unity as points. It needs primes p with 2N | p − 1 and powers of two for n and N. N/n
  number-theoretic transforms of length n, compiled, in float64 without a reduction between the butterflies.

Decoding at each of K shards has the same two first ways: K·R multiplications for each column, or a convolution over all
N points with zeros where nobody answered. Decoding of the sum takes R multiplications and no transform is faster.

Every way is checked: the first two give the same residues, the third is checked against the polynomial. Times are CPU
time of one thread: the best and the median of all turns.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from dresfl.coding import LagrangeCode
from dresfl.coding.logarithms import GridFactors, grid_factors
from dresfl.experiments.bench.run import machine
from dresfl.experiments.bench.timing import interleaved
from dresfl.field import ResidueField
from dresfl.field.moduli import is_prime
from dresfl.kernels.threads import torch_threads

CHANNELS = 2
LANES = 16  # columns that a compiled transform works on at a time
VALUES = 2**21  # residues of each channel that one call of a way makes


# -- the same code, by a convolution -----------------------------------------------------------------------------------


class Convolution:
    """Values at the points `nodes` of a grid -> values at the points `targets`, for polynomials through the nodes."""

    def __init__(self, field: ResidueField, nodes: list[int], targets: list[int]) -> None:
        self.field, self.first = field, min(nodes[0], targets[0])
        self.nodes, self.targets = (torch.tensor(p) - self.first for p in (nodes, targets))
        found: GridFactors = grid_factors(field.moduli, [nodes], targets)
        self.weights = field.from_canonical(found.weights[:, 0]).unsqueeze(1)  # (M,1,nodes)
        self.at_targets = field.from_canonical(found.at_targets[:, 0]).unsqueeze(1)  # (M,1,targets)
        size = int(max(self.nodes.max(), self.targets.max())) + 1
        lowest, highest = int(self.targets.min() - self.nodes.max()), int(self.targets.max() - self.nodes.min())
        self.length = _fast_length(size + max(0, highest - lowest + 1 - size))
        kernel = torch.zeros(len(field.moduli), self.length, dtype=torch.float64)
        used = [d for d in range(lowest, highest + 1) if d]
        for m, p in enumerate(field.moduli):
            inverses = torch.tensor([(pow(d, -1, p) + p // 2) % p - p // 2 for d in used], dtype=torch.float64)
            kernel[m, [d % self.length for d in used]] = inverses
        self.kernel = torch.fft.fft(kernel).unsqueeze(1)  # (M,1,L)

    def __call__(self, values: Tensor) -> Tensor:
        """(M,C,nodes) -> (M,C,targets)."""
        weighted = self.field.mul(values, self.weights.expand_as(values).contiguous())
        high = torch.round(weighted * 2.0**-12)
        padded = torch.zeros(*values.shape[:2], self.length, dtype=torch.complex128)
        padded[..., self.nodes] = torch.complex(high, weighted - high * 2.0**12)
        found = torch.fft.ifft(torch.fft.fft(padded) * self.kernel)[..., self.targets]
        whole = self.field.add(self._reduced(found.real) * 2.0**12, self._reduced(found.imag))
        return self.field.mul(whole, self.at_targets.expand_as(whole).contiguous())

    def _reduced(self, values: Tensor) -> Tensor:
        p = torch.tensor(self.field.moduli, dtype=torch.float64).view(-1, 1, 1)
        integers = torch.round(values)
        return integers - p * torch.round(integers / p)


def _fast_length(least: int) -> int:
    """The least length from `least` on that has no prime factor above 5."""
    while True:
        rest = least
        for d in (2, 3, 5):
            while rest % d == 0:
                rest //= d
        if rest == 1:
            return least
        least += 1


# -- another code, by number-theoretic transforms ----------------------------------------------------------------------


@numba.njit
def _butterflies(x, twiddles, p):  # type: ignore[no-untyped-def]
    """NTT of x (n,LANES) in place, entries in bit-reversed order. |x| grows by p/2 a stage: no reduction is needed."""
    n, inverse, half = x.shape[0], 1.0 / p, 1
    while half < n:
        step = n // (2 * half)
        for start in range(0, n, 2 * half):
            for j in range(half):
                w, low, high = twiddles[j * step], x[start + j], x[start + j + half]
                for lane in range(LANES):
                    product = high[lane] * w
                    product -= p * np.rint(product * inverse)
                    high[lane] = low[lane] - product
                    low[lane] += product
        half *= 2


@numba.njit
def _encode(values, order, back, forth, twists, p, out):  # type: ignore[no-untyped-def]
    """values (blocks,n,LANES) at the n-th roots of unity -> out (blocks,cosets,n,LANES) at `cosets` cosets of them."""
    blocks, n = values.shape[0], values.shape[1]
    inverse, work, coefficients = 1.0 / p, np.empty((n, LANES)), np.empty((n, LANES))
    for block in range(blocks):
        for i in range(n):
            work[order[i]] = values[block, i]
        _butterflies(work, back, p)
        for i in range(n):
            for lane in range(LANES):
                coefficients[i, lane] = work[i, lane] - p * np.rint(work[i, lane] * inverse)
        for c in range(twists.shape[0]):
            target = out[block, c]
            for i in range(n):
                w, row, place = twists[c, i], coefficients[i], target[order[i]]
                for lane in range(LANES):
                    product = row[lane] * w
                    place[lane] = product - p * np.rint(product * inverse)
            _butterflies(target, forth, p)
            for i in range(n):
                row = target[i]
                for lane in range(LANES):
                    row[lane] -= p * np.rint(row[lane] * inverse)


def _primitive_root(p: int) -> int:
    divisors = [d for d in range(2, 2**13) if (p - 1) % d == 0 and is_prime(d)]
    rest = p - 1
    for d in divisors:
        while rest % d == 0:
            rest //= d
    divisors += [rest] if rest > 1 else []
    return next(g for g in range(2, p) if all(pow(g, (p - 1) // d, p) != 1 for d in divisors))


class RootsOfUnity:
    """Values at the n-th roots of unity modulo p -> values at the N points g·ω^i, of a coset of the N-th roots."""

    def __init__(self, p: int, size: int, clients: int) -> None:
        self.p, self.size, self.clients = p, size, clients
        generator = pow(_primitive_root(p), (p - 1) // (2 * clients), p)  # of order 2N: outside the N-th roots
        self.root = pow(generator, 2 * clients // size, p)
        self.points = [generator * pow(generator, 2 * i, p) % p for i in range(clients)]

        def symmetric(values: list[int]) -> Any:
            return np.array([v - p * (v > p // 2) for v in values], dtype=np.float64)

        bits = size.bit_length() - 1
        self.order = np.array([int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(size)])
        self.back = symmetric([pow(self.root, -i, p) for i in range(max(1, size // 2))])
        self.forth = symmetric([pow(self.root, i, p) for i in range(max(1, size // 2))])
        scale = pow(size, -1, p)
        cosets = clients // size
        self.twists = np.stack(
            [symmetric([scale * pow(self.points[c], i, p) % p for i in range(size)]) for c in range(cosets)]
        )

    def __call__(self, values: Any) -> Any:
        """(blocks,n,LANES) -> (blocks,N/n,n,LANES): coset c of block b holds the points c, c + N/n, c + 2·N/n, …"""
        out = np.empty((values.shape[0], self.clients // self.size, self.size, LANES))
        _encode(values, self.order, self.back, self.forth, self.twists, float(self.p), out)
        return out

    def check(self) -> None:
        """Against the polynomial, one column, by Horner's rule."""
        generator = np.random.default_rng(1)
        y = generator.integers(0, self.p, self.size)
        powers = np.array([pow(self.root, -i, self.p) for i in range(self.size)])
        i = np.arange(self.size)
        terms = powers[np.outer(i, i) % self.size] * y % self.p
        coefficients = terms.sum(1) % self.p * pow(self.size, -1, self.p) % self.p
        points = np.array(self.points)
        expected = np.zeros(self.clients, dtype=np.int64)
        for c in coefficients[::-1].tolist():
            expected = (expected * points + c) % self.p
        values = np.zeros((1, self.size, LANES))
        values[0, :, 0] = y - self.p * (y > self.p // 2)
        found = self(values)[0, :, :, 0].astype(np.int64) % self.p  # (cosets,n)
        if not np.array_equal(found.T.ravel(), expected):
            raise SystemExit(f"the transform of length {self.size} modulo {self.p} is wrong")


# -- measurements ------------------------------------------------------------------------------------------------------


def friendly_primes(clients: int) -> tuple[int, ...]:
    """The largest primes p < 2^24 with 2N | p − 1, ascending."""
    candidates = range((2**24 - 2) // (2 * clients) * 2 * clients + 1, 2 * clients, -2 * clients)
    found: list[int] = []
    for p in candidates:
        if is_prime(p):
            found.append(p)
        if len(found) == CHANNELS:
            return tuple(sorted(found))
    raise SystemExit(f"there are too few primes for {clients} clients")


def residues(field: ResidueField, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return field.embed(torch.randint(-(2**40), 2**40, shape, generator=generator))


def same(field: ResidueField, left: Tensor, right: Tensor) -> bool:
    p = torch.tensor(field.moduli, dtype=torch.float64).view(-1, *[1] * (left.dim() - 1))
    return bool((torch.remainder(left - right, p) == 0).all())


def encoding(clients: int, size: int, seconds: float) -> dict[str, Any]:
    """Nanoseconds for each residue of a share, by each way."""
    field = ResidueField(friendly_primes(clients), CHANNELS)
    masks = size // 2
    code = LagrangeCode(field, clients, size - masks, masks, degree=1)
    columns = max(LANES, VALUES // clients // LANES * LANES)
    block = max(
        LANES, 2**19 // (clients * CHANNELS) // LANES * LANES
    )  # columns of a call: 4 MB of shares, as dealers take
    shards, hidden = residues(field, size - masks, block), residues(field, masks, block)
    convolution = Convolution(field, list(code.data_points + code.mask_points), list(code.client_points))
    across = torch.cat((shards, hidden), 1).swapaxes(1, 2).contiguous()  # (M,C,n): its layout, for nothing
    if not same(field, convolution(across).swapaxes(1, 2), code.encode(shards, hidden)):
        raise SystemExit("the convolution gave other shares than the matrix")
    transforms = [RootsOfUnity(p, size, clients) for p in field.moduli]
    for transform in transforms:
        transform.check()
    lanes = [np.random.default_rng(1).integers(-(2**22), 2**22, (block // LANES, size, LANES)).astype(np.float64)]
    times = range(max(1, columns // block))

    def repeated(call: Callable[[], object]) -> Callable[[], None]:
        return lambda: [call() for _ in times][:0] and None

    timings = interleaved(
        {
            "matrix": repeated(lambda: code.encode(shards, hidden)),
            "fourier": repeated(lambda: convolution(across)),
            "ntt": repeated(lambda: [transform(lanes[0]) for transform in transforms]),
        },
        seconds,
        clock=time.process_time,
    )
    made = CHANNELS * clients * block * len(times)
    return {
        "what": "encode",
        "clients": clients,
        "shards_and_masks": size,
        **{f"{way}_ns": 1e9 * timing.best / made for way, timing in timings.items()},
        **{f"{way}_median_ns": 1e9 * timing.median / made for way, timing in timings.items()},
    }


def decoding(clients: int, shards: int, threshold: int, seconds: float) -> dict[str, Any]:
    """Nanoseconds for each residue of an answer: decoding at each shard, and of the sum."""
    field = ResidueField(friendly_primes(clients), CHANNELS)
    code = LagrangeCode(field, clients, shards, 1, degree=1)
    survivors = torch.randperm(clients, generator=torch.Generator().manual_seed(1))[:threshold].sort().values.tolist()
    nodes = [code.client_points[j] for j in survivors]
    convolution = Convolution(field, nodes, list(code.data_points))
    matrix = field.from_canonical(_canonical(field, nodes, list(code.data_points)))  # (M,K,R)
    total = field.sum(matrix, 1).unsqueeze(1)
    columns = max(16, 2**19 // (threshold * CHANNELS))
    answers = residues(field, threshold, columns)
    across = answers.swapaxes(1, 2).contiguous()
    if not same(field, convolution(across).swapaxes(1, 2), field.matmul(matrix, answers)):
        raise SystemExit("the convolution gave other values than the matrix")
    timings = interleaved(
        {
            "matrix": lambda: field.matmul(matrix, answers),
            "fourier": lambda: convolution(across),
            "sum": lambda: field.matmul(total, answers),
        },
        seconds,
        clock=time.process_time,
    )
    made = CHANNELS * threshold * columns
    return {
        "what": "decode",
        "clients": clients,
        "shards": shards,
        "answers": threshold,
        **{f"{way}_ns": 1e9 * timing.best / made for way, timing in timings.items()},
        **{f"{way}_median_ns": 1e9 * timing.median / made for way, timing in timings.items()},
    }


def _canonical(field: ResidueField, nodes: list[int], targets: list[int]) -> Any:
    found = grid_factors(field.moduli, [nodes], targets)
    p = np.array(field.moduli).reshape(-1, 1, 1)
    return found.at_targets[:, 0][:, :, None] * found.inverses[:, 0] % p * found.weights[:, 0][:, None] % p


def lines(seconds: float) -> Iterator[dict[str, Any]]:
    yield {"format": "dresfl transforms 1", "machine": machine(), "threads": 1, "channels": CHANNELS}
    for clients in (1024, 4096):
        for exponent in range(1, int(math.log2(clients))):
            yield encoding(clients, 2**exponent, seconds)
    for clients, shards, threshold in (
        (1024, 4, 57),
        (1024, 32, 505),
        (1024, 128, 257),
        (4096, 512, 2049),
        (4096, 2048, 4095),
    ):
        yield decoding(clients, shards, threshold, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each comparison")
    options = parser.parse_args()
    with torch_threads(1):
        for line in lines(options.seconds):
            text = json.dumps(line)
            print(json.dumps(json.loads(text, parse_float=lambda digits: float(f"{float(digits):.4g}"))), flush=True)
            print(text[:160], file=sys.stderr)


if __name__ == "__main__":
    main()
