"""The same operations in floating point: what a trained network is evaluated in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from .arithmetic import Arithmetic, PublicMatrix, take_or_zero


@final
@dataclass(frozen=True)
class Reals(Arithmetic[Tensor]):
    """float64 in place of residues, in one channel: approximate, and only for evaluation.

    Scales are powers of two. They change exponents alone and cost no accuracy.
    """

    def embed(self, integers: Tensor) -> Tensor:
        return integers.to(torch.float64).unsqueeze(0)

    def public(self, integers: Tensor) -> PublicMatrix[Tensor]:
        return PublicMatrix(integers.to(torch.float64))

    def matmul_public(self, left: Tensor, right: PublicMatrix[Tensor]) -> Tensor:
        return left @ right.values

    def matmul(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right

    def sub(self, left: Tensor, right: Tensor) -> Tensor:
        return left - right

    def mul(self, left: Tensor, right: Tensor) -> Tensor:
        return left * right

    def scale(self, elements: Tensor, factor: int) -> Tensor:
        return elements * float(factor)

    def add_integer(self, elements: Tensor, integer: int) -> Tensor:
        return elements + float(integer)

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(tuple(parts), axis)

    def sum(self, elements: Tensor, axis: int) -> Tensor:
        return elements.sum(axis)

    def take(self, elements: Tensor, index: Tensor) -> Tensor:
        return take_or_zero(elements, index)
