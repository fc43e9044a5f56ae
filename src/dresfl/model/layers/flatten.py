"""The change from images to flat rows."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from dresfl.field import Arithmetic, Elements

from .layer import Place, Reshaping, Shape


@final
@dataclass(frozen=True)
class Flatten(Reshaping):
    """(H,W,C) -> (H·W·C,). Only the shape changes: the values lie flat already.

    >>> Flatten().out_shape((12, 12, 16))
    (2304,)
    """

    kind: ClassVar[str] = "flatten"

    def out_shape(self, shape: Shape) -> Shape:
        return (math.prod(shape),)

    def out_magnitude(self, magnitude: float) -> float:
        return magnitude

    def forward(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        return x

    def backward(self, field: Arithmetic[Elements], place: Place, x: Elements, delta: Elements) -> Elements:
        return delta

    def relu_forward(self, place: Place, x: Tensor) -> Tensor:
        return x
