"""A trained network on real numbers, without scales and integers: what goes into files for other programs.

A row of F features x, in their own units, becomes outputs in two steps:

    inputs:    clip(x, low, high), then (x − offset)·factor as float32, then Round(2^l·(x + c))·2^−l
    network:   the layers, on these multiples of 2^−l, with the real weights

Without a schema low and high are infinite, offset is 0 and factor is 1. The outputs of a regression are then brought
back to the target's unit.
"""

import dataclasses
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dresfl.errors import UsageError
from dresfl.field import Arithmetic, Elements, Reals
from dresfl.model import Network
from dresfl.model.layers import Affine, Fixed

Floats = npt.NDArray[np.float64]


@final
@dataclass(frozen=True, eq=False)
class Preparation:
    """How features (m,F) in their own units become a network's inputs."""

    low: Floats  # (F,): features are clipped to [low, high]
    high: Floats
    offset: Floats  # (F,): then (x − offset)·factor
    factor: Floats
    shift: float  # then Round(2^input_bits·(x + shift))·2^−input_bits
    input_bits: int

    @property
    def clips(self) -> bool:
        """Whether any feature is clipped."""
        return bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    @property
    def scales(self) -> bool:
        """Whether any feature is scaled."""
        return bool((self.offset != 0).any() or (self.factor != 1).any())


@final
@dataclass(frozen=True, eq=False)
class RealNetwork:
    """All that a prediction needs, as plain real numbers."""

    network: Network
    tensors: dict[str, Tensor]  # the real weights by name, float64
    preparation: Preparation
    is_regression: bool = False  # the outputs are numbers, and not one for each class
    target_offset: float = 0.0  # a target is output·target_factor + target_offset
    target_factor: float = 1.0


def real_outputs(
    field: Arithmetic[Elements], network: Network, tensors: dict[str, Tensor], inputs: Elements
) -> Elements:
    """f(x) of real inputs (1,1,B,F) -> (1,1,B,C): `Network.outputs` with all scales 2^0."""
    x = inputs
    parameters = iter(network.parameters)
    for layer, place in zip(network.layers, network.places, strict=True):
        plain = dataclasses.replace(place, in_scale=0, out_scale=0)
        if isinstance(layer, Affine):
            name = next(parameters).name
            z = field.matmul_public(layer.columns(field, plain, x), field.public(tensors[f"{name}.weight"]))
            z = field.add(z, field.embed(tensors[f"{name}.bias"].view(1, 1, -1)))
            x = z.reshape(*inputs.shape[:3], place.out_size)
        elif isinstance(layer, Fixed):
            x = layer.forward(field, plain, x)
        else:
            raise UsageError(f"a layer of kind {layer.kind!r} cannot be exported")
    return x


@final
class RealModule(nn.Module):
    """A `RealNetwork` in torch, float64: features (m, …) in, outputs (m,C) or targets out. Nothing is refused."""

    def __init__(self, real: RealNetwork) -> None:
        super().__init__()
        self._real, prepared = real, real.preparation
        for name in ("low", "high", "offset", "factor"):
            self.register_buffer(name, torch.from_numpy(getattr(prepared, name)))
        self.weights = nn.ParameterDict({name.replace(".", "_"): value for name, value in real.tensors.items()})

    def forward(self, features: Tensor) -> Tensor:
        """Outputs (m,C), float64."""
        real, prepared = self._real, self._real.preparation
        x = features.to(torch.float64).flatten(1)
        if prepared.clips:
            x = torch.minimum(torch.maximum(x, self.low), self.high)  # type: ignore[arg-type]
        x = ((x - self.offset) * self.factor).to(torch.float32).to(torch.float64)  # type: ignore[operator]
        step = 2.0**prepared.input_bits
        x = ((x + prepared.shift) * step).round() * (1 / step)
        tensors = {name: self.weights[name.replace(".", "_")] for name in real.tensors}
        outputs = real_outputs(Reals(), real.network, tensors, x[None, None])[0, 0]
        return outputs * real.target_factor + real.target_offset if real.is_regression else outputs
