"""The exact product against its limit, the bare product of the same shape, and against other libraries."""

import math
from typing import Any

import torch
from torch import Tensor

from dresfl.errors import DresError
from dresfl.field import ByteField, ResidueField, choose_moduli, modulus_limit

from .peers import PEERS, Shape
from .stages import residues
from .timing import Timing, interleaved

_BITS = 180  # and headroom: nine primes of 24 or of 22.7 bits
_POINTS = 22  # of 20 clients, a shard and a mask
_CHECKED_ROWS = 16


def shape_name(shape: Shape) -> str:
    """64x784x64: rows, the inner length, columns."""
    return "x".join(map(str, shape))


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


def wide_product(shape: Shape, *, device: str, threads: int, seconds: float, slow_products: int) -> dict[str, Any]:
    """Nine channels in float64. Operands are secret times secret, residues in their whole range.

    With 24-bit primes, those of the `mnist` setting, a sum of 784 products is split to stay exact; `unsplit` is the
    same with primes short enough for it. `slow_products`: peers of Python objects are left out of larger shapes.
    """
    m, n, k = shape
    found = _wide(shape, 2**24, device, seconds)
    field, left, right = _operands(shape, 2**24, device)
    found["threads"] = threads
    found["unsplit"] = _wide(shape, modulus_limit(n), device, seconds / 2)
    found["peers"], found["left_out"] = {}, []
    for peer in PEERS:
        if not peer.installed:
            continue
        if peer.slow and m * n * k > slow_products:
            found["left_out"].append(peer.name)
            continue
        calls = {"ours": lambda: field.matmul(left, right), "theirs": peer.prepare(shape, threads)}
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


def _wide(shape: Shape, limit: int, device: str, seconds: float) -> dict[str, Any]:
    field, left, right = _operands(shape, limit, device)
    _check(left, right, field.matmul(left, right), field.moduli)
    calls = {"exact": lambda: field.matmul(left, right), "limit": lambda: torch.matmul(left, right)}
    timings = interleaved(calls, seconds, device=device)
    return {
        "channels": len(field.moduli),
        "bits": math.log2(field.modulus),
        **against(timings["exact"], timings["limit"]),
    }


def byte_product(shape: Shape, *, channels: int, device: str, seconds: float) -> dict[str, Any]:
    """Primes below 256 on a GPU's int8 tensor cores; the limit is the vendor's product without any reduction.

    The right factor lies as weights do, inner axis contiguous. Below 1.0 ours is faster than the vendor's.
    """
    primes = tuple(p for p in range(23, 256) if all(p % q for q in range(2, 16)))[-channels:]
    field = ByteField(ResidueField(primes, len(primes) - 3, device))
    m, n, k = shape
    left, right = residues(field, m, n), residues(field, k, n).mT
    _check(left, right, field.matmul(left, right), field.moduli)

    def limit() -> None:
        for a, b in zip(left, right, strict=True):
            torch._int_mm(a, b)

    timings = interleaved({"exact": lambda: field.matmul(left, right), "limit": limit}, seconds, device=device)
    work = 2e-12 * len(primes) * m * n * k
    return {
        "channels": len(primes),
        "bits": math.log2(field.modulus),
        **against(timings["exact"], timings["limit"]),
        "tops": work / timings["exact"].median,
        "limit_tops": work / timings["limit"].median,
    }


def _check(left: Tensor, right: Tensor, product: Tensor, moduli: tuple[int, ...]) -> None:
    """Hold the first rows and columns against int64, where n·p² < 2^63 is exact: a fast wrong product is no result."""
    rows, columns = left[:, :_CHECKED_ROWS].cpu().to(torch.int64), right[:, :, :_CHECKED_ROWS].cpu().to(torch.int64)
    found = product[:, :_CHECKED_ROWS, :_CHECKED_ROWS].cpu().to(torch.int64)
    p = torch.tensor(moduli).view(-1, 1, 1)
    if bool(((torch.bmm(rows, columns) - found) % p).any()):
        raise DresError("the exact product is wrong on this machine", "run the tests: make test")
