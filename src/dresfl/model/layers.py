"""The layers of a polynomial network: what a user writes down, and each one's forward and backward step.

A layer is a frozen description. `Network` walks the list once and gives each layer its `Place`: shapes,
scale and degree where it stands. Steps are written once, against `Arithmetic`, for every backend.

Notation: x (M,N,B,F) a layer's input, z its output, delta = ∂ℓ/∂z. s: the scale of x in bits, so that the
integer x stands for the real x·2^−s. Activations are flat; images lie channels-last, (H,W,C).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

import torch
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import Arithmetic, Elements

Shape = tuple[int, ...]

# What a trained network's real values are taken to reach, for the estimate of the bits needed: |z| ≤ 2^3
# before an activation, and |W^T delta| ≤ 2^2 · max|delta| on the way back. Measured use stays a few bits below.
PREACTIVATION_BITS = 3.0
BACKWARD_GAIN_BITS = 2.0


@final
@dataclass(frozen=True)
class Place:
    """Where a layer stands: derived by walking the network, never typed in."""

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
    def in_size(self) -> int:
        return math.prod(self.in_shape)

    @property
    def out_size(self) -> int:
        return math.prod(self.out_shape)


class Layer(ABC):
    """One step of the network, and what it does to shape, scale, degree and magnitude."""

    @abstractmethod
    def out_shape(self, shape: Shape) -> Shape:
        """The shape this layer makes of `shape`; UsageError if it cannot."""

    @abstractmethod
    def out_scale(self, scale: int, weight_bits: int) -> int:
        """The scale of z."""

    @abstractmethod
    def out_degree(self, degree: int) -> int:
        """The degree of z in the data."""

    @abstractmethod
    def out_magnitude(self, magnitude: float) -> float:
        """log2 of the largest real |z| expected."""

    @abstractmethod
    def in_delta_degree(self, delta_degree: int, in_degree: int) -> int:
        """The degree of ∂ℓ/∂x in the data."""

    @abstractmethod
    def in_delta_magnitude(self, delta: float, in_magnitude: float) -> float:
        """log2 of the largest real |∂ℓ/∂x| expected."""


class Affine(Layer):
    """A layer with weights: z = columns(x) @ W + b·2^s, the bias being the weight of a constant 1 = 2^s."""

    weight_bits: int | None
    init: float | None

    def out_scale(self, scale: int, weight_bits: int) -> int:
        return scale + weight_bits

    def out_degree(self, degree: int) -> int:
        return degree

    def out_magnitude(self, magnitude: float) -> float:
        return PREACTIVATION_BITS

    def in_delta_degree(self, delta_degree: int, in_degree: int) -> int:
        return delta_degree

    def in_delta_magnitude(self, delta: float, in_magnitude: float) -> float:
        return delta + BACKWARD_GAIN_BITS

    @abstractmethod
    def fan(self, shape: Shape) -> tuple[int, int]:
        """(inputs, outputs) of the weight matrix."""

    @abstractmethod
    def positions(self, shape: Shape) -> int:
        """How often the matrix is applied per row: 1, or the pixels of the output."""

    @abstractmethod
    def columns(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        """x (M,N,B,F) -> (M,N,B·positions, fan-in)."""

    @abstractmethod
    def uncolumns(self, field: Arithmetic[Elements], place: Place, delta: Elements) -> Elements:
        """The adjoint of `columns`: (M,N,B·positions, fan-in) -> (M,N,B,F)."""


class Fixed(Layer):
    """A layer without weights."""

    @abstractmethod
    def forward(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        """z from x (M,N,B,F)."""

    @abstractmethod
    def backward(self, field: Arithmetic[Elements], place: Place, x: Elements, delta: Elements) -> Elements:
        """∂ℓ/∂x from ∂ℓ/∂z."""


class Reshaping(Fixed):
    """A linear layer without weights: scale and degree pass through."""

    def out_scale(self, scale: int, weight_bits: int) -> int:
        return scale

    def out_degree(self, degree: int) -> int:
        return degree

    def in_delta_degree(self, delta_degree: int, in_degree: int) -> int:
        return delta_degree

    def in_delta_magnitude(self, delta: float, in_magnitude: float) -> float:
        return delta


class Activation(Fixed):
    """A polynomial of degree 2, elementwise."""

    def out_shape(self, shape: Shape) -> Shape:
        return shape

    def out_scale(self, scale: int, weight_bits: int) -> int:
        return 2 * scale

    def out_degree(self, degree: int) -> int:
        return 2 * degree

    def in_delta_degree(self, delta_degree: int, in_degree: int) -> int:
        return delta_degree + in_degree


@final
@dataclass(frozen=True)
class Dense(Affine):
    """A fully connected layer."""

    units: int
    weight_bits: int | None = None
    init: float | None = None

    def out_shape(self, shape: Shape) -> Shape:
        _positive(self, units=self.units)
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


@final
@dataclass(frozen=True)
class Conv2d(Affine):
    """A convolution over channels-last images, as a product with gathered columns."""

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    weight_bits: int | None = None
    init: float | None = None

    def out_shape(self, shape: Shape) -> Shape:
        _positive(self, channels=self.channels)
        window = _window(self, shape, self.kernel, self.stride, self.padding)
        return (*window.out_shape, self.channels)

    def _window(self, shape: Shape) -> "Window":
        return _window(self, shape, self.kernel, self.stride, self.padding)

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


@final
@dataclass(frozen=True)
class SumPool(Reshaping):
    """The sum over square windows: average pooling without the division, which integers do not have."""

    kernel: int
    stride: int | None = None

    def _window(self, shape: Shape) -> "Window":
        return _window(self, shape, self.kernel, self.kernel if self.stride is None else self.stride, 0)

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


@final
@dataclass(frozen=True)
class Flatten(Reshaping):
    """(H,W,C) -> (H·W·C,): a change of shape only, activations being flat already."""

    def out_shape(self, shape: Shape) -> Shape:
        return (math.prod(shape),)

    def out_magnitude(self, magnitude: float) -> float:
        return magnitude

    def forward(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        return x

    def backward(self, field: Arithmetic[Elements], place: Place, x: Elements, delta: Elements) -> Elements:
        return delta


@final
@dataclass(frozen=True)
class Square(Activation):
    """z = x², the activation of the paper."""

    def out_magnitude(self, magnitude: float) -> float:
        return 2 * magnitude

    def in_delta_magnitude(self, delta: float, in_magnitude: float) -> float:
        return delta + 1 + in_magnitude

    def forward(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        return field.mul(x, x)

    def backward(self, field: Arithmetic[Elements], place: Place, x: Elements, delta: Elements) -> Elements:
        return field.mul(field.add(x, x), delta)


@final
@dataclass(frozen=True)
class Quadratic(Activation):
    """z = x² + x; the linear term enters at 2^s, so that both stand at scale 2s."""

    def out_magnitude(self, magnitude: float) -> float:
        return math.log2(4.0**magnitude + 2.0**magnitude)

    def in_delta_magnitude(self, delta: float, in_magnitude: float) -> float:
        return delta + math.log2(2 * 2.0**in_magnitude + 1)

    def forward(self, field: Arithmetic[Elements], place: Place, x: Elements) -> Elements:
        return field.mul(x, field.add_integer(x, 2**place.in_scale))

    def backward(self, field: Arithmetic[Elements], place: Place, x: Elements, delta: Elements) -> Elements:
        return field.mul(field.add_integer(field.add(x, x), 2**place.in_scale), delta)


@final
@dataclass(frozen=True)
class Window:
    """Index tables of a sliding window over an (H,W,C) image."""

    in_shape: Shape
    kernel: int
    stride: int
    padding: int

    @property
    def out_shape(self) -> Shape:
        height, width, _ = self.in_shape
        reach = 2 * self.padding - self.kernel
        return (height + reach) // self.stride + 1, (width + reach) // self.stride + 1

    @cached_property
    def columns(self) -> Tensor:
        """(positions, k²C): which input each slot of each window sees, −1 in the padding."""
        height, width, channels = self.in_shape
        rows, cols = (torch.arange(n) * self.stride - self.padding for n in self.out_shape)
        offset = torch.arange(self.kernel)
        y = rows.view(-1, 1, 1, 1, 1) + offset.view(-1, 1, 1)
        x = cols.view(-1, 1, 1, 1) + offset.view(-1, 1)
        index = (y * width + x) * channels + torch.arange(channels)  # (rows,cols,k,k,C)
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        return torch.where(inside, index, -1).reshape(math.prod(self.out_shape), -1)

    @cached_property
    def overlaps(self) -> Tensor:
        """(HWC, most overlaps): the slots of `columns` that see each input, −1 where there are fewer."""
        slots: list[list[int]] = [[] for _ in range(math.prod(self.in_shape))]
        for slot, seen in enumerate(self.columns.flatten().tolist()):
            if seen >= 0:
                slots[seen].append(slot)
        most = max(1, *map(len, slots))
        return torch.tensor([s + [-1] * (most - len(s)) for s in slots])

    @cached_property
    def pooled(self) -> Tensor:
        """(positions, k², C): `columns` with the offsets apart from the channels."""
        return self.columns.reshape(len(self.columns), self.kernel**2, -1)

    @cached_property
    def pools(self) -> Tensor:
        """(HWC, most overlaps): the pooled values (position, channel) that each input went into, −1 for none."""
        channels = self.in_shape[2]
        position = self.overlaps // (self.kernel**2 * channels)  # a slot is (position, offset, channel)
        return torch.where(self.overlaps < 0, -1, position * channels + self.overlaps % channels)


_cached_window = lru_cache(maxsize=64)(Window)  # the tables are built once


def _window(layer: object, shape: Shape, kernel: int, stride: int, padding: int) -> Window:
    _positive(layer, kernel=kernel, stride=stride)
    if padding < 0:
        raise UsageError(f"padding of {type(layer).__name__.lower()} must not be negative")
    if len(shape) != 3:
        raise UsageError(
            f"{type(layer).__name__.lower()} needs (height, width, channels), not {shape}",
            "give the model an image input, and put flatten after the last image layer",
        )
    window = _cached_window(shape, kernel, stride, padding)
    if min(window.out_shape) < 1:
        raise UsageError(f"a window of {kernel} does not fit an image of {shape[0]}x{shape[1]}")
    return window


def _positive(layer: object, **values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise UsageError(f"{name} of {type(layer).__name__.lower()} must be positive")
