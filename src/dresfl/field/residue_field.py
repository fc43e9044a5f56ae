"""A residue system in float64, for primes up to 2^24: the form for CPUs, and for small layers on a GPU."""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

import torch
from torch import Tensor

from dresfl.kernels import cpu, exact_inner_length, matmul, reduce_
from dresfl.kernels.cpu import ChainStep, Coded, Encoded

from .arithmetic import PublicMatrix
from .moduli import LARGEST_MODULUS
from .residue_system import ResidueSystem, residues_of


@final
@dataclass(frozen=True)
class ResidueField(ResidueSystem):
    """Z_M as symmetric residues in float64.

    >>> field = ResidueField((101, 103, 107), num_value_moduli=2)
    >>> field.lift(field.mul(field.embed(torch.tensor([-70])), field.embed(torch.tensor([70])))).tolist()
    [-4900.0]
    """

    public_bound: int = 0  # every |public integer| stays below this; 0: look at them each time

    LARGEST_MODULUS: ClassVar[int] = LARGEST_MODULUS

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64

    def with_public_bound(self, bound: int) -> "ResidueField":
        return dataclasses.replace(self, public_bound=bound)

    def embed(self, integers: Tensor) -> Tensor:
        return cpu.embed(integers.to(self.device), self._p, self._inv_p)

    def public(self, integers: Tensor) -> PublicMatrix[Tensor]:
        bound = self.public_bound or (int(integers.abs().max()) if integers.numel() else 0)
        if exact_inner_length(self._bound, bound) >= 1:
            return PublicMatrix(integers.to(self.device, torch.float64), bound)
        return PublicMatrix(self.embed(integers), self._bound)

    def matmul_public(self, left: Tensor, right: PublicMatrix[Tensor]) -> Tensor:
        if right.values.dim() == 2:
            return matmul(left, right.values, self._p, self._inv_p, self._bound, right.bound)
        rows = left.reshape(left.shape[0], -1, left.shape[-1])
        product = matmul(rows, right.values, self._p, self._inv_p, self._bound, right.bound)
        return product.view(*left.shape[:-1], -1)

    def matmul(self, left: Tensor, right: Tensor) -> Tensor:
        return matmul(left, right, self._p, self._inv_p, self._bound, self._bound)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return cpu.add_reduce(left, right, self._p, self._inv_p)

    def sub(self, left: Tensor, right: Tensor) -> Tensor:
        return cpu.sub_reduce(left, right, self._p, self._inv_p)

    def mul(self, left: Tensor, right: Tensor) -> Tensor:
        return cpu.mul_reduce(left, right, self._p, self._inv_p)

    def sum(self, elements: Tensor, axis: int) -> Tensor:
        return reduce_(elements.sum(axis), self._p, self._inv_p)

    def chain_gradient(
        self, steps: tuple[ChainStep, ...], target_factor: int, weights: Tensor, coded: Coded | Encoded
    ) -> Tensor | None:
        """A whole chain's gradient in one call, (M,N,P); None where none is compiled."""
        if torch.device(self.device).type != "cpu":
            return None
        factors = _chain_factors(self.moduli, steps)
        target_factors = residues_of(self.moduli, self.device, self.dtype, target_factor)
        constants = self._p, self._inv_p, self._bound
        return cpu.chain_gradient(steps, factors, target_factors, weights, coded, *constants)


@lru_cache(maxsize=64)
def _chain_factors(moduli: tuple[int, ...], steps: tuple[ChainStep, ...]) -> Tensor:
    """(M,S): the residues of the steps' integers."""
    return torch.stack([residues_of(moduli, "cpu", torch.float64, step.integer) for step in steps], 1)
