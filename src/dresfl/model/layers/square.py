"""The square, the activation of the paper."""

from dataclasses import dataclass
from typing import ClassVar, final

from dresfl.field import Arithmetic, Elements

from .layer import Activation, Place


@final
@dataclass(frozen=True)
class Square(Activation):
    """z = x².

    >>> Square().degree, Square().out_magnitude(3.0)
    (2, 6.0)
    """

    kind: ClassVar[str] = "square"

    def out_magnitude(self, magnitude: float) -> float:
        return 2 * magnitude

    def in_delta_magnitude(self, delta: float, in_magnitude: float) -> float:
        return delta + 1 + in_magnitude

    def forward(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        return field.mul(x, x)

    def backward(self, field: Arithmetic[Elements], place: Place, x: Elements, delta: Elements) -> Elements:
        return field.mul(field.add(x, x), delta)
