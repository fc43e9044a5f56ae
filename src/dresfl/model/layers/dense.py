"""The fully connected layer."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import Arithmetic, Elements

from .layer import Affine, Place, Shape


@final
@dataclass(frozen=True)
class Dense(Affine):
    """A fully connected layer of `units` outputs, over flat input.

    >>> Dense(10).out_shape((784,))
    (10,)
    """

    units: int
    weight_bits: int | None = None
    init: float | None = None

    kind: ClassVar[str] = "dense"
    flat_input: ClassVar[bool] = True

    def out_shape(self, shape: Shape) -> Shape:
        self.check_positive(units=self.units)
        if len(shape) != 1:
            raise UsageError(f"dense needs flat input, not {shape}", "put a flatten layer before it")
        return (self.units,)

    def fan(self, shape: Shape) -> tuple[int, int]:
        return shape[0], self.units

    def positions(self, shape: Shape) -> int:
        return 1

    def columns(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        return x

    def uncolumns(self, field: Arithmetic[Elements], place: Place, delta: Elements) -> Elements:
        return delta

    def relu_columns(self, place: Place, x: Tensor) -> Tensor:
        return x
