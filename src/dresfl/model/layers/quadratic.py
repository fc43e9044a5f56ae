"""The square with a linear term."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from dresfl.field import Arithmetic, Elements

from .layer import Activation, Place


@final
@dataclass(frozen=True)
class Quadratic(Activation):
    """z = x² + x. The linear term enters at 2^s, so that both terms stand at scale 2s.

    >>> Quadratic().out_magnitude(0.0) == math.log2(1 + 1)
    True
    """

    kind: ClassVar[str] = "quadratic"

    def out_magnitude(self, magnitude: float) -> float:
        return math.log2(4.0**magnitude + 2.0**magnitude)

    def in_delta_magnitude(self, delta: float, in_magnitude: float) -> float:
        return delta + math.log2(2 * 2.0**in_magnitude + 1)

    def forward(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        return field.mul(x, field.add_integer(x, 2**place.in_scale))

    def backward(self, field: Arithmetic[Elements], place: Place, x: Elements, delta: Elements) -> Elements:
        return field.mul(field.add_integer(field.add(x, x), 2**place.in_scale), delta)
