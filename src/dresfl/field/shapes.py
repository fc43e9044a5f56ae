"""The same operations on shapes alone: what a program computes with, without computing it. Plans are made of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from .arithmetic import Arithmetic, PublicMatrix


@final
@dataclass(frozen=True)
class Outline:
    """An array that has a shape and no values.

    >>> Outline((2, 3, 4))[:, :1, 2:].reshape(2, -1).swapaxes(0, 1).shape
    (2, 2)
    """

    shape: tuple[int, ...]

    def reshape(self, *shape: int) -> "Outline":
        size, known = math.prod(self.shape), math.prod(n for n in shape if n >= 0)
        found = tuple(size // max(1, known) if n < 0 else n for n in shape)
        if math.prod(found) != size:
            raise ValueError(f"{self.shape} cannot become {shape}")
        return Outline(found)

    def swapaxes(self, axis0: int, axis1: int, /) -> "Outline":
        axes = list(self.shape)
        axes[axis0], axes[axis1] = axes[axis1], axes[axis0]
        return Outline(tuple(axes))

    def __getitem__(self, index: Any, /) -> "Outline":
        slices = index if isinstance(index, tuple) else (index,)
        cut = tuple(len(range(size)[part]) for size, part in zip(self.shape, slices, strict=False))
        return Outline(cut + self.shape[len(slices) :])


def _together(left: Outline, right: Outline) -> Outline:
    """The shape of an elementwise operation."""
    if len(left.shape) != len(right.shape):
        raise ValueError(f"{left.shape} and {right.shape} have different axes")
    for a, b in zip(left.shape, right.shape, strict=True):
        if a != b and 1 not in (a, b):
            raise ValueError(f"{left.shape} and {right.shape} do not fit")
    return Outline(tuple(b if a == 1 else a for a, b in zip(left.shape, right.shape, strict=True)))


@final
@dataclass(frozen=True)
class Shapes(Arithmetic[Outline]):
    """Shapes in place of elements, in one channel. Shapes that do not fit raise ValueError.

    >>> Shapes().matmul(Outline((1, 1, 5, 3)), Outline((1, 1, 3, 2))).shape
    (1, 1, 5, 2)
    """

    def embed(self, integers: Tensor) -> Outline:
        return Outline((1, *integers.shape))

    def public(self, integers: Tensor) -> PublicMatrix[Outline]:
        return PublicMatrix(Outline(tuple(integers.shape)))

    def matmul_public(self, left: Outline, right: PublicMatrix[Outline]) -> Outline:
        return Outline((*left.shape[:-1], right.values.shape[-1]))

    def matmul(self, left: Outline, right: Outline) -> Outline:
        if left.shape[-1] != right.shape[-2]:
            raise ValueError(f"{left.shape} and {right.shape} cannot be multiplied")
        front = _together(Outline(left.shape[:-2]), Outline(right.shape[:-2]))
        return Outline((*front.shape, left.shape[-2], right.shape[-1]))

    def add(self, left: Outline, right: Outline) -> Outline:
        return _together(left, right)

    def sub(self, left: Outline, right: Outline) -> Outline:
        return _together(left, right)

    def mul(self, left: Outline, right: Outline) -> Outline:
        return _together(left, right)

    def scale(self, elements: Outline, factor: int) -> Outline:
        return elements

    def add_integer(self, elements: Outline, integer: int) -> Outline:
        return elements

    def concat(self, parts: Sequence[Outline], axis: int) -> Outline:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return Outline(tuple(shape))

    def sum(self, elements: Outline, axis: int) -> Outline:
        shape = list(elements.shape)
        del shape[axis]
        return Outline(tuple(shape))

    def take(self, elements: Outline, index: Tensor) -> Outline:
        return Outline((*elements.shape[:-1], *index.shape))
