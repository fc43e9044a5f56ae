"""F_p for one prime of any size, as Python integers: what the fast field is held against.

Elements are object arrays (1,...) of integers in [0, p); products go through python-flint.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import flint
import numpy as np
from torch import Tensor

from dresfl.errors import FieldError
from dresfl.field import ModularArithmetic, PublicMatrix

Array = np.ndarray[Any, np.dtype[np.object_]]


def _array(integers: Sequence[int], shape: Sequence[int]) -> Array:
    out = np.empty(len(integers), dtype=object)
    out[:] = integers
    return out.reshape(shape)


@final
@dataclass(frozen=True)
class FlintField(ModularArithmetic[Array]):
    """Z/pZ, one channel: the paper's 2^200 − 75 and 2^440 − 33, or any smaller prime.

    >>> import torch
    >>> field = FlintField(2**200 - 75)
    >>> field.lift(field.scale(field.embed(torch.tensor([-3])), 2**100)) == [-3 * 2**100]
    True
    """

    prime: int

    def __post_init__(self) -> None:
        if not flint.fmpz(self.prime).is_prime():
            raise FieldError(f"{self.prime} is not a prime")

    @property
    def moduli(self) -> tuple[int, ...]:
        return (self.prime,)

    @cached_property
    def _context(self) -> Any:
        return flint.fmpz_mod_ctx(self.prime)

    def _product(self, left: Array, right: Array) -> Array:
        (rows, inner), columns = left.shape, right.shape[1]
        if not rows * inner * columns:
            return _array([0] * (rows * columns), (rows, columns))
        a = flint.fmpz_mod_mat(rows, inner, left.ravel().tolist(), self._context)
        b = flint.fmpz_mod_mat(inner, columns, right.ravel().tolist(), self._context)
        return _array([int(x) for x in (a * b).entries()], (rows, columns))

    def embed(self, integers: Tensor) -> Array:
        return _array([int(x) % self.prime for x in integers.flatten().tolist()], (1, *integers.shape))

    def lift(self, elements: Array) -> list[int]:
        """ψ: z for z ≤ (p − 1)/2, else z − p; flattened."""
        half = (self.prime - 1) // 2
        return [z if z <= half else z - self.prime for z in elements.ravel().tolist()]

    def random(self, shape: Sequence[int], rng: random.Random) -> Array:
        """Uniform elements (1,*shape)."""
        count = int(np.prod(shape, dtype=int))
        return _array([rng.randrange(self.prime) for _ in range(count)], (1, *shape))

    def public(self, integers: Tensor) -> PublicMatrix[Array]:
        return PublicMatrix(self.embed(integers)[0])

    def matmul_public(self, left: Array, right: PublicMatrix[Array]) -> Array:
        product = self._product(left.reshape(-1, left.shape[-1]), right.values)
        return product.reshape(*left.shape[:-1], right.values.shape[1])

    def matmul(self, left: Array, right: Array) -> Array:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left = np.broadcast_to(left, (*batch, *left.shape[-2:]))
        right = np.broadcast_to(right, (*batch, *right.shape[-2:]))
        out = np.empty((*batch, left.shape[-2], right.shape[-1]), dtype=object)
        for place in np.ndindex(*batch):
            out[place] = self._product(left[place], right[place])
        return out

    def add(self, left: Array, right: Array) -> Array:
        return (left + right) % self.prime

    def sub(self, left: Array, right: Array) -> Array:
        return (left - right) % self.prime

    def mul(self, left: Array, right: Array) -> Array:
        return (left * right) % self.prime

    def scale(self, elements: Array, factor: int) -> Array:
        return (elements * factor) % self.prime

    def add_integer(self, elements: Array, integer: int) -> Array:
        return (elements + integer) % self.prime

    def inverse(self, elements: Array) -> Array:
        values = elements.ravel().tolist()
        if 0 in values:
            raise FieldError("zero has no inverse")
        return _array([pow(x, -1, self.prime) for x in values], elements.shape)

    def concat(self, parts: Sequence[Array], axis: int) -> Array:
        return np.concatenate(parts, axis)

    def sum(self, elements: Array, axis: int) -> Array:
        return np.add.reduce(elements, axis=axis, initial=0) % self.prime

    def take(self, elements: Array, index: Tensor) -> Array:
        zero = np.zeros((*elements.shape[:-1], 1), dtype=object)
        return np.concatenate((elements, zero), -1)[..., index.numpy()]
