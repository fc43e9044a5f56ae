"""The convolution."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from dresfl.field import Arithmetic, Elements

from .layer import Affine, Place, Shape
from .window import Window, window_of


@final
@dataclass(frozen=True)
class Conv2d(Affine):
    """A convolution over channels-last images, computed as a product with gathered columns.

    >>> Conv2d(16, kernel=5, stride=2).out_shape((28, 28, 1))
    (12, 12, 16)
    """

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    weight_bits: int | None = None
    init: float | None = None

    kind: ClassVar[str] = "conv2d"

    def _window(self, shape: Shape) -> Window:
        return window_of(self, shape, self.kernel, self.stride, self.padding)

    def out_shape(self, shape: Shape) -> Shape:
        self.check_positive(channels=self.channels)
        return (*self._window(shape).out_shape, self.channels)

    def fan(self, shape: Shape) -> tuple[int, int]:
        return self.kernel**2 * shape[2], self.channels

    def positions(self, shape: Shape) -> int:
        return math.prod(self._window(shape).out_shape)

    def columns(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        # (M,N,B,HWC) -> (M,N,B,positions,k²C) -> (M,N,B·positions,k²C)
        gathered = field.take(x, self._window(place.in_shape).columns)
        return gathered.reshape(*x.shape[:2], -1, gathered.shape[-1])

    def uncolumns(self, field: Arithmetic[Elements], place: Place, delta: Elements) -> Elements:
        # (M,N,B·positions,k²C) -> (M,N,B,positions·k²C) -> (M,N,B,HWC,overlaps) -> (M,N,B,HWC)
        window = self._window(place.in_shape)
        flat = delta.reshape(*delta.shape[:2], -1, window.columns.numel())
        return field.sum(field.take(flat, window.overlaps), -1)

    def relu_columns(self, place: Place, x: Tensor) -> Tensor:
        # (...,B,HWC) -> (B,H',W',C,k,k) -> (...,B·positions,k²C), in the order of the weights
        windows = self._window(place.in_shape).unfold(x).permute(0, 1, 2, 4, 5, 3)
        return windows.reshape(*x.shape[:-2], -1, self.fan(place.in_shape)[0])
