"""A trained network as an ONNX graph: the layers' own steps, run on names of nodes instead of numbers.

The graph takes `features` (rows, …) in their own units and gives

    classes      `outputs` (rows,C), one for each class, and `labels` (rows,), the class of each row as its place
    regression   `predictions` (rows,C), in the target's unit

Clipping, scaling and rounding are in float64, whatever the rest is in. A graph refuses nothing: features that a schema
refuses, such as missing ones, must be settled before.
"""

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import Arithmetic
from dresfl.field.arithmetic import PublicMatrix

from .real_network import RealNetwork, real_outputs

_OPSET, _IR_VERSION = 17, 8  # of 2022: every runtime in use reads them
_ROWS = -1  # a number of rows that is not known


@final
class _Graph:
    """Nodes and constants, in the order in which they were asked for."""

    def __init__(self, dtype: type[np.floating[Any]]) -> None:
        try:
            self.onnx = importlib.import_module("onnx")
        except ImportError as error:
            raise UsageError("onnx is not installed", "pip install 'dresfl[onnx]'") from error
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def emit(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node; the name of its result."""
        name = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, values: Any, dtype: Any = None) -> str:
        """Add a constant, of the graph's own type if none is given."""
        name = f"constant_{len(self.constants)}"
        array = np.asarray(values, dtype or self.dtype)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def cast(self, name: str, dtype: Any) -> str:
        return self.emit("Cast", [name], to=self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@final
@dataclass(frozen=True)
class _Values:
    """What a node gives. The network sees (1,1,B,…); the graph's tensors have no first two axes."""

    graph: _Graph
    name: str
    shape: tuple[int, ...]

    def reshape(self, *shape: int) -> "_Values":
        if shape == self.shape:
            return self
        wanted = self.graph.constant(shape[2:], np.int64)
        return _Values(self.graph, self.graph.emit("Reshape", [self.name, wanted]), shape)

    def swapaxes(self, axis0: int, axis1: int, /) -> "_Values":
        raise UsageError("a layer exchanges axes, which has no ONNX form here")

    def __getitem__(self, index: Any, /) -> "_Values":
        raise UsageError("a layer cuts its values, which has no ONNX form here")


@final
@dataclass(frozen=True)
class _Nodes(Arithmetic[_Values]):
    """Operations that add nodes to a graph."""

    graph: _Graph

    def embed(self, integers: Tensor) -> _Values:
        values = integers.detach().numpy()
        shape = (1, *values.shape)
        return _Values(self.graph, self.graph.constant(values.reshape(shape[2:])), shape)

    def public(self, integers: Tensor) -> PublicMatrix[_Values]:
        matrix = integers.detach().numpy()
        return PublicMatrix(_Values(self.graph, self.graph.constant(matrix), matrix.shape))

    def matmul_public(self, left: _Values, right: PublicMatrix[_Values]) -> _Values:
        return self._node("MatMul", left, right.values, shape=(*left.shape[:-1], right.values.shape[-1]))

    def matmul(self, left: _Values, right: _Values) -> _Values:
        return self._node("MatMul", left, right, shape=(*left.shape[:-1], right.shape[-1]))

    def add(self, left: _Values, right: _Values) -> _Values:
        return self._node("Add", left, right, shape=_together(left, right))

    def sub(self, left: _Values, right: _Values) -> _Values:
        return self._node("Sub", left, right, shape=_together(left, right))

    def mul(self, left: _Values, right: _Values) -> _Values:
        return self._node("Mul", left, right, shape=_together(left, right))

    def scale(self, elements: _Values, factor: int) -> _Values:
        return self.mul(elements, _Values(self.graph, self.graph.constant(float(factor)), (1,) * len(elements.shape)))

    def add_integer(self, elements: _Values, integer: int) -> _Values:
        return self.add(elements, _Values(self.graph, self.graph.constant(float(integer)), (1,) * len(elements.shape)))

    def concat(self, parts: Sequence[_Values], axis: int) -> _Values:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        name = self.graph.emit("Concat", [part.name for part in parts], axis=_axis(axis))
        return _Values(self.graph, name, tuple(shape))

    def sum(self, elements: _Values, axis: int) -> _Values:
        shape = list(elements.shape)
        del shape[axis]
        axes = self.graph.constant([_axis(axis)], np.int64)
        return _Values(self.graph, self.graph.emit("ReduceSum", [elements.name, axes], keepdims=0), tuple(shape))

    def take(self, elements: _Values, index: Tensor) -> _Values:
        name, last, size = elements.name, len(elements.shape) - 3, elements.shape[-1]
        places = index.numpy()
        if (places < 0).any():  # those are 0: one more value, at the end
            pads = self.graph.constant([0] * (2 * last + 1) + [1], np.int64)
            name = self.graph.emit("Pad", [name, pads, self.graph.constant(0.0)])
            places = np.where(places < 0, size, places)
        gathered = self.graph.emit("Gather", [name, self.graph.constant(places, np.int64)], axis=last)
        return _Values(self.graph, gathered, (*elements.shape[:-1], *places.shape))

    def _node(self, kind: str, *inputs: _Values, shape: tuple[int, ...]) -> _Values:
        return _Values(self.graph, self.graph.emit(kind, [one.name for one in inputs]), shape)


def _axis(axis: int) -> int:
    """An axis of what the network sees, among the axes of the graph's tensor."""
    return axis if axis < 0 else axis - 2


def _together(left: _Values, right: _Values) -> tuple[int, ...]:
    return tuple(b if a == 1 else a for a, b in zip(left.shape, right.shape, strict=True))


def onnx_bytes(real: RealNetwork, dtype: type[np.floating[Any]], about: dict[str, str]) -> bytes:
    """The ONNX file of a network. dtype: of the layers and of the features. about: goes into its metadata."""
    graph = _Graph(dtype)
    onnx, helper, network = graph.onnx, graph.onnx.helper, real.network
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = _prepared(graph, real)
    outputs = real_outputs(_Nodes(graph), network, real.tensors, _Values(graph, x, (1, 1, _ROWS, network.input_size)))
    width = network.num_classes
    if real.is_regression:
        name = graph.emit("Mul", [outputs.name, graph.constant(real.target_factor)])
        graph.emit("Add", [name, graph.constant(real.target_offset)], "predictions")
        results = [helper.make_tensor_value_info("predictions", number, ["rows", width])]
    else:
        graph.emit("Identity", [outputs.name], "outputs")
        _add_labels(graph, width)
        results = [
            helper.make_tensor_value_info("outputs", number, ["rows", width]),
            helper.make_tensor_value_info("labels", onnx.TensorProto.INT64, ["rows"]),
        ]
    given = helper.make_tensor_value_info("features", number, ["rows", *network.input_shape])
    model = helper.make_model(
        helper.make_graph(graph.nodes, "dresfl", [given], results, graph.constants),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="dresfl",
    )
    helper.set_model_props(model, about)
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def _prepared(graph: _Graph, real: RealNetwork) -> str:
    """Clip, scale and round, in float64; then the graph's own type."""
    prepared, double = real.preparation, np.float64
    x = "features"
    if len(real.network.input_shape) > 1:
        x = graph.emit("Flatten", [x], axis=1)
    if graph.dtype != double:
        x = graph.cast(x, double)
    if prepared.clips:
        x = graph.emit("Max", [x, graph.constant(prepared.low, double)])
        x = graph.emit("Min", [x, graph.constant(prepared.high, double)])
    if prepared.scales:
        x = graph.emit("Sub", [x, graph.constant(prepared.offset, double)])
        x = graph.emit("Mul", [x, graph.constant(prepared.factor, double)])
    if prepared.scales or graph.dtype == double:
        x = graph.cast(graph.cast(x, np.float32), double)  # as a client keeps its inputs
    if prepared.shift:
        x = graph.emit("Add", [x, graph.constant(prepared.shift, double)])
    step = math.ldexp(1.0, prepared.input_bits)
    x = graph.emit("Round", [graph.emit("Mul", [x, graph.constant(step, double)])])
    x = graph.emit("Mul", [x, graph.constant(1 / step, double)])
    return x if graph.dtype == double else graph.cast(x, graph.dtype)


def _add_labels(graph: _Graph, width: int) -> None:
    """The place of the largest output; of a single output, whether it is positive."""
    if width > 1:
        graph.emit("ArgMax", ["outputs"], "labels", axis=1, keepdims=0)
        return
    positive = graph.emit("Greater", ["outputs", graph.constant(0.0)])
    flat = graph.emit("Reshape", [positive, graph.constant([-1], np.int64)])
    graph.emit("Cast", [flat], "labels", to=graph.onnx.TensorProto.INT64)
