"""Several steps of gradient descent inside a ring: what a client computes on its coded rows between two uploads.

Step j starts from the weights that step j−1 left, and these are as secret as the rows. Step j is

    w_j = w_{j−1} − a·2^−e · g_j(w_{j−1}),   g_j summed over the rows of mini-batch j

The rate a·2^−e is an integer over a power of two, so that no step divides. The scales grow in its place. If layer i has
its weights at 2^lw and the network its output at 2^S, then the gradient stands at 2^(2S − lw), and the weights after
the step at

    2^lw′,   lw′ = 2S − lw + e

The next step starts with lw′ in the place of lw. The move Δ = w_0 − w_s is an integer at the last of these scales: one
division by a power of two, after the lifting, gives it exactly.

Degrees. Weights of degree D_i in the data make an output of degree D_i + (degree of the layer's input). The walk back
adds the same terms as for public weights, and D_i for every matrix that it passes. For dense layers with L squares
between them all D_i are alike:

    D ← 2^(L+1) + (2^(L+2) − 3)·D,   from D = 0:   2, 4, 6, 8 for L = 0;   4, 24, 124 for L = 1;   8, 112 for L = 2
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import Arithmetic, Elements

from .layers import Affine, Fixed, Place
from .network import Network, on_device


@final
@dataclass(frozen=True)
class Stage:
    """One of the steps: where each layer stands in it, and what comes of each layer with weights."""

    places: tuple[Place, ...]  # with the scales and degrees of this step
    weight_scales: tuple[int, ...]  # in bits, as the step finds them
    gradient_scales: tuple[int, ...]  # in bits
    gradient_degrees: tuple[int, ...]  # as polynomials in the data

    @property
    def out_scale(self) -> int:
        """S of this step."""
        return self.places[-1].out_scale


@final
@dataclass(frozen=True)
class LocalSteps:
    """s steps of gradient descent of a network, with rates a·2^−e for integers a from 0 to `largest_multiplier`.

    >>> from .network import mlp
    >>> local = LocalSteps(mlp((784, 10), input_bits=4, weight_bits=10), num_steps=4, rate_shift=20, batch_size=64)
    >>> local.degree, local.scales  # 8 = 2s, and 122 = 10 + 4·(2·4 + 20)
    (8, (122,))
    """

    network: Network
    num_steps: int  # s
    rate_shift: int  # e
    batch_size: int  # B: rows of each shard in a mini-batch
    num_shards: int = 1  # K: so many moves are added
    largest_multiplier: int = 1

    def __post_init__(self) -> None:
        least = min(self.num_steps, self.batch_size, self.num_shards)
        if least < 1 or self.rate_shift < 0 or self.largest_multiplier < 0:
            raise UsageError(
                f"{self.num_steps} local steps at rates up to {self.largest_multiplier}·2^-{self.rate_shift} over "
                f"{self.batch_size} rows of {self.num_shards} shards cannot be computed"
            )

    # -- what follows from the layers ------------------------------------------------------------------------

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The steps one after the other. Each one's scales and degrees follow from those before it."""
        scales = [p.place.weight_bits for p in self.network.parameters]
        degrees = [0] * len(scales)
        stages: list[Stage] = []
        for _ in range(self.num_steps):
            stages.append(_stage(self.network, scales, degrees))
            scales = [scale + self.rate_shift for scale in stages[-1].gradient_scales]
            degrees = [max(pair) for pair in zip(degrees, stages[-1].gradient_degrees, strict=True)]
        return tuple(stages)

    @property
    def degree(self) -> int:
        """The degree of the move as a polynomial in the data."""
        return max(max(stage.gradient_degrees) for stage in self.stages)

    @cached_property
    def scales(self) -> tuple[int, ...]:
        """The scale in bits of the move of each layer with weights."""
        return tuple(scale + self.rate_shift for scale in self.stages[-1].gradient_scales)

    @cached_property
    def move_scales(self) -> Tensor:
        """(P,) float64: by which the coordinator divides each decoded integer of the move."""
        scales = torch.empty(self.network.num_parameters, dtype=torch.float64)
        for p, bits in zip(self.network.parameters, self.scales, strict=True):
            scales[p.weight.start : p.bias.stop] = 2.0**bits
        return scales

    def move_scales_on(self, device: str) -> Tensor:
        """`move_scales` on a device."""
        return on_device(self.move_scales, device)

    @property
    def needed_bits(self) -> float:
        """An estimate of log2 of the largest integer in the move, summed over the shards."""
        rate = math.log2(max(1, self.largest_multiplier)) - self.rate_shift
        moved = zip(self.scales, self.network.gradient_magnitudes(self.batch_size * self.num_shards), strict=True)
        return max(scale + max(0.0, magnitude + rate + math.log2(self.num_steps)) for scale, magnitude in moved)

    @property
    def longest_product(self) -> int:
        """The longest sum of products of two secret values: over rows and positions, or over a matrix's sides."""
        sides = max(max(p.fan) for p in self.network.parameters) if self.num_steps > 1 else 1
        return max(sides, self.network.longest_product(self.batch_size))

    # -- computing -------------------------------------------------------------------------------------------

    def move(
        self,
        field: Arithmetic[Elements],
        weights: Tensor,
        multiplier: int,
        inputs: Elements,
        targets: Elements,
    ) -> Elements:
        """Δ = w_0 − w_s at the rate multiplier·2^−e: what each client computes on its shares.

        weights (P,) int64, the same for all; inputs (M,N,s·B,F) and targets (M,N,s·B,C), the mini-batch of the first
        step first -> (M,N,P). Exact: the integer move modulo the field's modulus.
        """
        if inputs.shape[2] % self.num_steps:
            raise UsageError(f"{inputs.shape[2]} rows cannot be {self.num_steps} mini-batches of one size")
        rows = inputs.shape[2] // self.num_steps
        parameters = self.network.parameters
        start = field.embed(weights).reshape(-1, 1, self.network.num_parameters)  # (M,1,P)
        first = [start[:, :, p.weight.start : p.bias.stop] for p in parameters]  # of each layer with weights
        moves: list[Elements] = []  # likewise, (M,N,·): what the steps so far have moved, at the scales after them
        for number, stage in enumerate(self.stages):
            batch = slice(number * rows, (number + 1) * rows)
            x, y = inputs[:, :, batch], targets[:, :, batch]
            if not moves:  # the weights are still public
                whole = self.network.gradient(field, weights, x, y)
                found = [whole[:, :, p.weight.start : p.bias.stop] for p in parameters]
                moves = [field.scale(gradient, multiplier) for gradient in found]
                continue
            grown = [scale - p.place.weight_bits for p, scale in zip(parameters, stage.weight_scales, strict=True)]
            now = [
                field.sub(field.scale(own, 2**bits), moved)
                for own, bits, moved in zip(first, grown, moves, strict=True)
            ]
            found = _gradients(self.network, stage, field, now, x, y)
            grown = [
                after + self.rate_shift - before
                for before, after in zip(stage.weight_scales, stage.gradient_scales, strict=True)
            ]
            moves = [
                field.add(field.scale(moved, 2**bits), field.scale(gradient, multiplier))
                for moved, bits, gradient in zip(moves, grown, found, strict=True)
            ]
        return moves[0] if len(moves) == 1 else field.concat(moves, 2)


