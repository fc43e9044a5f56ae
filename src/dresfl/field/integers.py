"""The same operations on Python integers of any size: slow, without moduli, and obviously right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from torch import Tensor

from .arithmetic import Arithmetic, PublicMatrix

IntegerArray = Any  # a NumPy array of Python integers: NumPy does not say what `Array` says of its methods


@final
@dataclass(frozen=True)
class Integers(Arithmetic[IntegerArray]):
    """Python integers in place of residues, in one channel: object arrays (1,...).

    >>> import torch
    >>> exact = Integers()
    >>> exact.scale(exact.embed(torch.tensor([3])), 2**100).tolist() == [[3 * 2**100]]
    True
    """

    def embed(self, integers: Tensor) -> IntegerArray:
        found = np.empty(integers.numel(), dtype=object)
        found[:] = [int(value) for value in integers.flatten().tolist()]
        return found.reshape(1, *integers.shape)

    def public(self, integers: Tensor) -> PublicMatrix[IntegerArray]:
        return PublicMatrix(self.embed(integers)[0])

    def matmul_public(self, left: IntegerArray, right: PublicMatrix[IntegerArray]) -> IntegerArray:
        return np.matmul(left, right.values)

    def matmul(self, left: IntegerArray, right: IntegerArray) -> IntegerArray:
        return np.matmul(left, right)

    def add(self, left: IntegerArray, right: IntegerArray) -> IntegerArray:
        return left + right

    def sub(self, left: IntegerArray, right: IntegerArray) -> IntegerArray:
        return left - right

    def mul(self, left: IntegerArray, right: IntegerArray) -> IntegerArray:
        return left * right

    def scale(self, elements: IntegerArray, factor: int) -> IntegerArray:
        return elements * factor

    def add_integer(self, elements: IntegerArray, integer: int) -> IntegerArray:
        return elements + integer

    def concat(self, parts: Sequence[IntegerArray], axis: int) -> IntegerArray:
        return np.concatenate(tuple(parts), axis)

    def sum(self, elements: IntegerArray, axis: int) -> IntegerArray:
        return np.add.reduce(elements, axis=axis, initial=0)

    def take(self, elements: IntegerArray, index: Tensor) -> IntegerArray:
        zero = np.zeros((*elements.shape[:-1], 1), dtype=object)
        return np.concatenate((elements, zero), -1)[..., index.numpy()]
