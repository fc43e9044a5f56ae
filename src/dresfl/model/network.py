"""A polynomial network: its layers, what follows from them, and its exact gradient in any ring.

The integer network computes the real one times 2^S. Inputs stand at scale 2^l and weights at 2^lw, and the scales
multiply from layer to layer. A bias enters at the scale that its layer has reached, and the target enters at 2^S.
Targets are integers at scale 2^t: t is 0 for classes, and `target_bits` for a regression. So the integer loss is
‖f(X) − 2^(S−t)·Y‖². Its gradient with respect to the integer weights stands at 2^(2S − lw).
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, final

import torch
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import (
    Arithmetic,
    Domain,
    Elements,
    Encoded,
    PublicMatrix,
    PublicStream,
    ResidueField,
    ResidueSystem,
)
from dresfl.quantize import weight_integers, weight_reals

from .captured import captured_gradient
from .chain import chain_gradient, chain_steps
from .layers import Affine, Dense, Fixed, Layer, Place, Shape, Square

# Initial weights are uniform with standard deviation init/sqrt(fan-in). A square network trains from small
# weights: 1.0 in the first layer, 0.5 after it (doubling these was measured to be worse).
FIRST_INIT = 1.0
LATER_INIT = 0.5

Task = Literal["classification", "regression"]


@final
@dataclass(frozen=True)
class Parameters:
    """Where the weights of one layer lie in the flat vector (P,)."""

    name: str
    place: Place
    layer: Affine
    start: int

    @property
    def fan(self) -> tuple[int, int]:
        return self.layer.fan(self.place.in_shape)

    @property
    def weight(self) -> slice:
        return slice(self.start, self.start + math.prod(self.fan))

    @property
    def bias(self) -> slice:
        return slice(self.weight.stop, self.weight.stop + self.fan[1])


@final
@dataclass(frozen=True)
class Network:
    """A stack of layers for inputs of one shape, ending in one value per class, with squared-error loss.

    One value alone is trained to be −1 or 1, and its sign tells two classes apart. With `target_bits` the network is
    one of a regression: it ends in one value for each real target.

    >>> network = mlp((784, 64, 64, 10), input_bits=4, weight_bits=10)
    >>> network.gradient_degree, network.out_scale, network.num_parameters
    (8, 86, 55050)
    """

    layers: tuple[Layer, ...]
    input_shape: Shape
    input_bits: int
    weight_bits: int = 10
    input_magnitude: float = 0.0  # log2 of the largest real |input|
    target_bits: int = 0  # t: scale of the targets of a regression; 0: the targets are classes
    target_magnitude: float = 0.0  # log2 of the largest real |target|

    def __post_init__(self) -> None:
        if not any(isinstance(layer, Affine) for layer in self.layers):
            raise UsageError("a model needs at least one layer with weights", "for example dense or conv2d")
        if len(self.places[-1].out_shape) != 1:
            raise UsageError(
                f"the last layer makes {self.places[-1].out_shape}, not one value per class",
                "end the model with flatten and dense",
            )
        if not 0 <= self.target_bits <= 16:
            raise UsageError(f"target_bits must lie in 0..16, not {self.target_bits}")
        if self.target_bits > self.out_scale:
            raise UsageError(
                f"the output has {self.out_scale} bits after the point, fewer than {self.target_bits} target_bits",
                "use fewer target_bits, or more weight_bits",
            )
        if not math.isfinite(self.target_magnitude) or (self.target_magnitude and not self.target_bits):
            raise UsageError(
                f"target_magnitude = {self.target_magnitude} is of a regression with finite targets",
                "give the network target_bits, for example 8",
            )

    # -- what follows from the layers ------------------------------------------------------------------------

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Each layer's shapes, scales, degrees and magnitudes. They follow from those of the layer before it."""
        places: list[Place] = []
        shape, scale, degree, magnitude = self.input_shape, self.input_bits, 1, self.input_magnitude
        first = True
        for layer in self.layers:
            bits, init = 0, FIRST_INIT if first else LATER_INIT
            if isinstance(layer, Affine):
                bits = self.weight_bits if layer.weight_bits is None else layer.weight_bits
                init = init if layer.init is None else layer.init
                first = False
                if not 1 <= bits <= 24:
                    raise UsageError(f"weight_bits must lie in 1..24, not {bits}")
            place = Place(
                in_shape=shape,
                out_shape=layer.out_shape(shape),
                in_scale=scale,
                out_scale=layer.degree * scale + bits,
                in_degree=degree,
                out_degree=layer.degree * degree,
                in_magnitude=magnitude,
                out_magnitude=layer.out_magnitude(magnitude),
                weight_bits=bits,
                init=init,
            )
            places.append(place)
            shape, scale = place.out_shape, place.out_scale
            degree, magnitude = place.out_degree, place.out_magnitude
        return tuple(places)

    @cached_property
    def parameters(self) -> tuple[Parameters, ...]:
        """Where each layer's weights lie in the flat vector, in order: its matrix (fan-in,fan-out), then its bias."""
        found: list[Parameters] = []
        start = 0
        for index, (layer, place) in enumerate(zip(self.layers, self.places, strict=True)):
            if isinstance(layer, Affine):
                found.append(Parameters(f"layers.{index}", place, layer, start))
                start = found[-1].bias.stop
        return tuple(found)

    @property
    def num_parameters(self) -> int:
        return int(self.parameters[-1].bias.stop)

    @property
    def input_size(self) -> int:
        return math.prod(self.input_shape)

    @property
    def num_classes(self) -> int:
        return self.places[-1].out_shape[0]

    @property
    def task(self) -> Task:
        """What the network's values are: one for each class, or estimates of real targets."""
        return "regression" if self.target_bits else "classification"

    @property
    def one_hot(self) -> bool:
        """Whether a row's targets are 1 for its class and 0 for the others; else they are numbers of their own."""
        return not self.target_bits and self.num_classes > 1

    @property
    def num_labels(self) -> int:
        """The classes that the network tells apart: two by the sign of one value. 0 in a regression."""
        return 0 if self.target_bits else max(2, self.num_classes)

    def labels(self, values: Tensor) -> Tensor:
        """The class of each row from its outputs or its targets (m,C): the place of the largest, or the sign of one."""
        return (values[:, 0] > 0).to(torch.int64) if self.num_classes == 1 else values.argmax(1)

    @property
    def target_limit(self) -> int:
        """The largest |integer| that a target may be."""
        return round(math.exp2(self.target_bits + self.target_magnitude))

    @property
    def out_scale(self) -> int:
        """S: the scale of the output in bits."""
        return self.places[-1].out_scale

    @property
    def target_shift(self) -> int:
        """S − t: the bits by which integer targets are raised to the scale of the output."""
        return self.out_scale - self.target_bits

    def _walk_back(self) -> Iterator[tuple[Layer, Place, int, float]]:
        """Each layer, the last one first, with the degree and the log2 magnitude of its delta = ∂ℓ/∂z."""
        last = self.places[-1]
        degree = last.out_degree  # of f(X) − Y; Y itself has degree 1
        magnitude = 1 + math.log2(2.0**last.out_magnitude + 2.0**self.target_magnitude)
        for layer, place in zip(reversed(self.layers), reversed(self.places), strict=True):
            yield layer, place, degree, magnitude
            degree += (layer.degree - 1) * place.in_degree  # ∂z/∂x has one factor of x less than z
            magnitude = layer.in_delta_magnitude(magnitude, place.in_magnitude)

    @cached_property
    def gradient_degree(self) -> int:
        """deg(g): the total degree of the gradient in the data; 2^(L+1) for L squares."""
        return max(
            degree + place.in_degree for layer, place, degree, _ in self._walk_back() if isinstance(layer, Affine)
        )

    def gradient_magnitudes(self, batch_rows: int) -> tuple[float, ...]:
        """Of each layer with weights: an estimate of log2 of the largest |gradient| of `batch_rows` rows, summed."""
        return tuple(
            delta + max(0.0, place.in_magnitude) + math.log2(batch_rows * layer.positions(place.in_shape))
            for layer, place, _, delta in self._walk_back()
            if isinstance(layer, Affine)
        )[::-1]

    def needed_bits(self, batch_rows: int) -> float:
        """An estimate of log2 of the largest integer in the gradient over `batch_rows` rows."""
        magnitudes = zip(self.parameters, self.gradient_magnitudes(batch_rows), strict=True)
        return max(2 * self.out_scale - p.place.weight_bits + real for p, real in magnitudes)

    def longest_product(self, batch_rows: int) -> int:
        """The longest sum of products of two secret values. It is in a weight's gradient, over rows and positions."""
        return max(batch_rows * p.layer.positions(p.place.in_shape) for p in self.parameters)

    @property
    def largest_matrix(self) -> int:
        """Weights of the largest layer."""
        return max(math.prod(p.fan) for p in self.parameters)

    # -- weights ---------------------------------------------------------------------------------------------

    @cached_property
    def weight_scales(self) -> Tensor:
        """(P,) float64: 2^lw of each weight."""
        scales = torch.empty(self.num_parameters, dtype=torch.float64)
        for p in self.parameters:
            scales[p.weight.start : p.bias.stop] = 2.0**p.place.weight_bits
        return scales

    @cached_property
    def gradient_scales(self) -> Tensor:
        """(P,) float64: 2^(2S − lw), by which the coordinator divides each decoded integer."""
        return 2.0 ** (2 * self.out_scale) / self.weight_scales

    def weight_scales_on(self, device: str) -> Tensor:
        """`weight_scales` on a device."""
        return on_device(self.weight_scales, device)

    def gradient_scales_on(self, device: str) -> Tensor:
        """`gradient_scales` on a device."""
        return on_device(self.gradient_scales, device)

    def initial_weights(self, stream: PublicStream) -> Tensor:
        """(P,) int64: the weights that the coordinator starts from.

        They are uniform with standard deviation init/sqrt(fan-in); biases are zero.
        """
        weights = torch.zeros(self.num_parameters, dtype=torch.int64)
        for index, p in enumerate(self.parameters):
            width = p.place.init * math.sqrt(3.0 / p.fan[0])
            uniform = stream.uniform(Domain.WEIGHTS, index, math.prod(p.fan)) * 2 - 1
            weights[p.weight] = weight_integers(uniform * width, self.weight_scales[p.weight])
        return weights

    def tensors(self, weights: Tensor) -> dict[str, Tensor]:
        """Real weights by name, from the integers: W = 2^−lw·W_int, exact in float64."""
        reals = weight_reals(weights.cpu(), self.weight_scales)
        out: dict[str, Tensor] = {}
        for p in self.parameters:
            out[f"{p.name}.weight"] = reals[p.weight].view(p.fan).clone()
            out[f"{p.name}.bias"] = reals[p.bias].clone()
        return out

    # -- computing -------------------------------------------------------------------------------------------

    def _forward(
        self, field: Arithmetic[Elements], weights: Tensor, inputs: Elements
    ) -> tuple[Elements, list[Elements], list[PublicMatrix[Elements]]]:
        """f(X); what each layer's backward step needs of its input; and the matrices of the layers with weights."""
        parameters = iter(self.parameters)
        x, kept, matrices = inputs, [], []
        for layer, place in zip(self.layers, self.places, strict=True):
            if isinstance(layer, Affine):
                p = next(parameters)
                matrices.append(field.public(weights[p.weight].view(p.fan)))
                bias = field.scale(field.embed(weights[p.bias]), 2**place.in_scale)  # (M,out)
                kept.append(layer.columns(field, place, x))
                z = field.matmul_public(kept[-1], matrices[-1])  # (M,N,B·positions,in) @ (in,out)
                z = field.add(z, bias.reshape(bias.shape[0], 1, 1, -1))
                x = z.reshape(*inputs.shape[:3], place.out_size)
            elif isinstance(layer, Fixed):
                kept.append(x)
                x = layer.forward(field, place, x)
        return x, kept, matrices

    def outputs(self, field: Arithmetic[Elements], weights: Tensor, inputs: Elements) -> Elements:
        """f(X), times 2^S: inputs (M,N,B,F) -> (M,N,B,C)."""
        return self._forward(field, weights, inputs)[0]

    def gradient(self, field: Arithmetic[Elements], weights: Tensor, inputs: Elements, targets: Elements) -> Elements:
        """∇_w ‖f(X) − 2^(S−t)·Y‖², summed over the rows: what each client computes on its shares.

        weights (P,) int64, the same for all; inputs (M,N,B,F) and targets (M,N,B,C) of N clients at once
        -> (M,N,P). Exact: the integer gradient modulo the field's modulus.
        """
        parts = self.answer_parts(field, weights, inputs, targets)
        return parts[0] if len(parts) == 1 else field.concat(parts, 2)

    def answer_parts(
        self, field: Arithmetic[Elements], weights: Tensor, inputs: Elements, targets: Elements
    ) -> list[Elements]:
        """`gradient_parts` for a client's answer: on a GPU by a captured graph. Not for callers that capture it."""
        captured = captured_gradient(self._concatenated, field, weights, inputs, targets)
        return self.gradient_parts(field, weights, inputs, targets) if captured is None else [captured]

    def _concatenated(
        self, field: Arithmetic[Elements], weights: Tensor, inputs: Elements, targets: Elements
    ) -> Elements:
        return field.concat(self.gradient_parts(field, weights, inputs, targets), 2)

    def gradient_parts(
        self, field: Arithmetic[Elements], weights: Tensor, inputs: Elements, targets: Elements
    ) -> list[Elements]:
        """`gradient` in pieces (M,N,·), in the order of the parameters, for callers that need no tensor of it all."""
        steps = chain_steps(self.layers, self.places)
        whole = chain_gradient(field, steps, self.target_shift, weights, inputs, targets)
        return self._gradient_by_layers(field, weights, inputs, targets) if whole is None else [whole]

    def encoded_gradient(
        self, field: ResidueSystem, weights: Tensor, matrix: Tensor, rows: Sequence[Tensor]
    ) -> Tensor | None:
        """`gradient` of coded rows Σ_j matrix[m,n,j]·rows[j], inputs and then targets, that are never all in memory.

        matrix (M,N,R), each of the R rows (M,B,W). None if the layers, the field or the machine have no call for it.
        """
        steps = chain_steps(self.layers, self.places)
        if steps is None or not isinstance(field, ResidueField):
            return None
        encoded = Encoded(matrix, rows, self.input_size)
        return field.chain_gradient(steps, 2**self.target_shift, weights, encoded)

    def _gradient_by_layers(
        self, field: Arithmetic[Elements], weights: Tensor, inputs: Elements, targets: Elements
    ) -> list[Elements]:
        z, kept, matrices = self._forward(field, weights, inputs)
        error = field.sub(z, field.scale(targets, 2**self.target_shift))
        delta = field.add(error, error)  # (M,N,B,C)
        gradients: list[Elements] = []
        parameters = list(self.parameters)
        for depth in range(len(self.layers) - 1, -1, -1):
            layer, place, x = self.layers[depth], self.places[depth], kept[depth]
            if isinstance(layer, Fixed):
                delta = layer.backward(field, place, x, delta)
                continue
            if not isinstance(layer, Affine):
                raise TypeError(f"{layer} is neither affine nor fixed")
            p = parameters.pop()
            delta = delta.reshape(*delta.shape[:2], -1, p.fan[1])  # (M,N,B·positions,out)
            bias = field.scale(field.sum(delta, 2), 2**place.in_scale)  # (M,N,out)
            weight = field.matmul(x.swapaxes(-1, -2), delta)  # (M,N,in,BP) @ (M,N,BP,out) -> (M,N,in,out)
            gradients += [bias, weight.reshape(*bias.shape[:2], -1)]
            if not parameters:
                break  # nothing below has weights
            back = field.matmul_public(delta, matrices.pop().transposed)
            delta = layer.uncolumns(field, place, back)
        return gradients[::-1]


@lru_cache(maxsize=32)
def on_device(constants: Tensor, device: str) -> Tensor:
    """A network's constant on a device, sent there once."""
    return constants.to(device)


def mlp(sizes: Sequence[int], *, input_bits: int, weight_bits: int) -> Network:
    """Dense layers of the given sizes with a square between any two, the paper's network.

    >>> mlp((784, 64, 10), input_bits=4, weight_bits=10).layers == (Dense(64), Square(), Dense(10))
    True
    """
    if len(sizes) < 2:
        raise UsageError("a network needs at least an input and an output size", "for example 784,64,64,10")
    layers: list[Layer] = []
    for units in sizes[1:]:
        layers += [Dense(units), Square()]
    return Network(tuple(layers[:-1]), (sizes[0],), input_bits, weight_bits)


def weights_sha256(weights: Tensor) -> str:
    """The fingerprint by which runs are compared: SHA-256 of the integer weights, little-endian int64."""
    digest = hashlib.sha256()
    for part in torch.split(weights.cpu().contiguous(), 2**16):  # a few at a time: no second copy of a large model
        digest.update(part.to(torch.int64).numpy().astype("<i8", copy=False).data)
    return digest.hexdigest()
