"""What every layer has: its name, its effect on shape, scale, degree and magnitude, and its two steps.

A layer is a frozen description. `Network` walks the list once and gives each layer its `Place`: the shapes, scales and
degrees where the layer stands. The steps are written once, against `Arithmetic`, and run in every ring.

Notation: x (M,N,B,F) is a layer's input, z its output, delta = ∂ℓ/∂z. s is the scale of x in bits: the integer x stands
for the real x·2^−s. Activations are flat. Images lie channels-last, (H,W,C).
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import Arithmetic, Elements

Shape = tuple[int, ...]

# What the real values of a trained network are taken to reach. The estimate of the bits needed uses this: |z| ≤ 2^3
# before an activation, and |W^T delta| ≤ 2^2 · max|delta| on the way back. Measured values stay a few bits below.
PREACTIVATION_BITS = 3.0
BACKWARD_GAIN_BITS = 2.0


@final
@dataclass(frozen=True)
class Place:
    """Where a layer stands in its network. `Network` derives it; nobody types it in."""

    in_shape: Shape
    out_shape: Shape
    in_scale: int
    out_scale: int
    in_degree: int
    out_degree: int
    in_magnitude: float  # log2 of the largest real |x| expected
    out_magnitude: float
    weight_bits: int
    init: float

    @property
    def out_size(self) -> int:
        return math.prod(self.out_shape)


class Layer(ABC):
    """One step of the network. A concrete layer is a frozen dataclass, in a file of its own in this folder.

    `kind` is the layer's name wherever it travels: in TOML, in digests, in model files. The class may be renamed; the
    kind may not.
    """

    kind: ClassVar[str]
    degree: ClassVar[int]  # of z in x: 1, unless it multiplies values of x with each other
    flat_input: ClassVar[bool] = False  # True: as the first layer of a network it is given images as flat rows

    def to_dict(self) -> dict[str, Any]:
        """The layer as plain values, its kind first. `layer_from_dict` reads it back."""
        names = (field.name for field in dataclasses.fields(self))  # type: ignore[arg-type]
        return {"kind": self.kind, **{name: getattr(self, name) for name in names}}

    def check_positive(self, **values: int) -> None:
        """Refuse sizes below 1."""
        for name, value in values.items():
            if value < 1:
                raise UsageError(f"{name} of {self.kind} must be positive")

    @abstractmethod
    def out_shape(self, shape: Shape) -> Shape:
        """The shape that this layer makes of `shape`. UsageError if it cannot take that shape."""

    @abstractmethod
    def out_magnitude(self, magnitude: float) -> float:
        """log2 of the largest real |z| expected."""

    @abstractmethod
    def in_delta_magnitude(self, delta: float, in_magnitude: float) -> float:
        """log2 of the largest real |∂ℓ/∂x| expected."""


class Affine(Layer):
    """A layer with weights: z = columns(x) @ W + b·2^s. The bias is the weight of a constant 1, which is 2^s here."""

    degree: ClassVar[int] = 1
    weight_bits: int | None
    init: float | None

    def out_magnitude(self, magnitude: float) -> float:
        return PREACTIVATION_BITS

    def in_delta_magnitude(self, delta: float, in_magnitude: float) -> float:
        return delta + BACKWARD_GAIN_BITS

    @abstractmethod
    def fan(self, shape: Shape) -> tuple[int, int]:
        """(inputs, outputs) of the weight matrix."""

    @abstractmethod
    def positions(self, shape: Shape) -> int:
        """How often the matrix is applied to a row: once, or once for each pixel of the output."""

    @abstractmethod
    def columns(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        """x (M,N,B,F) -> (M,N,B·positions, fan-in)."""

    @abstractmethod
    def uncolumns(self, field: Arithmetic[Elements], place: Place, delta: Elements) -> Elements:
        """The adjoint of `columns`: (M,N,B·positions, fan-in) -> (M,N,B,F)."""

    @abstractmethod
    def relu_columns(self, place: Place, x: Tensor) -> Tensor:
        """`columns` in the ReLU network that the baselines train, on reals: (...,B,F) -> (...,B·positions, fan-in)."""


class Fixed(Layer):
    """A layer without weights."""

    @abstractmethod
    def forward(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        """z from x (M,N,B,F)."""

    @abstractmethod
    def backward(self, field: Arithmetic[Elements], place: Place, x: Elements, delta: Elements) -> Elements:
        """∂ℓ/∂x from ∂ℓ/∂z."""

    @abstractmethod
    def relu_forward(self, place: Place, x: Tensor) -> Tensor:
        """What stands for this layer in the ReLU network that the baselines train, on reals (...,B,F)."""


class Reshaping(Fixed):
    """A linear layer without weights: scale and degree pass through it."""

    degree: ClassVar[int] = 1

    def in_delta_magnitude(self, delta: float, in_magnitude: float) -> float:
        return delta


class Activation(Fixed):
    """A polynomial of degree 2 in each value. A ReLU stands for it in the ReLU network."""

    degree: ClassVar[int] = 2

    def out_shape(self, shape: Shape) -> Shape:
        return shape

    def relu_forward(self, place: Place, x: Tensor) -> Tensor:
        return x.relu()
