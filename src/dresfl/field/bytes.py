"""Residue systems of primes below 256, a byte per residue: what tensor cores multiply fastest.

Same arithmetic as `ResidueField`, same results; only the storage differs. Made for large layers on a GPU. The rare and
small operations (inverses, packing, mixed-radix digits) go through the float64 field of the same primes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor

from dresfl.errors import FieldError
from dresfl.kernels import embed_int8, fused_kernels, matmul_int8

from .arithmetic import Field, ResidueField, take


@final
@dataclass(frozen=True)
class ByteField(Field):
    """Z_M as int8 residues modulo primes below 256.

    >>> field = ByteField(ResidueField((101, 103, 107), num_value_moduli=2))
    >>> field.lift(field.mul(field.embed(torch.tensor([-70])), field.embed(torch.tensor([70])))).tolist()
    [-4900.0]
    """

    wide: ResidueField

    LONGEST_SUM: ClassVar[int] = 2**22 // 125 - 1  # of residues: float32 still finds the quotient

    def __post_init__(self) -> None:
        if self.wide.moduli[-1] >= 256:
            raise FieldError(f"a residue modulo {self.wide.moduli[-1]} is no byte", "use primes below 256")

    @property
    def moduli(self) -> tuple[int, ...]:
        return self.wide.moduli

    @property
    def dtype(self) -> torch.dtype:
        """How a residue is stored."""
        return torch.int8

    def with_public_bound(self, bound: int) -> "ByteField":
        """This field: bytes hold residues of public integers, whatever their size."""
        return self

    @property
    def num_value_moduli(self) -> int:
        return self.wide.num_value_moduli

    @property
    def value_bound(self) -> int:
        """The largest |x| that `lift` accepts."""
        return self.wide.value_bound

    @property
    def device(self) -> str:
        return self.wide.device

    @property
    def residue_bytes(self) -> int:
        return self.wide.residue_bytes

    @cached_property
    def _p(self) -> Tensor:
        return torch.tensor(self.moduli, dtype=torch.int32, device=self.device)

    def _per_channel(self, values: Tensor, like: Tensor) -> Tensor:
        return values.view(-1, *[1] * (like.dim() - 1))

    def _sum_(self, x: Tensor) -> Tensor:
        """|x| ≤ 250 int16 -> residues: at most one modulus too many or too few."""
        p = self._per_channel(self._p.to(torch.int16), x)
        half = (p - 1) // 2
        x -= p * (x > half)
        x += p * (x < -half)
        return x.to(torch.int8)

    def _product(self, x: Tensor) -> Tensor:
        """|x| < 2^22 int32 -> residues; the quotient is right to within one half in float32."""
        p = self._per_channel(self._p, x)
        quotient = (x.to(torch.float32) * (1.0 / p.to(torch.float32))).round_().to(torch.int32)
        return self._sum_((x - quotient * p).to(torch.int16))

    # -- into and out of the field ---------------------------------------------------------------------------

    def embed(self, integers: Tensor) -> Tensor:
        return embed_int8(integers.to(self.device), self._p)

    def narrow(self, residues: Tensor) -> Tensor:
        """Symmetric residues in float64, |r| ≤ (p−1)/2 -> bytes."""
        return residues.to(torch.int8)

    def lift(self, residues: Tensor) -> Tensor:
        """As ResidueField.lift."""
        return self.wide.lift(residues.to(torch.float64))

    def lift_checked(self, residues: Tensor) -> tuple[Tensor, Tensor]:
        """As ResidueField.lift_checked."""
        return self.wide.lift_checked(residues.to(torch.float64))

    def lift_exact(self, residues: Tensor) -> list[int]:
        """As ResidueField.lift_exact."""
        return self.wide.lift_exact(residues.to(torch.float64))

    def decode_lift(self, coefficients: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_j coefficients[m,j]·answers[m,j], lifted: (M,R), (M,R,P) -> values (P,), how many are out of range."""
        if fused_kernels(self.device):
            return self.wide.decode_lift(coefficients, answers)
        return self.lift_checked(self.matmul(coefficients.unsqueeze(1), answers)[:, 0])

    def uniform(self, keys: Tensor, rows: Tensor, count: int) -> Tensor:
        """As ResidueField.uniform."""
        return self.wide.uniform(keys, rows, count, dtype=torch.int8)

    def pack(self, residues: Tensor) -> bytes:
        """As ResidueField.pack."""
        return self.wide.pack(residues.to(torch.float64))

    def unpack(self, packed: bytes | memoryview, shape: Sequence[int]) -> Tensor:
        """As ResidueField.unpack."""
        return self.narrow(self.wide.unpack(packed, shape))

    # -- arithmetic ------------------------------------------------------------------------------------------

    def public(self, integers: Tensor) -> Tensor:
        return self.embed(integers)  # (M,n,k)

    def transposed(self, public: Tensor) -> Tensor:
        return public.mT

    def matmul_public(self, left: Tensor, right: Tensor) -> Tensor:
        rows = left.reshape(left.shape[0], -1, left.shape[-1])  # (M,rows,n) @ (M,n,k)
        return matmul_int8(rows, right, self._p).view(*left.shape[:-1], -1)

    def matmul(self, left: Tensor, right: Tensor) -> Tensor:
        return matmul_int8(left, right, self._p)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return self._sum_(left.to(torch.int16) + right)

    def sub(self, left: Tensor, right: Tensor) -> Tensor:
        return self._sum_(left.to(torch.int16) - right)

    def mul(self, left: Tensor, right: Tensor) -> Tensor:
        return self._product(left.to(torch.int32) * right)

    def scale(self, elements: Tensor, factor: int) -> Tensor:
        constant = self.wide.constant(factor).to(torch.int32)
        return self._product(elements.to(torch.int32) * self._per_channel(constant, elements))

    def add_integer(self, elements: Tensor, integer: int) -> Tensor:
        constant = self.wide.constant(integer).to(torch.int16)
        return self._sum_(elements.to(torch.int16) + self._per_channel(constant, elements))

    def inverse(self, elements: Tensor) -> Tensor:
        wide = self.wide.inverse(elements.to(torch.float64))
        return self._product(wide.to(torch.int32))

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(tuple(parts), axis)

    def sum(self, elements: Tensor, axis: int) -> Tensor:
        if elements.shape[axis] > self.LONGEST_SUM:
            raise FieldError(f"a sum of {elements.shape[axis]} bytes is too long")
        return self._product(elements.sum(axis, dtype=torch.int32))

    def take(self, elements: Tensor, index: Tensor) -> Tensor:
        return take(elements, index)
