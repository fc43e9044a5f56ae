"""The exact product compared with its limit, the bare product of the same shape, and with other libraries."""

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dresfl.errors import DresError
from dresfl.field import ByteField, ResidueField, choose_moduli, modulus_limit

from .peers import PEERS, Shape
from .stages import bare_products, residues
from .timing import Call, Timing, interleaved

_BITS = 180  # and headroom: nine primes of 24 or of 22.7 bits
_POINTS = 22  # of 20 clients, a shard and a mask
_CHECKED_ROWS = 16
_CPU_BYTES = 27  # primes below 256: 200.7 bits


def shape_name(shape: Shape) -> str:
    """64x784x64: rows, the inner length, columns."""
    return "x".join(map(str, shape))


def against_fastest(timings: dict[str, Timing], limits: Iterable[str]) -> dict[str, Any]:
    """`exact` against the fastest of the libraries that the limit was timed with."""
    fastest = min(limits, key=lambda name: timings[name].median)
    return {"limit_blas": fastest, **against(timings["exact"], timings[fastest])}


def against(exact: Timing, limit: Timing) -> dict[str, Any]:
    """What is kept of a comparison: both medians, both bests and their ratios. 1.0 is the limit."""
    return {
        "seconds": exact.median,
        "limit_seconds": limit.median,
        "ratio_to_limit": exact.median / limit.median,
        "best_seconds": exact.best,
        "best_limit_seconds": limit.best,
        "best_ratio_to_limit": exact.best / limit.best,
        "runs": exact.runs,
    }


def product_200_bits(shape: Shape, *, device: str, threads: int, seconds: float, slow_products: int) -> dict[str, Any]:
    """About 200 bits, by whichever path is faster: nine primes in float64, or on a CPU 27 of a byte each.

    Operands are secret times secret, residues in their whole range. The limit is the nine bare float64 products.

    With 24-bit primes, those of the `mnist` setting, a sum of 784 products is split to stay exact; `unsplit` is the
    same with primes short enough for it. `slow_products`: peers of Python objects are left out of larger shapes.
    """
    m, n, k = shape
    field, left, right = _operands(shape, 2**24, device)
    ours: Call = functools.partial(field.matmul, left, right)
    in_floats = _in_floats(shape, 2**24, device, seconds)
    found = {"path": "float64", "threads": threads, **in_floats, "float64": in_floats}
    found["unsplit"] = _in_floats(shape, modulus_limit(n), device, seconds / 2)
    if device == "cpu":
        found["int8"], in_bytes = byte_product(shape, channels=_CPU_BYTES, device=device, seconds=seconds / 2)
        if found["int8"]["seconds"] < in_floats["seconds"]:
            ours = in_bytes
            taken = {key: found["int8"][key] for key in ("channels", "bits", "seconds", "best_seconds", "runs")}
            found |= {"path": "int8", **taken}
            found["ratio_to_limit"] = found["seconds"] / found["limit_seconds"]
            found["best_ratio_to_limit"] = found["best_seconds"] / found["best_limit_seconds"]
    found["peers"], found["left_out"] = {}, []
    for peer in PEERS:
        if not peer.installed:
            continue
        if peer.slow and m * n * k > slow_products:
            found["left_out"].append(peer.name)
            continue
        calls: dict[str, Call] = {"ours": ours, "theirs": peer.prepare(shape, threads)}
        # long turns: after a library that leaves nothing of ours in the caches, ours would start cold
        least, cold = (1, ["theirs"]) if peer.slow else (3, [])
        timings = interleaved(calls, seconds / 2, device=device, least=least, turn=0.03, cold=cold)
        found["peers"][peer.name] = {
            "seconds": timings["theirs"].median,
            "best_seconds": timings["theirs"].best,
            "runs": timings["theirs"].runs,
            "ours_seconds": timings["ours"].median,
            "speedup": timings["theirs"].median / timings["ours"].median,
        }
    found["speedup_vs_flint"] = found["peers"].get("python-flint", {}).get("speedup")
    return found


def _operands(shape: Shape, limit: int, device: str) -> tuple[ResidueField, Tensor, Tensor]:
    moduli = choose_moduli(_BITS, more_than=_POINTS, limit=limit)
    field = ResidueField(moduli, len(moduli) - 1, device)
    m, n, k = shape
    return field, residues(field, m, n), residues(field, n, k)


def _in_floats(shape: Shape, limit: int, device: str, seconds: float) -> dict[str, Any]:
    field, left, right = _operands(shape, limit, device)
    check_product(left, right, field.matmul(left, right), field.moduli)
    bare = bare_products(lambda: [(left, right)], device)
    timings = interleaved({"exact": lambda: field.matmul(left, right), **bare}, seconds, device=device)
    return {"channels": len(field.moduli), "bits": math.log2(field.modulus), **against_fastest(timings, bare)}


def byte_operands(
    shape: Shape, channels: int, device: str, *, inner_major: bool = True
) -> tuple[ByteField, Tensor, Tensor]:
    """The largest primes below 256, and factors (M,m,n) and (M,n,k) of uniform residues.

    inner_major: both factors are stored with their inner axis contiguous, as weights are; else with the other axis.
    """
    primes = tuple(p for p in range(23, 256) if all(p % q for q in range(2, 16)))[-channels:]
    field = ByteField(primes, max(1, len(primes) - 3), device)
    m, n, k = shape
    if inner_major:
        return field, residues(field, m, n), residues(field, k, n).mT
    return field, residues(field, n, m).mT, residues(field, n, k)


def byte_product(shape: Shape, *, channels: int, device: str, seconds: float) -> tuple[dict[str, Any], Call]:
    """Primes below 256 on int8 units, and the call that was timed; the limit is the vendor's product, unreduced.

    A ratio below 1.0: ours is faster than the vendor's.
    """
    field, left, right = byte_operands(shape, channels, device)
    check_product(left, right, field.matmul(left, right), field.moduli)

    def limit() -> None:
        for a, b in zip(left, right, strict=True):
            torch._int_mm(a, b)

    exact = functools.partial(field.matmul, left, right)
    timings = interleaved({"exact": exact, "limit": limit}, seconds, device=device)
    work = 2e-12 * channels * math.prod(shape)
    found = {
        "channels": channels,
        "bits": math.log2(field.modulus),
        **against(timings["exact"], timings["limit"]),
        "tops": work / timings["exact"].median,
        "limit_tops": work / timings["limit"].median,
    }
    return found, exact


def check_product(left: Tensor, right: Tensor, product: Tensor, moduli: tuple[int, ...]) -> None:
    """Compare the first rows and columns with int64 products, which are exact: n·p² < 2^63."""
    rows, columns = left[:, :_CHECKED_ROWS].cpu().to(torch.int64), right[:, :, :_CHECKED_ROWS].cpu().to(torch.int64)
    found = product[:, :_CHECKED_ROWS, :_CHECKED_ROWS].cpu().to(torch.int64)
    p = torch.tensor(moduli).view(-1, 1, 1)
    if bool(((torch.bmm(rows, columns) - found) % p).any()):
        raise DresError("the exact product is wrong on this machine", "run the tests: make test")
