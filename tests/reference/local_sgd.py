"""s plain steps of gradient descent over the rationals: no field, no scales that grow, no dresfl code but layer names.

The gradient at rational weights comes from `integer_gradient`: weights n/2^k are the integers n at weight_bits k.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from fractions import Fraction

from dresfl.model import Conv2d, Dense, Layer

from . import integer_gradient
from .integer_gradient import Rows, Shape


def _sizes(layers: Sequence[Layer], input_shape: Shape) -> list[int]:
    """How many parameters each layer with weights has."""
    shape, sizes = input_shape, []
    for layer in layers:
        if isinstance(layer, Dense | Conv2d):
            fan_in = shape[0] if isinstance(layer, Dense) else layer.kernel**2 * shape[2]
            fan_out = layer.units if isinstance(layer, Dense) else layer.channels
            sizes.append((fan_in + 1) * fan_out)
        shape = layer.out_shape(shape)
    return sizes


def gradient(
    layers: Sequence[Layer],
    input_shape: Shape,
    input_bits: int,
    weights: Sequence[Fraction],
    inputs: Rows,
    targets: Rows,
) -> list[Fraction]:
    """∇_w ‖f(2^−l·X) − Y‖² at real weights, summed over the rows; the weights' denominators are powers of two."""
    sizes, starts, described = _sizes(layers, input_shape), [0], []
    for size in sizes:
        starts.append(starts[-1] + size)
    own = [weights[first:last] for first, last in itertools.pairwise(starts)]
    bits = [max(w.denominator.bit_length() - 1 for w in part) for part in own]
    integers = [int(w * 2**k) for part, k in zip(own, bits, strict=True) for w in part]
    left = list(bits)
    for layer in layers:
        affine = isinstance(layer, Dense | Conv2d)
        described.append(dataclasses.replace(layer, weight_bits=left.pop(0)) if affine else layer)
    about = tuple(described), input_shape, input_bits, 0
    found = integer_gradient.gradient(*about, integers, inputs, targets)
    scale = integer_gradient.forward(*about, integers, inputs[0])[2]
    scales = [2 * scale - k for size, k in zip(sizes, bits, strict=True) for _ in range(size)]
    return [Fraction(g, 2**scale) for g, scale in zip(found, scales, strict=True)]


def move(
    layers: Sequence[Layer],
    input_shape: Shape,
    input_bits: int,
    weights: Sequence[Fraction],
    rate: Fraction,
    batches: Sequence[tuple[Rows, Rows]],
) -> list[Fraction]:
    """w_0 − w_s after one step of w ← w − rate·∇ on each batch of (inputs, targets)."""
    now = list(weights)
    for inputs, targets in batches:
        found = gradient(layers, input_shape, input_bits, now, inputs, targets)
        now = [w - rate * g for w, g in zip(now, found, strict=True)]
    return [before - after for before, after in zip(weights, now, strict=True)]
