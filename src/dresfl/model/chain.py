"""Networks that one compiled call computes: dense layers, squares and quadratics, one after the other."""

from functools import lru_cache
from typing import cast

from torch import Tensor

from dresfl.field import Arithmetic, ChainStep, Coded, Elements, ResidueField

from .layers import Dense, Flatten, Layer, Place, Quadratic, Square


@lru_cache(maxsize=64)
def chain_steps(layers: tuple[Layer, ...], places: tuple[Place, ...]) -> tuple[ChainStep, ...] | None:
    """The layers as steps of a chain; None if one of them is of another kind."""
    steps: list[ChainStep] = []
    start = 0
    for layer, place in zip(layers, places, strict=True):
        if isinstance(layer, Dense):
            (inputs,), (outputs,) = place.in_shape, place.out_shape
            steps.append(ChainStep(True, inputs, outputs, start, 2**place.in_scale))
            start += (inputs + 1) * outputs
        elif isinstance(layer, Square | Quadratic):
            linear = 2**place.in_scale if isinstance(layer, Quadratic) else 0
            steps.append(ChainStep(False, place.out_size, place.out_size, 0, linear))
        elif not isinstance(layer, Flatten):
            return None
    return tuple(steps)


def chain_gradient(
    field: Arithmetic[Elements],
    steps: tuple[ChainStep, ...] | None,
    target_shift: int,
    weights: Tensor,
    inputs: Elements,
    targets: Elements,
) -> Elements | None:
    """`Network.gradient` in one call; None if the layers, the field or the machine have none."""
    if steps is None or not isinstance(field, ResidueField):
        return None
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        return None
    found = field.chain_gradient(steps, 2**target_shift, weights, Coded(inputs, targets))
    return cast("Elements | None", found)  # the field's elements are tensors, and so are these
