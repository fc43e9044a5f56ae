"""A round of the hidden mode as one program of products, over any ring: shares, exact integers, real numbers.

Weights are secret here: they are elements, like the rows. A product of secret values raises the degree of its sharing.
Before the degree passes the schedule's limit, a value is opened under a mask and cut down to fewer bits: a hop. The
program yields the products of one hop after the other and is sent what the hop made of them. It never asks how.

    schedule S4 (limit 4):  z² keeps degree 2, e·Wᵀ is opened at degree 4, xᵀ·δ at 4: 2L + 1 hops for L activations
    schedule S2 (limit 2):  a hop after every product: 4L + 2 hops

Notation: s the scale of a value in bits (the integer v stands for v·2^−s), x the input of a layer with weights, z its
output, e the error of the last layer, δ = ∂ℓ/∂z, u = δ·Wᵀ, lw the scale of weights. The bias is the weight of a
constant 1, which is 2^s here.

Guards. A run that diverges would outgrow its masks. So sums of squares are watched: of every layer's z, of the error
e, of the weights W. A sum is cut by a shift near its limit, and the quotient is opened in the clear one hop later.
`Diverged` is raised if it is above its limit.

    Σz²    is cut in the hop after z, so its quotient is known two hops after z
    ‖W‖²   is cut in the first hop of a round (with S2 in the second, if there are more), and opened in the next
    Σe²    is cut in the weight hop, and opened in the first hop of the next round: if the errors were too large, the
           step that they made is used for one product and no more

A round of one hop opens the quotient of ‖W‖², too, in the next round. What is cut in a weight hop and opened in the
next round travels behind the weights: the state of a run is (M,1,P) at first, and (M,1,P + carried) after every round.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, cast, final

from torch import Tensor

from dresfl.errors import Diverged, UsageError
from dresfl.field import Arithmetic, Elements, Outline, Shapes

from .layers import Activation, Affine, Fixed, Place
from .network import Network, Parameters

# What real weights are taken to reach: |w| ≤ 2^2. Measured ones stay below 2^1.
WEIGHT_MAGNITUDE = 2.0

# Bits after the point to which the mean loss of a validation is rounded before it is opened.
LOSS_BITS = 14

# What the programs yield and are sent: of each item of a hop. Clear items come back as integers.
Sent = Sequence[Any]


@final
@dataclass(frozen=True, eq=False)
class Product(Generic[Elements]):
    """One item of a hop: what is opened, and what of it is expected.

    total: only the sum over the shards is opened. `once` is then added to that sum one time, not for every shard.
    shift: so many low bits are cut off; None: opened in the clear. magnitude: log2 of the largest |integer| expected.
    alike: all shards have the same value.
    """

    name: str
    elements: Elements  # (M,N,count)
    shift: int | None
    magnitude: float
    total: bool = False
    once: Elements | None = None  # (M,1,count)
    alike: bool = False


Hops = Generator[list[Product[Elements]], Sent, Elements]


@final
@dataclass(frozen=True)
class Step:
    """The step of one layer's weights, in integers that everybody knows.

    W ← (keep·W + recall·W_before − multiplier·gradient) / 2^shift, the gradient without its factor of 2.
    """

    shift: int
    multiplier: int
    keep: int
    recall: int


@final
@dataclass(frozen=True, eq=False)
class StepElements(Generic[Elements]):
    """A `Step` whose coefficients are elements (M,1,1): graphs are recorded once for rounds of different rates."""

    shift: int
    multiplier: Elements
    keep: Elements
    recall: Elements


@final
@dataclass(frozen=True)
class Guard:
    """A sum of squares that is cut by `shift` and opened in the clear: above `limit` the run has diverged."""

    name: str  # "norm", "error", or of a layer's output
    shift: int
    limit: int
    magnitude: float  # log2 of the largest sum that is expected
    factors: tuple[int, ...] = ()  # of each layer's share in the norm

    def check(self, opened: Sequence[int] | Tensor, summed: int = 1) -> None:
        """Diverged if an opened quotient, or a sum of so many, is above the limit."""
        largest = max(int(value) for value in opened)
        if largest > summed * self.limit:
            raise Diverged(
                f"the training diverges: {self.name} reaches {largest / (summed * self.limit):.1f} times its limit",
                "nothing more is opened in this run; begin again with a smaller learning rate",
            )


@final
@dataclass(frozen=True, eq=False)
class _Value(Generic[Elements]):
    """A value on its way through the network."""

    elements: Elements
    scale: int
    degree: int
    magnitude: float  # log2 of the largest real |value| expected

    @property
    def bits(self) -> float:
        return self.scale + self.magnitude


@final
@dataclass(frozen=True)
class Program:
    """The rounds of a network in the hidden mode.

    >>> from .network import mlp
    >>> network = mlp((784, 64, 64, 10), input_bits=4, weight_bits=18)
    >>> Program(network, max_degree=4, batch_size=64).num_hops, Program(network, max_degree=2, batch_size=64).num_hops
    (5, 10)
    """

    network: Network
    max_degree: int  # of the sharings that are opened: 4 or 2
    batch_size: int  # B
    num_shards: int = 1  # K
    value_bits: int = 10  # scale of z, and of x where it is cut
    error_bits: int = 14  # scale of e, u and δ where they are cut
    guards: tuple[Guard, ...] = ()

    def __post_init__(self) -> None:
        if self.max_degree not in (2, 4):
            raise UsageError(f"the hidden mode opens products of degree 2 or 4, not {self.max_degree}")

    # -- what follows from a walk without values ---------------------------------------------------------------

    @cached_property
    def _walked(self) -> "tuple[_Play[Outline], int]":
        """A training round without guards, played on shapes alone, and its number of hops."""
        steps = [Step(1, 1, 2, 0)] * len(self.network.parameters)
        play = _Play(Shapes(), self, (), 1)
        return play, len(walk(play.train(steps, *self._outlines(self.batch_size))))

    @property
    def gradient_scales(self) -> tuple[int, ...]:
        """The scale in bits of the integer gradient of each layer with weights."""
        return self._walked[0].gradient_scales

    @property
    def error_scale(self) -> int:
        """The scale in bits of the guards' Σe²."""
        return self._walked[0].error_scale

    @property
    def num_hops(self) -> int:
        """Hops of a training round."""
        return self._walked[1]

    @cached_property
    def carried(self) -> tuple[str, ...]:
        """The guards whose sums travel behind the weights from round to round."""
        names = ("error", "norm") if self.num_hops == 1 else ("error",)
        return tuple(name for name in names if any(guard.name == name for guard in self.guards))

    def _outlines(self, rows: int, carried: int = 0) -> tuple[Outline, Outline, Outline, Outline]:
        inputs, targets = (
            Outline((1, 1, rows, self.network.input_size)),
            Outline((1, 1, rows, self.network.num_classes)),
        )
        state = Outline((1, 1, self.network.num_parameters + carried))
        return inputs, targets, state, state

    def training_products(self, steps: Sequence[Step], *, first: bool) -> list[list[Product[Outline]]]:
        """The hops of a training round, for plans: products that have shapes alone. first: nothing is carried yet."""
        return walk(self.training(Shapes(), steps, *self._outlines(self.batch_size, 0 if first else len(self.carried))))

    def validation_products(self, rows: int) -> list[list[Product[Outline]]]:
        """The hops of a validation on so many coded rows, for plans."""
        inputs, targets, state, _ = self._outlines(rows)
        return walk(self.validation(Shapes(), inputs, targets, state))

    # -- programs ------------------------------------------------------------------------------------------------

    def training(
        self,
        field: Arithmetic[Elements],
        steps: Sequence[Step | StepElements[Elements]],
        inputs: Elements,
        targets: Elements,
        state: Elements,
        previous: Elements,
    ) -> Hops[Elements]:
        """One round: inputs (M,N,B,F), targets (M,N,B,C), state and the state before it (M,1 or N,P or more).

        Yields the products of each hop, is sent (M,N,count) for each, (M,1,count) for totals, integers for clear ones,
        and returns the new state.
        """
        play = _Play(field, self, self.guards, inputs.shape[1], self.carried, self.num_hops)
        return (yield from play.train(steps, inputs, targets, state, previous))

    def validation(
        self, field: Arithmetic[Elements], inputs: Elements, targets: Elements, state: Elements
    ) -> Generator[list[Product[Elements]], Sent, int]:
        """Σe² over rows inputs (M,N,B,F) and targets (M,N,B,C) of all shards, opened in the clear by the last hop.

        The sum is rounded first: each exact one would be an exact equation in the rows. Returns that integer;
        `loss_scale` is its scale.
        """
        play = _Play(field, self, (), inputs.shape[1])
        return (yield from play.validate(inputs, targets, state))

    def loss_scale(self, rows: int) -> int:
        """The scale in bits of the rounded Σe² of a validation on so many coded rows."""
        play = _Play(Shapes(), self, (), 1)
        inputs, targets, state, _ = self._outlines(rows)
        walk(play.validate(inputs, targets, state))
        return play.loss_scale


