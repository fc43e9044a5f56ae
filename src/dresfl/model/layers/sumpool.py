"""Sum pooling."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from dresfl.field import Arithmetic, Elements

from .layer import Place, Reshaping, Shape
from .window import Window, window_of


@final
@dataclass(frozen=True)
class SumPool(Reshaping):
    """The sum over square windows. It is average pooling without the division, which integers do not have.

    >>> SumPool(2).out_shape((28, 28, 3))
    (14, 14, 3)
    """

    kernel: int
    stride: int | None = None  # None: as large as the kernel

    kind: ClassVar[str] = "sumpool"

    def _window(self, shape: Shape) -> Window:
        return window_of(self, shape, self.kernel, self.kernel if self.stride is None else self.stride)

    def out_shape(self, shape: Shape) -> Shape:
        return (*self._window(shape).out_shape, shape[2])

    def out_magnitude(self, magnitude: float) -> float:
        return magnitude + 2 * math.log2(self.kernel)

    def forward(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        # (M,N,B,HWC) -> (M,N,B,positions,k²,C) -> (M,N,B,positions,C) -> (M,N,B,positions·C)
        gathered = field.take(x, self._window(place.in_shape).pooled)
        return field.sum(gathered, -2).reshape(*x.shape[:3], place.out_size)

    def backward(self, field: Arithmetic[Elements], place: Place, x: Elements, delta: Elements) -> Elements:
        return field.sum(field.take(delta, self._window(place.in_shape).pools), -1)

    def relu_forward(self, place: Place, x: Tensor) -> Tensor:
        """The mean over the same windows."""
        return self._window(place.in_shape).unfold(x).mean((-2, -1)).reshape(*x.shape[:-1], place.out_size)
