"""A residue system in int8, for primes below 256: what the tensor cores of a GPU multiply fastest.

Same arithmetic as `ResidueField`, same results; only the storage differs. Made for large layers on a GPU.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor

from dresfl.errors import FieldError
from dresfl.kernels import elementwise_int8, embed_int8, matmul_int8, per_channel

from .arithmetic import PublicMatrix
from .residue_system import ResidueSystem


@final
@dataclass(frozen=True)
class ByteField(ResidueSystem):
    """Z_M as symmetric residues in int8.

    >>> field = ByteField((101, 103, 107), num_value_moduli=2)
    >>> field.lift(field.mul(field.embed(torch.tensor([-70])), field.embed(torch.tensor([70])))).tolist()
    [-4900.0]
    """

    LARGEST_MODULUS: ClassVar[int] = 255
    LONGEST_SUM: ClassVar[int] = 2**22 // 125 - 1  # terms of `sum`: up to here float32 finds the quotient

    @property
    def dtype(self) -> torch.dtype:
        return torch.int8

    def with_public_bound(self, bound: int) -> "ByteField":
        return self  # public integers become residues, whatever their size

    @cached_property
    def _p32(self) -> Tensor:
        return torch.tensor(self.moduli, dtype=torch.int32, device=self.device)

    def _reduced_sum(self, x: Tensor) -> Tensor:
        """|x| ≤ 250 int16 -> residues: at most one modulus too many or too few. x is overwritten."""
        p = per_channel(self._p32.to(torch.int16), x)
        half = (p - 1) // 2
        x -= p * (x > half)
        x += p * (x < -half)
        return x.to(torch.int8)

    def _reduced_product(self, x: Tensor) -> Tensor:
        """|x| < 2^22 int32 -> residues; the quotient is right to within one half in float32."""
        p = per_channel(self._p32, x)
        quotient = (x.to(torch.float32) * (1.0 / p.to(torch.float32))).round_().to(torch.int32)
        return self._reduced_sum((x - quotient * p).to(torch.int16))

    def embed(self, integers: Tensor) -> Tensor:
        return embed_int8(integers.to(self.device), self._p32)

    def public(self, integers: Tensor) -> PublicMatrix[Tensor]:
        return PublicMatrix(self.embed(integers))  # (M,n,k)

    def matmul_public(self, left: Tensor, right: PublicMatrix[Tensor]) -> Tensor:
        rows = left.reshape(left.shape[0], -1, left.shape[-1])  # (M,rows,n) @ (M,n,k)
        return matmul_int8(rows, right.values, self._p32).view(*left.shape[:-1], -1)

    def matmul(self, left: Tensor, right: Tensor) -> Tensor:
        return matmul_int8(left, right, self._p32)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        fused = elementwise_int8("add", left, right, self._p32)
        return self._reduced_sum(left.to(torch.int16) + right) if fused is None else fused

    def sub(self, left: Tensor, right: Tensor) -> Tensor:
        fused = elementwise_int8("sub", left, right, self._p32)
        return self._reduced_sum(left.to(torch.int16) - right) if fused is None else fused

    def mul(self, left: Tensor, right: Tensor) -> Tensor:
        fused = elementwise_int8("mul", left, right, self._p32)
        return self._reduced_product(left.to(torch.int32) * right) if fused is None else fused

    def sum(self, elements: Tensor, axis: int) -> Tensor:
        if elements.shape[axis] > self.LONGEST_SUM:
            raise FieldError(f"a sum of {elements.shape[axis]} bytes is too long")
        return self._reduced_product(elements.sum(axis, dtype=torch.int32))
