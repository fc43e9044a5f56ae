"""Residues as they came in a message: checked once, and unpacked only where and when they are used."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from dresfl.kernels.cpu import packed

if TYPE_CHECKING:
    from .residue_system import ResidueSystem


@final
@dataclass(frozen=True, eq=False)
class PackedResidues:
    """Residues (M,*shape) in the bytes of a message, all of them below their modulus. Made by `ResidueSystem.checked`.

    They take 1 to 3 bytes each instead of a tensor's 8, and share the memory of the message.
    """

    field: "ResidueSystem"
    octets: packed.Octets
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return f"PackedResidues({self.shape}, <redacted>)"

    def unpack(self) -> Tensor:
        """The residues as a tensor (M,*shape)."""
        return self.field.unpack(self.octets.data, self.shape[1:])

    def columns(self, first: int, last: int) -> Tensor:
        """Columns first … last − 1 of residues (M,n), as a tensor."""
        field = self.field
        part = packed.unpack_columns(self.octets, first, last, field.cpu_moduli, field.residue_bytes)
        return part.to(field.device, field.dtype)


Residues = Tensor | PackedResidues


def columns_of(residues: Residues, first: int, last: int) -> Tensor:
    """Columns first … last − 1 of residues (M,n), packed or not."""
    return residues[:, first:last] if isinstance(residues, torch.Tensor) else residues.columns(first, last)


def unpacked(residues: Residues) -> Tensor:
    """Residues (M,...) as a tensor, packed or not."""
    return residues if isinstance(residues, torch.Tensor) else residues.unpack()