def _stage(network: Network, scales: Sequence[int], degrees: Sequence[int]) -> Stage:
    """A step with weights at these scales, of these degrees in the data."""
    places: list[Place] = []
    scale, degree, weights = network.input_bits, 1, list(zip(scales, degrees, strict=True))
    own: list[int] = []  # of each layer: the degree of its weights
    for layer, place in zip(network.layers, network.places, strict=True):
        bits, power = weights.pop(0) if isinstance(layer, Affine) else (0, 0)
        own.append(power)
        out_scale, out_degree = layer.degree * scale + bits, layer.degree * degree + power
        places.append(
            replace(
                place, in_scale=scale, out_scale=out_scale, in_degree=degree, out_degree=out_degree, weight_bits=bits
            )
        )
        scale, degree = out_scale, out_degree
    gradient_degrees: list[int] = []
    for layer, place, power in reversed(list(zip(network.layers, places, own, strict=True))):
        if isinstance(layer, Affine):
            gradient_degrees.append(degree + place.in_degree)
            degree += power
        else:
            degree += (layer.degree - 1) * place.in_degree
    gradient_scales = tuple(2 * scale - bits for bits in scales)
    return Stage(tuple(places), tuple(scales), gradient_scales, tuple(gradient_degrees[::-1]))


def _gradients(
    network: Network,
    stage: Stage,
    field: Arithmetic[Elements],
    weights: Sequence[Elements],
    inputs: Elements,
    targets: Elements,
) -> list[Elements]:
    """`Network.gradient` at secret weights, (M,N,·) of each layer -> (M,N,·) of each layer: matrix, then bias."""
    parameters = list(zip(network.parameters, weights, strict=True))
    matrices: list[Elements] = []
    kept: list[Elements] = []
    x, left = inputs, list(parameters)
    for layer, place in zip(network.layers, stage.places, strict=True):
        if isinstance(layer, Affine):
            p, own = left.pop(0)
            size = p.weight.stop - p.weight.start
            matrices.append(own[:, :, :size].reshape(*own.shape[:2], *p.fan))
            bias = field.scale(own[:, :, size:], 2**place.in_scale)  # (M,N,out)
            kept.append(layer.columns(field, place, x))
            z = field.matmul(kept[-1], matrices[-1])  # (M,N,B·positions,in) @ (M,N,in,out)
            z = field.add(z, bias.reshape(*bias.shape[:2], 1, -1))
            x = z.reshape(*inputs.shape[:3], place.out_size)
        elif isinstance(layer, Fixed):
            kept.append(x)
            x = layer.forward(field, place, x)
    error = field.sub(x, field.scale(targets, 2 ** (stage.out_scale - network.target_bits)))
    delta = field.add(error, error)  # (M,N,B,C)
    found: list[Elements] = []
    for layer, place, x in reversed(list(zip(network.layers, stage.places, kept, strict=True))):
        if isinstance(layer, Fixed):
            delta = layer.backward(field, place, x, delta)
        elif isinstance(layer, Affine):
            p, _ = parameters.pop()
            delta = delta.reshape(*delta.shape[:2], -1, p.fan[1])  # (M,N,B·positions,out)
            bias = field.scale(field.sum(delta, 2), 2**place.in_scale)  # (M,N,out)
            weight = field.matmul(x.swapaxes(-1, -2), delta)  # (M,N,in,BP) @ (M,N,BP,out) -> (M,N,in,out)
            found.append(field.concat([weight.reshape(*bias.shape[:2], -1), bias], 2))
            if not parameters:
                break  # nothing below has weights
            back = field.matmul(delta, matrices.pop().swapaxes(-1, -2))
            delta = layer.uncolumns(field, place, back)
    return found[::-1]
