"""Sliding windows over an (H,W,C) image, for convolutions and pooling."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

import torch
from torch import Tensor

from dresfl.errors import UsageError

from .layer import Layer, Shape


@final
@dataclass(frozen=True)
class Window:
    """Index tables of a sliding window over an (H,W,C) image, for exact arithmetic, and the same windows of reals."""

    in_shape: Shape
    kernel: int
    stride: int
    padding: int

    @property
    def out_shape(self) -> Shape:
        height, width, _ = self.in_shape
        reach = 2 * self.padding - self.kernel
        return (height + reach) // self.stride + 1, (width + reach) // self.stride + 1

    def unfold(self, x: Tensor) -> Tensor:
        """The windows of real images: (...,HWC) -> (images,H',W',C,k,k)."""
        images = x.reshape(-1, *self.in_shape)
        if self.padding:
            images = torch.nn.functional.pad(images, (0, 0, *[self.padding] * 4))
        return images.unfold(1, self.kernel, self.stride).unfold(2, self.kernel, self.stride)

    @cached_property
    def columns(self) -> Tensor:
        """(positions, k²C): the input that each slot of each window sees; −1 in the padding."""
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
        """(HWC, most overlaps): the slots of `columns` that see each input; −1 fills the rest."""
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
        """(HWC, most overlaps): the pooled values (position, channel) that each input is part of; −1 fills the rest."""
        channels = self.in_shape[2]
        position = self.overlaps // (self.kernel**2 * channels)  # a slot is (position, offset, channel)
        return torch.where(self.overlaps < 0, -1, position * channels + self.overlaps % channels)


_cached_window = lru_cache(maxsize=64)(Window)  # the tables are built once


def window_of(layer: Layer, shape: Shape, kernel: int, stride: int, padding: int = 0) -> Window:
    """The window of a layer over images of `shape`. UsageError if the layer cannot stand there."""
    layer.check_positive(kernel=kernel, stride=stride)
    if padding < 0:
        raise UsageError(f"padding of {layer.kind} must not be negative")
    if len(shape) != 3:
        raise UsageError(
            f"{layer.kind} needs (height, width, channels), not {shape}",
            "give the model an image input, and put flatten after the last image layer",
        )
    window = _cached_window(shape, kernel, stride, padding)
    if min(window.out_shape) < 1:
        raise UsageError(f"a window of {kernel} does not fit an image of {shape[0]}x{shape[1]}")
    return window
