"""One client's gradient on a GPU as a captured graph: its many small operations are launched by one call.

A graph cannot look at values, so it is recorded for weights below a fixed bound. It finds the largest weight on the
device; the caller looks at that, and weights beyond the bound take the uncaptured path.
"""

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import cast, final

import torch
from torch import Tensor

from dresfl.field import Arithmetic, Elements, ResidueSystem
from dresfl.kernels import fused_kernels
from dresfl.kernels.graphs import capture_graph

_WEIGHT_BOUND = 2**20
_MOST_BYTES = 2**28  # of the gradient: above this launches take no share of the time, and the graph would hold memory

Gradient = Callable[[ResidueSystem, Tensor, Tensor, Tensor], Tensor]
Shape = tuple[int, ...]


@final
class _Captured:
    """A gradient for tensors of one shape, and the tensors that its graph reads and writes."""

    def __init__(
        self, gradient: Gradient, field: ResidueSystem, parameters: int, inputs: Shape, targets: Shape
    ) -> None:
        self._field = field.with_public_bound(_WEIGHT_BOUND)
        self._gradient = gradient
        self._weights = torch.zeros(parameters, dtype=torch.int64, device=field.device)
        self._inputs, self._targets = (
            torch.zeros(shape, dtype=field.dtype, device=field.device) for shape in (inputs, targets)
        )
        self._lock = threading.Lock()  # a graph has one set of tensors
        self._graph = capture_graph(self._run, warm_ups=2, before_each=lambda: None)

    def _run(self) -> None:
        self._result = self._gradient(self._field, self._weights, self._inputs, self._targets)
        self._reach = self._weights.abs().max()

    def __call__(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """The gradient; None if a weight reaches the bound."""
        with self._lock:
            self._weights.copy_(weights)
            self._inputs.copy_(inputs)
            self._targets.copy_(targets)
            self._graph.replay()
            result = self._result.clone()
            return result if int(self._reach) < _WEIGHT_BOUND else None


@lru_cache(maxsize=4)
def _captured(gradient: Gradient, field: ResidueSystem, parameters: int, inputs: Shape, targets: Shape) -> _Captured:
    return _Captured(gradient, field, parameters, inputs, targets)


def captured_gradient(
    gradient: Callable[..., Elements],
    field: Arithmetic[Elements],
    weights: Tensor,
    inputs: Elements,
    targets: Elements,
) -> Elements | None:
    """gradient(field, weights, inputs, targets) of one client as a graph, recorded at the first call.

    None where there is no GPU for it, or the tensors are those of several clients or too large.
    """
    if not isinstance(field, ResidueSystem) or not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        return None
    if not inputs.is_cuda or not fused_kernels(str(field.device)) or inputs.shape[1] != 1:
        return None
    size = len(field.moduli) * weights.numel() * inputs.element_size()
    if size > _MOST_BYTES or torch.cuda.is_current_stream_capturing():
        return None
    shapes = tuple(inputs.shape), tuple(targets.shape)
    found = _captured(cast("Gradient", gradient), field, weights.numel(), *shapes)(weights, inputs, targets)
    return cast("Elements | None", found)  # the field's elements are tensors, and so are these
