"""The gradient of the integer network over Z, by forward differentiation: no backward pass, no field, no dresfl code.

Layers serve as descriptions only. An affine layer is the list of its connections (output, input, weight); along with
each row's activations x goes the matrix J = ∂x/∂w of all parameters w, as flint integers. Then for one row

    ∂/∂w Σ_c (f_c − 2^S·y_c)² = Σ_c 2·(f_c − 2^S·y_c)·J_c

Parameters lie flat: of each affine layer the weights (fan-in, fan-out) row by row, then the biases.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from flint import fmpz_mat

from dresfl.model import Conv2d, Dense, Flatten, Layer, Quadratic, Square, SumPool

Shape = tuple[int, ...]
Rows = Sequence[Sequence[int]]


def _places(shape: Shape, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """How many windows fit downwards and across."""
    counts = [0, 0]
    for axis in (0, 1):
        start = -padding
        while start + kernel <= shape[axis] + padding:
            counts[axis] += 1
            start += stride
    return counts[0], counts[1]


def _dense(layer: Dense, shape: Shape) -> tuple[Shape, int, Iterator[tuple[int, int, int]]]:
    (fan_in,) = shape
    pairs = itertools.product(range(fan_in), range(layer.units))
    return (layer.units,), fan_in, ((o, i, i * layer.units + o) for i, o in pairs)


def _conv2d(layer: Conv2d, shape: Shape) -> tuple[Shape, int, Iterator[tuple[int, int, int]]]:
    height, width, channels = shape
    down, across = _places(shape, layer.kernel, layer.stride, layer.padding)

    def connections() -> Iterator[tuple[int, int, int]]:
        for top, left, out in itertools.product(range(down), range(across), range(layer.channels)):
            output = (top * across + left) * layer.channels + out
            for dy, dx, channel in itertools.product(range(layer.kernel), range(layer.kernel), range(channels)):
                y, x = top * layer.stride - layer.padding + dy, left * layer.stride - layer.padding + dx
                if 0 <= y < height and 0 <= x < width:
                    weight = ((dy * layer.kernel + dx) * channels + channel) * layer.channels + out
                    yield output, (y * width + x) * channels + channel, weight

    return (down, across, layer.channels), layer.kernel**2 * channels, connections()


def _sumpool(layer: SumPool, shape: Shape) -> tuple[Shape, fmpz_mat]:
    _, width, channels = shape
    stride = layer.kernel if layer.stride is None else layer.stride
    down, across = _places(shape, layer.kernel, stride, 0)
    matrix = fmpz_mat(down * across * channels, math.prod(shape))
    for top, left, channel in itertools.product(range(down), range(across), range(channels)):
        for dy, dx in itertools.product(range(layer.kernel), range(layer.kernel)):
            pixel = (top * stride + dy) * width + left * stride + dx
            matrix[(top * across + left) * channels + channel, pixel * channels + channel] += 1
    return (down, across, channels), matrix


def forward(
    layers: Sequence[Layer],
    input_shape: Shape,
    input_bits: int,
    weight_bits: int,
    weights: Sequence[int],
    row: Sequence[int],
) -> tuple[list[int], fmpz_mat, int]:
    """One row's integer outputs, their derivatives (C, P), and the scale S they stand at."""
    x, jacobian = [int(v) for v in row], fmpz_mat(len(row), len(weights))
    shape, scale, start = input_shape, input_bits, 0
    for layer in layers:
        if isinstance(layer, Dense | Conv2d):
            shape, fan_in, connections = (_dense if isinstance(layer, Dense) else _conv2d)(layer, shape)
            fan_out, size = shape[-1], math.prod(shape)
            bias = start + fan_in * fan_out
            matrix, own = fmpz_mat(size, len(x)), fmpz_mat(size, len(weights))
            for output, source, weight in connections:
                matrix[output, source] += int(weights[start + weight])
                own[output, start + weight] += x[source]
            z = []
            for output in range(size):
                own[output, bias + output % fan_out] += 2**scale
                z.append(int(weights[bias + output % fan_out]) * 2**scale)
                z[-1] += sum(int(matrix[output, i]) * x[i] for i in range(len(x)))
            x, jacobian = z, matrix * jacobian + own
            scale += weight_bits if layer.weight_bits is None else layer.weight_bits
            start = bias + fan_out
        elif isinstance(layer, SumPool):
            shape, matrix = _sumpool(layer, shape)
            x = [int(v) for v in (matrix * fmpz_mat(len(x), 1, x)).entries()]
            jacobian = matrix * jacobian
        elif isinstance(layer, Flatten):
            shape = (math.prod(shape),)
        elif isinstance(layer, Square | Quadratic):
            linear = 2**scale if isinstance(layer, Quadratic) else 0
            slopes = fmpz_mat(len(x), len(x))
            for i, value in enumerate(x):
                slopes[i, i] = 2 * value + linear
            x, jacobian, scale = [value**2 + linear * value for value in x], slopes * jacobian, 2 * scale
        else:
            raise TypeError(f"{layer} is not known here")
    return x, jacobian, scale


def loss(
    layers: Sequence[Layer],
    input_shape: Shape,
    input_bits: int,
    weight_bits: int,
    weights: Sequence[int],
    inputs: Rows,
    targets: Rows,
) -> int:
    """‖f(X) − 2^S·Y‖²."""
    total = 0
    for row, target in zip(inputs, targets, strict=True):
        outputs, _, scale = forward(layers, input_shape, input_bits, weight_bits, weights, row)
        total += sum((f - 2**scale * y) ** 2 for f, y in zip(outputs, target, strict=True))
    return total


def gradient(
    layers: Sequence[Layer],
    input_shape: Shape,
    input_bits: int,
    weight_bits: int,
    weights: Sequence[int],
    inputs: Rows,
    targets: Rows,
    target_bits: int = 0,
) -> list[int]:
    """∇_w ‖f(X) − 2^(S−t)·Y‖², summed over the rows."""
    total = fmpz_mat(1, len(weights))
    for row, target in zip(inputs, targets, strict=True):
        outputs, jacobian, scale = forward(layers, input_shape, input_bits, weight_bits, weights, row)
        errors = [2 * (f - 2 ** (scale - target_bits) * int(y)) for f, y in zip(outputs, target, strict=True)]
        total = total + fmpz_mat(1, len(errors), errors) * jacobian
    return [int(v) for v in total.entries()]
