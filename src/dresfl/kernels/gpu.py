"""Which fused GPU kernel serves a call, if any. Triton is imported on the first call that needs it.

Every function also exists in plain torch operations, here or in `field`, and gives the same bits there.
"""

from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from .cpu import bytes_of_totals
from .residues import per_channel

# The longest inner axis whose sum of products |r·r'| ≤ 125² stays inside int32.
MAX_INNER = (2**31 - 1) // 125**2


@lru_cache(maxsize=8)
def fused_kernels(device: str) -> bool:
    """Whether this device runs the Triton kernels: an NVIDIA GPU, with Triton installed."""
    return torch.device(device).type == "cuda" and torch.version.hip is None and find_spec("triton") is not None


def matmul_int8(left: Tensor, right: Tensor, moduli: Tensor) -> Tensor:
    """left @ right modulo primes below 256, residues int8 in and out; `int8_triton` says which shapes are allowed."""
    if fused_kernels(str(left.device)):
        from . import bytes_triton
        from .int8_triton import matmul_int8 as fused

        few = bytes_triton.has_few_rows(left, right, moduli)
        return bytes_triton.few_rows_product(left, right, moduli) if few else fused(left, right, moduli)
    if left.dim() == right.dim() == 3 and left.shape[2] <= MAX_INNER and left.device.type == "cpu" and _cpu_int8():
        totals = torch.empty((len(moduli), left.shape[1], right.shape[2]), dtype=torch.int32)
        for a, b, total in zip(left, right, totals, strict=True):
            torch._int_mm(a, b, out=total)
        return bytes_of_totals(totals, moduli)
    return _symmetric(left.to(torch.int64) @ right.to(torch.int64), moduli)


def _symmetric(integers: Tensor, moduli: Tensor) -> Tensor:
    """Integers (M,...), or (1,...) for all channels alike -> symmetric residues (M,...) int8."""
    p = per_channel(moduli.to(torch.int64), integers)
    return ((integers + p // 2) % p - p // 2).to(torch.int8)


@lru_cache(maxsize=1)
def _cpu_int8() -> bool:
    """Whether this CPU's int8 product is exact: without VNNI instructions, libraries may saturate 16-bit sums."""
    worst = torch.full((64, 256), 125, dtype=torch.int8)
    signs = torch.tensor([1, -1], dtype=torch.int8)
    try:
        products = [torch._int_mm(worst * s, worst.mT.contiguous() * t) for s in signs for t in signs]
    except RuntimeError:
        return False
    wanted = 256 * 125**2
    return all(bool((x == wanted * s).all()) for x, s in zip(products, (1, -1, -1, 1), strict=True))


def largest_magnitude(values: Tensor) -> Tensor:
    """max |x| of a tensor that is not empty, a 0-dimensional tensor: one pass, and no tensor of magnitudes."""
    low, high = torch.aminmax(values)
    return torch.maximum(-low, high)


def stepped_integers(integers: Tensor, update: Tensor, scales: Tensor, noise: Tensor) -> Tensor | None:
    """integers − Q(scales·update) as float64, (P,), in one pass; None where there is no kernel for it."""
    if not fused_kernels(str(update.device)):
        return None
    from . import step_triton

    if update.numel() < step_triton.FEWEST or not all(x.shape == update.shape for x in (integers, scales, noise)):
        return None
    return step_triton.stepped_integers(integers, update, scales, noise)


def squares_by_sixteen(values: Tensor) -> Tensor | None:
    """Four levels of the balanced tree of squares of values (P,) float64; None where there is no kernel for it."""
    if not fused_kernels(str(values.device)) or values.dtype != torch.float64:
        return None
    from . import step_triton

    return step_triton.squares_by_sixteen(values) if values.numel() >= step_triton.FEWEST else None


def elementwise_int8(operation: str, left: Tensor, right: Tensor, moduli: Tensor) -> Tensor | None:
    """Residues left + right ("add"), left − right ("sub") or left · right ("mul"); None where no kernel does it."""
    if not fused_kernels(str(left.device)) or not left.numel() or {left.dtype, right.dtype} != {torch.int8}:
        return None
    from .bytes_triton import elementwise

    return elementwise(operation, left, right, moduli)


def embed_int8(integers: Tensor, moduli: Tensor) -> Tensor:
    """Integers (...) below 2^31 in size -> symmetric residues (M,...) int8."""
    if fused_kernels(str(moduli.device)):
        from .embed_triton import embed_int8 as fused

        return fused(integers, moduli)
    return _symmetric(integers.to(torch.int64).unsqueeze(0), moduli)
