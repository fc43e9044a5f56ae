"""The operations that codes and networks are written in, for any ring: residues, real numbers, big integers.

`Arithmetic` is all that a network needs. `ModularArithmetic` adds what a code needs: moduli and inverses.
`residue_system` adds what a protocol needs: lifting, randomness and bytes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, Self, TypeVar, final

import torch
from torch import Tensor


class Array(Protocol):
    """What codes and networks do with elements themselves. Torch tensors and NumPy arrays can do it."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def reshape(self, *shape: int) -> Self: ...

    def swapaxes(self, axis0: int, axis1: int, /) -> Self: ...

    def __getitem__(self, index: Any, /) -> Self: ...


# The array type that holds an arithmetic's elements, channel axis first: (M,...).
Elements = TypeVar("Elements", bound=Array)


@final
@dataclass(frozen=True)
class PublicMatrix(Generic[Elements]):
    """A matrix that everybody knows, prepared by `Arithmetic.public`.

    values: (n,k) if the same integers serve all channels, else (M,n,k). bound: no |value| is larger; 0: not known.
    """

    values: Elements
    bound: int = 0

    @property
    def transposed(self) -> "PublicMatrix[Elements]":
        """The same matrix with rows and columns exchanged; nothing is copied."""
        return PublicMatrix(self.values.swapaxes(-1, -2), self.bound)


class Arithmetic(ABC, Generic[Elements]):
    """Ring operations on arrays of elements (M,...), M channels side by side."""

    @abstractmethod
    def embed(self, integers: Tensor) -> Elements:
        """Signed integers (...), |x| ≤ 2^53 − 2^25 -> elements (M,...)."""

    @abstractmethod
    def public(self, integers: Tensor) -> PublicMatrix[Elements]:
        """Prepare a matrix (n,k) that everybody knows, such as weights, for `matmul_public`."""

    @abstractmethod
    def matmul_public(self, left: Elements, right: PublicMatrix[Elements]) -> Elements:
        """(M,...,n) @ public (n,k) -> (M,...,k)."""

    @abstractmethod
    def matmul(self, left: Elements, right: Elements) -> Elements:
        """(M,...,m,n) @ (M,...,n,k) -> (M,...,m,k)."""

    @abstractmethod
    def add(self, left: Elements, right: Elements) -> Elements:
        """left + right."""

    @abstractmethod
    def sub(self, left: Elements, right: Elements) -> Elements:
        """left − right."""

    @abstractmethod
    def mul(self, left: Elements, right: Elements) -> Elements:
        """left · right, elementwise."""

    @abstractmethod
    def scale(self, elements: Elements, factor: int) -> Elements:
        """elements · factor for one integer of any size."""

    @abstractmethod
    def add_integer(self, elements: Elements, integer: int) -> Elements:
        """elements + integer for one integer of any size."""

    @abstractmethod
    def concat(self, parts: Sequence[Elements], axis: int) -> Elements:
        """The parts one after the other along an axis."""

    @abstractmethod
    def sum(self, elements: Elements, axis: int) -> Elements:
        """Sum along one axis (not the channel axis)."""

    @abstractmethod
    def take(self, elements: Elements, index: Tensor) -> Elements:
        """elements[..., index] over the last axis, 0 where index is −1: (M,...,F) -> (M,...,*index.shape)."""


class ModularArithmetic(Arithmetic[Elements]):
    """Exact arithmetic modulo one prime in each channel."""

    moduli: tuple[int, ...]

    @property
    def modulus(self) -> int:
        """The product of the moduli: the channels together compute modulo this number."""
        return math.prod(self.moduli)

    @abstractmethod
    def inverse(self, elements: Elements) -> Elements:
        """The multiplicative inverse of elements that are non-zero in every channel."""


def take_or_zero(elements: Tensor, index: Tensor) -> Tensor:
    """`Arithmetic.take` for tensors."""
    places, padded = _places(index, elements.shape[-1], str(elements.device))
    if padded:
        elements = torch.nn.functional.pad(elements, (0, 1))
    return elements.index_select(-1, places).view(*elements.shape[:-1], *index.shape)


@lru_cache(maxsize=256)
def _places(index: Tensor, size: int, device: str) -> tuple[Tensor, bool]:
    """An index table on a device, and whether it needs a zero appended to the elements: −1 becomes that zero's place.

    A network keeps its tables for as long as it lives, so each of them is prepared once.
    """
    padded = bool((index < 0).any())
    return (index % (size + 1) if padded else index).flatten().to(device), padded
