"""The same arithmetic in plain floating point: what a trained network is evaluated in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dresfl.errors import FieldError

from .arithmetic import Field, take


@final
@dataclass(frozen=True)
class Reals(Field):
    """float64 in place of residues, one channel: approximate, and only for evaluation.

    Scales are powers of two, so they shift exponents and cost no accuracy.
    """

    @property
    def moduli(self) -> tuple[int, ...]:
        raise FieldError("floating point has no modulus")

    def embed(self, integers: Tensor) -> Tensor:
        return integers.to(torch.float64).unsqueeze(0)

    def public(self, integers: Tensor) -> Tensor:
        return integers.to(torch.float64)

    def transposed(self, public: Tensor) -> Tensor:
        return public.swapaxes(-1, -2)

    def matmul_public(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right

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

    def inverse(self, elements: Tensor) -> Tensor:
        return 1.0 / elements

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(tuple(parts), axis)

    def sum(self, elements: Tensor, axis: int) -> Tensor:
        return elements.sum(axis)

    def take(self, elements: Tensor, index: Tensor) -> Tensor:
        return take(elements, index)
