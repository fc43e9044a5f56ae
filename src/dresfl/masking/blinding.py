"""Blinding: what a client adds to its answer, so that the coordinator learns the sum alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hmac import HMAC
from typing import final

import torch
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import ResidueSystem, SecretSeed


@final
@dataclass(frozen=True)
class Blinding:
    """One client's blinding values: ζ(α_j) = Σ_s c_s(α_j)·r_s, each r_s expanded from a seed that the client holds.

    coefficients (M,s): c_s(α_j) of the seeds' codewords, in the order of the seeds.

    >>> from dresfl.field import ResidueField
    >>> field = ResidueField((101, 103), 1)
    >>> blinding = Blinding(field, field.embed(torch.tensor([3, 4])), [SecretSeed.fresh(), SecretSeed.fresh()])
    >>> blinding.values(b"round 1", 5).equal(blinding.values(b"round 1", 5))
    True
    """

    field: ResidueSystem
    coefficients: Tensor
    seeds: Sequence[SecretSeed]

    def __post_init__(self) -> None:
        expected = (len(self.field.moduli), len(self.seeds))
        if tuple(self.coefficients.shape) != expected:
            raise UsageError(f"coefficients {expected} expected, {tuple(self.coefficients.shape)} came")

    def values(self, label: bytes, count: int) -> Tensor:
        """(M,count): the values to add. The label names one opening; two openings never share one."""
        keys = label_keys(self._macs, label).to(self.field.device)
        return self.field.uniform_sum(keys, self.coefficients, count)

    @cached_property
    def _macs(self) -> list[HMAC]:
        return [seed.blinding_mac() for seed in self.seeds]


def label_keys(macs: Sequence[HMAC], label: bytes) -> Tensor:
    """(S,8) int32: the keys of one label, under seeds whose HMACs are prepared."""
    octets = bytearray()
    for prepared in macs:
        mac = prepared.copy()
        mac.update(label)
        octets += mac.digest()
    return torch.frombuffer(octets, dtype=torch.int32).view(-1, 8) if octets else torch.empty((0, 8), dtype=torch.int32)