def walk(program: Generator[list[Product[Elements]], Sent, object]) -> list[list[Product[Elements]]]:
    """The hops of a program whose values do not matter: it is sent back what it yields, and zeros for clear items."""
    hops = [next(program)]
    while True:
        try:
            sent = [[0] if product.shift is None else product.elements for product in hops[-1]]
            hops.append(program.send(sent))
        except StopIteration:
            return hops


@final
class _Play(Generic[Elements]):
    """One playing of a program: it composes hops, and adds to them what the guards need."""

    def __init__(
        self,
        field: Arithmetic[Elements],
        program: Program,
        guards: Sequence[Guard],
        shards: int,
        carried: Sequence[str] = (),
        num_hops: int = 0,
    ) -> None:
        """shards: the size of the axis N. carried: the guards behind the weights. num_hops: of the whole round."""
        self._field, self._program, self._shards = field, program, shards
        self._guards = {guard.name: guard for guard in guards}
        self._carried = carried
        self._norm_hop = 1 if program.max_degree == 2 and num_hops > 2 else 0
        self._limit = program.max_degree
        self._weight_bits = program.network.weight_bits
        self._number = 0  # of the next hop
        self._norm: Elements | None = None  # (M,1 or N,1): Σ_i f_i·‖W_i‖²
        self._error: Elements | None = None  # (M,N,1): Σe²
        self._sizes: dict[str, Elements] = {}  # (M,N,1): Σz² that the next hop cuts
        self._quotients: dict[str, Elements] = {}  # (M,1 or N,1): that the next hop opens
        self._cut_once = True  # whether those were cut once for all shards, or for each one with a dither of its own
        self.loss_scale = self.error_scale = 0  # of what was played
        self.gradient_scales: tuple[int, ...] = ()

    # -- hops ----------------------------------------------------------------------------------------------------

    def _hop(self, *products: Product[Elements]) -> Generator[list[Product[Elements]], Sent, list[Elements]]:
        """One hop of a round, with what the guards add to it; returns what came of the products."""
        total, count = products[0].total, len(products)
        cuts = [self._sum(name, value, total) for name, value in self._due(total).items()]
        opened = [self._quotient(name, value, total) for name, value in self._quotients.items()]
        sent = yield [*products, *cuts, *opened]
        for name, product, value in zip(self._quotients, opened, sent[count + len(cuts) :], strict=True):
            summed = total and not product.alike
            self._guards[name].check(value, self._program.num_shards if summed else 1)
        self._quotients = {product.name: v for product, v in zip(cuts, sent[count : count + len(cuts)], strict=True)}
        self._sizes, self._number, self._cut_once = {}, self._number + 1, total
        return list(sent[:count])

    def _due(self, total: bool) -> dict[str, Elements]:
        """The sums that this hop cuts."""
        due = dict(self._sizes)
        if total and self._error is not None:
            due["error"] = self._error
        if self._number == self._norm_hop and self._norm is not None:
            due["norm"] = self._norm
        return {name: value for name, value in due.items() if name in self._guards}

    def _sum(self, name: str, value: Elements, total: bool) -> Product[Elements]:
        guard, alike = self._guards[name], name == "norm"
        if alike and total:
            nothing = self._field.scale(value, 0)[:, :1]
            return Product(name, nothing, guard.shift, guard.magnitude, total=True, once=value[:, :1])
        whole = self._everywhere(value) if alike else value
        return Product(name, whole, guard.shift, guard.magnitude, total, alike=alike)

    def _quotient(self, name: str, value: Elements, total: bool) -> Product[Elements]:
        alike = name in ("norm", "error") and self._cut_once
        magnitude = math.log2(self._guards[name].limit) + 1
        if alike and total:
            nothing = self._field.scale(value, 0)[:, :1]
            return Product(f"{name} quotient", nothing, None, magnitude, total, value[:, :1], alike)
        whole = self._everywhere(value) if name in ("norm", "error") else value
        return Product(f"{name} quotient", whole, None, magnitude, total, alike=alike)

    def _everywhere(self, value: Elements) -> Elements:
        """A value that is the same for every shard: (M,1 or N,count) -> (M,N,count)."""
        return value if value.shape[1] == self._shards else self._field.concat([value] * self._shards, 1)

    def _flat(self, elements: Elements) -> Elements:
        return elements.reshape(*elements.shape[:2], -1)

    def _to_cut(self, name: str, value: _Value[Elements], scale: int) -> tuple[Product[Elements], int]:
        """A value as an item that brings it to a scale, and the scale that it comes to."""
        shift = max(1, value.scale - scale)
        return Product(name, self._flat(value.elements), shift, value.bits), value.scale - shift

    def _cut(
        self, name: str, value: _Value[Elements], scale: int
    ) -> Generator[list[Product[Elements]], Sent, _Value[Elements]]:
        """Open a value under a mask and cut it to a scale: its degree is 1 again."""
        product, reached = self._to_cut(name, value, scale)
        (found,) = yield from self._hop(product)
        return _Value(found.reshape(*value.elements.shape), reached, 1, value.magnitude)

    # -- forward -------------------------------------------------------------------------------------------------

    def _matrix(self, p: Parameters, weights: Elements) -> Elements:
        """W (M,1 or N,in,out) of a layer."""
        return weights[:, :, p.weight].reshape(*weights.shape[:2], *p.fan)

    def _forward(
        self, inputs: Elements, weights: Elements
    ) -> Generator[list[Product[Elements]], Sent, tuple[_Value[Elements], list[_Value[Elements]]]]:
        """f(X), not cut; and what each layer's backward step needs of its input: columns, or the input itself."""
        network, field, bits = self._program.network, self._field, self._program.value_bits
        x = _Value(inputs, network.input_bits, 1, network.input_magnitude)
        kept: list[_Value[Elements]] = []
        parameters = list(network.parameters)
        for depth, (layer, place) in enumerate(zip(network.layers, network.places, strict=True)):
            if isinstance(layer, Affine):
                p = parameters.pop(0)
                if x.degree + 1 > self._limit:
                    x = yield from self._cut(f"{p.name} input", x, bits)
                columns = layer.columns(field, place, x.elements)
                kept.append(replace(x, elements=columns))
                bias = field.scale(weights[:, :, p.bias], 2**x.scale)  # (M,1 or N,out)
                z = field.matmul(columns, self._matrix(p, weights))  # (M,N,B·positions,in) @ (M,·,in,out)
                z = field.add(z, bias.reshape(*bias.shape[:2], 1, -1))
                z = z.reshape(*inputs.shape[:3], place.out_size)
                x = _Value(z, x.scale + self._weight_bits, x.degree + 1, place.out_magnitude)
                if parameters or any(isinstance(later, Activation) for later in network.layers[depth:]):
                    x = yield from self._cut(f"{p.name} output", x, bits)
                    self._sizes[f"{p.name} output size"] = self._sum_of_squares(x.elements)
            elif isinstance(layer, Fixed):
                if layer.degree * x.degree > self._limit:
                    x = yield from self._cut(f"input of {layer.kind}", x, bits)
                kept.append(x)
                here = replace(place, in_scale=x.scale)
                z = layer.forward(field, here, x.elements)
                x = _Value(z, layer.degree * x.scale, layer.degree * x.degree, place.out_magnitude)
        return x, kept

    def _errors(self, out: _Value[Elements], targets: Elements) -> _Value[Elements]:
        """e = f(X) − Y."""
        network = self._program.network
        raised = self._field.scale(targets, 2 ** (out.scale - network.target_bits))
        magnitude = math.log2(2.0**out.magnitude + 2.0**network.target_magnitude)
        return replace(out, elements=self._field.sub(out.elements, raised), magnitude=magnitude)

    def _sum_of_squares(self, elements: Elements) -> Elements:
        """(M,N,...) -> (M,N,1)."""
        flat = self._flat(elements)
        return self._field.sum(self._field.mul(flat, flat), 2).reshape(*flat.shape[:2], 1)

    # -- backward ------------------------------------------------------------------------------------------------

    def _back(self, layer: Affine, place: Place, delta: _Value[Elements], matrix: Elements) -> _Value[Elements]:
        """∂ℓ/∂x of a layer with weights: δ (M,N,B·positions,out) @ Wᵀ, not cut."""
        back = self._field.matmul(delta.elements, matrix.swapaxes(-1, -2))
        u = layer.uncolumns(self._field, place, back)
        magnitude = layer.in_delta_magnitude(delta.magnitude, place.in_magnitude)
        return _Value(u, delta.scale + self._weight_bits, delta.degree + 1, magnitude)

    def _through(
        self,
        layer: Affine,
        place: Place,
        p: Parameters,
        x: _Value[Elements],
        delta: _Value[Elements],
        weights: Elements,
    ) -> Generator[list[Product[Elements]], Sent, tuple[_Value[Elements], _Value[Elements] | None]]:
        """δ as it enters the gradient, and u = δ·Wᵀ cut, or None at the first layer with weights."""
        bits, lowest = self._program.error_bits, p.start == 0
        rows = delta.elements.reshape(*delta.elements.shape[:2], -1, p.fan[1])  # (M,N,B·positions,out)
        delta = replace(delta, elements=rows)
        matrix = self._matrix(p, weights)
        too_high = x.degree + delta.degree > self._limit
        if too_high and not lowest and delta.degree + 1 <= self._limit:
            u = self._back(layer, place, delta, matrix)
            own, own_scale = self._to_cut(f"{p.name} delta", delta, bits)
            below, below_scale = self._to_cut(f"{p.name} back", u, bits)
            found, found_below = yield from self._hop(own, below)
            delta = _Value(found.reshape(*rows.shape), own_scale, 1, delta.magnitude)
            return delta, _Value(found_below.reshape(*u.elements.shape), below_scale, 1, u.magnitude)
        if too_high or (not lowest and delta.degree + 1 > self._limit):
            delta = yield from self._cut(f"{p.name} delta", delta, bits)
        if lowest:
            return delta, None
        return delta, (yield from self._cut(f"{p.name} back", self._back(layer, place, delta, matrix), bits))

    def _gradients(
        self, error: _Value[Elements], kept: list[_Value[Elements]], weights: Elements
    ) -> Generator[list[Product[Elements]], Sent, list[_Value[Elements]]]:
        """Each layer's gradient (M,N,(in + 1)·out) of ‖e‖²/2, summed over the rows: matrix, then bias."""
        network, field = self._program.network, self._field
        parameters, delta = list(network.parameters), error
        gradients: list[_Value[Elements]] = []
        for layer, place, x in reversed(list(zip(network.layers, network.places, kept, strict=True))):
            if isinstance(layer, Affine):
                p = parameters.pop()
                delta, below = yield from self._through(layer, place, p, x, delta, weights)
                if not gradients:  # of the last layer with weights: δ = e, where no activation follows it
                    self._error, self.error_scale = self._sum_of_squares(delta.elements), 2 * delta.scale
                gradients.append(self._gradient(p, x, delta))
                if below is None:
                    break
                delta = below
            elif isinstance(layer, Fixed):
                degree = delta.degree + (layer.degree - 1) * x.degree
                if degree > self._limit:
                    delta = yield from self._cut(f"delta of {layer.kind}", delta, self._program.error_bits)
                    degree = delta.degree + (layer.degree - 1) * x.degree
                here = replace(place, in_scale=x.scale)
                back = layer.backward(field, here, x.elements, delta.elements)
                scale = delta.scale + (layer.degree - 1) * x.scale
                magnitude = layer.in_delta_magnitude(delta.magnitude, place.in_magnitude)
                delta = _Value(back, scale, degree, magnitude)
        return gradients[::-1]

    def _gradient(self, p: Parameters, x: _Value[Elements], delta: _Value[Elements]) -> _Value[Elements]:
        field = self._field
        bias = field.scale(field.sum(delta.elements, 2), 2**x.scale)  # (M,N,out)
        weight = field.matmul(x.elements.swapaxes(-1, -2), delta.elements)  # (M,N,in,BP) @ (M,N,BP,out)
        whole = field.concat([self._flat(weight), bias], 2)
        terms = self._program.num_shards * self._program.batch_size * p.layer.positions(p.place.in_shape)
        magnitude = max(0.0, x.magnitude) + delta.magnitude + math.log2(terms)
        return _Value(whole, x.scale + delta.scale, x.degree + delta.degree, magnitude)

    # -- whole rounds --------------------------------------------------------------------------------------------

    def train(
        self,
        steps: Sequence[Step | StepElements[Elements]],
        inputs: Elements,
        targets: Elements,
        state: Elements,
        previous: Elements,
    ) -> Hops[Elements]:
        """`Program.training`."""
        network, field = self._program.network, self._field
        size = network.num_parameters
        weights, previous = state[:, :, :size], previous[:, :, :size]
        for place, name in enumerate(self._carried if state.shape[2] > size else ()):
            self._quotients[name] = state[:, :, size + place : size + place + 1]
        if "norm" in self._guards:
            self._norm = self._weighted_norm(weights, self._guards["norm"].factors)
        out, kept = yield from self._forward(inputs, weights)
        gradients = yield from self._gradients(self._errors(out, targets), kept, weights)
        self.gradient_scales = tuple(gradient.scale for gradient in gradients)
        products = [
            self._step(p, step, gradient, weights[:, :1], previous[:, :1])
            for p, step, gradient in zip(network.parameters, steps, gradients, strict=True)
        ]
        moved_weights = yield from self._hop(*products)
        carried = [self._quotients[name] for name in self._carried]
        return field.concat([*moved_weights, *carried], 2)

    def _step(
        self,
        p: Parameters,
        step: Step | StepElements[Elements],
        gradient: _Value[Elements],
        weights: Elements,
        previous: Elements,
    ) -> Product[Elements]:
        """What moves the weights of a layer."""
        field, whole = self._field, slice(p.weight.start, p.bias.stop)
        now, before = weights[:, :, whole], previous[:, :, whole]
        multiplier = step.multiplier if isinstance(step, Step) else 1
        by_rows = gradient.bits + math.log2(max(1, multiplier))
        by_weights = WEIGHT_MAGNITUDE + self._weight_bits + step.shift
        name, magnitude = f"{p.name} step", math.log2(2.0**by_rows + 2.0**by_weights)
        if isinstance(step, Step):
            moved, linear = field.scale(gradient.elements, -step.multiplier), field.scale(now, step.keep)
            linear = field.add(linear, field.scale(before, step.recall)) if step.recall else linear
        else:
            moved = field.scale(field.mul(gradient.elements, step.multiplier), -1)
            linear = field.add(field.mul(now, step.keep), field.mul(before, step.recall))
        return Product(name, moved, step.shift, magnitude, total=True, once=linear)

    def _weighted_norm(self, weights: Elements, factors: Sequence[int]) -> Elements:
        """Σ_i f_i·‖W_i‖² (M,1 or N,1)."""
        field, total = self._field, None
        for p, factor in zip(self._program.network.parameters, factors, strict=True):
            part = field.scale(self._sum_of_squares(weights[:, :, p.weight.start : p.bias.stop]), factor)
            total = part if total is None else field.add(total, part)
        if total is None:
            raise ValueError("a network has weights")
        return total

    def validate(
        self, inputs: Elements, targets: Elements, state: Elements
    ) -> Generator[list[Product[Elements]], Sent, int]:
        """`Program.validation`."""
        network = self._program.network
        out, _ = yield from self._forward(inputs, state[:, :, : network.num_parameters])
        error = self._errors(out, targets)
        if 2 * error.degree > self._limit:
            error = yield from self._cut("validation error", error, self._program.error_bits)
        rows = self._program.num_shards * inputs.shape[2]
        magnitude = 2 * error.bits + math.log2(rows * network.num_classes)
        shift = max(1, 2 * error.scale - LOSS_BITS + math.floor(math.log2(rows)))
        self.loss_scale = 2 * error.scale - shift
        squares = self._sum_of_squares(error.elements)
        (found,) = yield from self._hop(Product("validation sum", squares, shift, magnitude, total=True))
        nothing = self._field.scale(squares, 0)
        rounded = Product("validation loss", nothing, None, magnitude - shift, total=True, once=found)
        (opened,) = yield from self._hop(rounded)
        return int(cast("Sequence[int]", opened)[0])
