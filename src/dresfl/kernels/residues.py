"""Modular products in float64, exact by bound.

Notation: p a modulus, r a residue held *symmetric*, |r| ≤ p/2 + SLACK, as an integer-valued float64.
A product of inner length n is exact in any order of summation while every partial sum is an integer
below 2^53; then one reduction brings it back. Longer sums are split.

All tensors carry the channel axis first, (M, ...); `moduli` and `inverses` are (M,) float64.
"""

from typing import Literal

import torch
from torch import Tensor

Operation = Literal["add", "sub", "mul"]

# x − p·round(x·(1/p)): for |x| ≤ 2^53 the quotient is off by at most 2/p, so |result| ≤ p/2 + 2.
SLACK = 2

# p·round(x/p) must itself stay exactly representable, hence a little below 2^53.
_EXACT = 2**53 - 2**25


# Values of all parts of a long product that a GPU computes at once: 512 MB.
_MOST_PARTS = 2**26


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """One value for each channel (M,), as (M,1,...) that broadcasts over `like` (M,...)."""
    return values.view(-1, *[1] * (like.dim() - 1))


def reduce_(x: Tensor, moduli: Tensor, inverses: Tensor) -> Tensor:
    """Reduce integer-valued x, |x| < 2^53 − 2^25, to symmetric residues, in place."""
    if _fused(x) and x.is_contiguous():
        from .float_triton import reduce_ as fused

        return fused(x, moduli, inverses)
    quotient = (x * per_channel(inverses, x)).round_()
    return x.addcmul_(quotient, per_channel(moduli, x), value=-1)


def combine(operation: Operation, left: Tensor, right: Tensor, moduli: Tensor, inverses: Tensor) -> Tensor:
    """left + right, left − right or left · right, elementwise, reduced; right broadcasts to left."""
    if _fused(left):
        from .float_triton import elementwise

        found = elementwise(operation, left, right, moduli, inverses)
        if found is not None:
            return found
    raw = left * right if operation == "mul" else left + right if operation == "add" else left - right
    return reduce_(raw, moduli, inverses)


def _fused(x: Tensor) -> bool:
    """Whether float64 residues are on a GPU that runs the Triton kernels."""
    if not x.is_cuda or x.dtype != torch.float64:
        return False
    from .gpu import fused_kernels

    return fused_kernels(str(x.device))


def canonical_(x: Tensor, moduli: Tensor) -> Tensor:
    """Take the last step from |r| ≤ p/2 + SLACK to the unique |r| ≤ (p−1)/2, in place."""
    p = per_channel(moduli, x)
    half = (p - 1) / 2
    x -= p * (x > half)
    x += p * (x < -half)
    return x


def exact_inner_length(left_bound: int, right_bound: int) -> int:
    """How many products |a·b| ≤ left_bound·right_bound a float64 sum holds exactly (0: not even one)."""
    return _EXACT // max(1, left_bound * right_bound)


def matmul(left: Tensor, right: Tensor, moduli: Tensor, inverses: Tensor, left_bound: int, right_bound: int) -> Tensor:
    """left @ right modulo each channel's modulus, for |left| ≤ left_bound and |right| ≤ right_bound.

    (M,...,m,n) @ (M,...,n,k) -> (M,...,m,k). A right factor of shape (n,k), the same integers in every
    channel, makes the whole product one GEMM.
    """
    inner = left.shape[-1]
    step = exact_inner_length(left_bound, right_bound)
    if step < 1:
        raise ValueError(f"factors up to {left_bound} and {right_bound} have no exact float64 product")
    if inner <= step:
        return reduce_(torch.matmul(left, right), moduli, inverses)
    if left.is_cuda and left.numel() // inner * right.shape[-1] * -(-inner // step) <= _MOST_PARTS:
        return matmul_at_once(left, right, moduli, inverses, step)
    total = torch.zeros((), dtype=left.dtype, device=left.device)
    for start in range(0, inner, step):
        part = torch.matmul(left[..., start : start + step], right[..., start : start + step, :])
        total = total + reduce_(part, moduli, inverses)
    # up to 2^29 parts of |r| ≤ 2^23 + SLACK each stay below 2^53
    return reduce_(total, moduli, inverses)


def matmul_at_once(left: Tensor, right: Tensor, moduli: Tensor, inverses: Tensor, step: int) -> Tensor:
    """`matmul` whose inner axis is cut into parts of at most `step`, all parts in one product: a few launches on a GPU.

    The parts are equal, so that nothing is copied to fill the last one up, if the inner length has a divisor near step.
    """
    inner = left.shape[-1]
    size = next((n for n in range(step, step // 2, -1) if inner % n == 0), step)
    parts = -(-inner // size)
    missing = parts * size - inner
    if missing:
        left = torch.nn.functional.pad(left, (0, missing))
        right = torch.nn.functional.pad(right, (0, 0, 0, missing))
    lefts = left.reshape(*left.shape[:-1], parts, size).movedim(-2, -3)  # (M,...,m,n) -> (M,...,parts,m,size)
    rights = right.reshape(*right.shape[:-2], parts, size, right.shape[-1])
    products = torch.matmul(lefts, rights)  # (M,...,parts,m,k)
    return reduce_(reduce_(products, moduli, inverses).sum(-3), moduli, inverses)
