"""The model file: one format, one writer, one reader. It holds all that a prediction needs, and nothing else.

It is a safetensors file. Its tensors are the real weights, exact in float64: `layers.I.weight` (inputs, outputs) and
`layers.I.bias`. Its metadata has one key, `dresfl`, whose value is canonical JSON:

    format          "dresfl model 3", or of a regression "dresfl model 4"
    layers          the layers in order, each with its kind
    input_shape, input_bits, weight_bits, shift, input_bound
    target_bits, target_bound       of a regression alone
    classes         the names of the classes; empty if nobody gave any
    weights_sha256  of the integer weights, checked on reading
    sha256          of this JSON without the key sha256, checked on reading

The bytes follow from these values alone, so the coordinator and every client of a run hold the same file.
"""

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from dresfl.errors import DresError, ModelError
from dresfl.files import write_atomic
from dresfl.model import Network, layer_from_dict, weights_sha256

from .tensors import decode_tensors

FORMAT = "dresfl model 3"
REGRESSION = "dresfl model 4"  # the same with target_bits and target_bound: older versions would predict classes
_FORMAT_OF_0_2 = "dresfl model 2"  # the same without `sha256`
_FORMAT_OF_0_1 = "dresfl model 1"
_WEIGHT_LIMIT = 2.0**31


@final
@dataclass(frozen=True, eq=False)
class StoredModel:
    """What a model file holds: a network, its integer weights (P,), and how real inputs become integers."""

    network: Network
    weights: Tensor = field(repr=False)
    shift: float = 0.0
    input_bound: float = 1.0  # no |input|, shift included, is larger
    classes: tuple[str, ...] = ()


def write_model(path: Path, model: StoredModel, *, private: bool = False) -> None:
    """Write a model file, atomically. private: with mode 0600."""
    write_atomic(path, encode_model(model), private=private)


def read_model(path: Path) -> StoredModel:
    """Read a model file, also one of 0.2 or 0.1. ModelError names the file that is damaged or of another format."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}", "check the path and its permissions") from error
    return decode_model(data, str(path))


def encode_model(model: StoredModel) -> bytes:
    """The bytes of a model file."""
    network = model.network
    described: dict[str, Any] = {
        "format": REGRESSION if network.task == "regression" else FORMAT,
        "layers": [layer.to_dict() for layer in network.layers],
        "input_shape": list(network.input_shape),
        "input_bits": network.input_bits,
        "weight_bits": network.weight_bits,
        "shift": float(model.shift),
        "input_bound": float(model.input_bound),
        "classes": list(model.classes),
        "weights_sha256": weights_sha256(model.weights),
    }
    if network.task == "regression":
        described |= {"target_bits": network.target_bits, "target_bound": 2.0**network.target_magnitude}
    described["sha256"] = _digest(described)
    header: dict[str, Any] = {"__metadata__": {"dresfl": _canonical(described)}}
    values, end = [], 0
    for name, tensor in network.tensors(model.weights).items():
        start, end = end, end + 8 * tensor.numel()
        header[name] = {"dtype": "F64", "shape": list(tensor.shape), "data_offsets": [start, end]}
        values.append(tensor.numpy().astype("<f8").tobytes())
    # written here and not by the safetensors library, whose order of keys may differ between runs and versions
    text = _canonical(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *values])


def decode_model(data: bytes, source: str) -> StoredModel:
    """The model of a file's bytes; `source` names the file in errors."""
    try:
        tensors, meta = decode_tensors(data)
    except ValueError as error:
        raise ModelError(f"{source} is damaged or is no model: {error}", "get an unaltered copy") from error
    described = meta.get("dresfl", meta)
    found = described.get("format") if isinstance(described, Mapping) else None
    if not isinstance(described, Mapping) or found not in (REGRESSION, FORMAT, _FORMAT_OF_0_2, _FORMAT_OF_0_1):
        raise ModelError(
            f"{source} has the format {found!r}, but {FORMAT!r} or an older one was wanted",
            "is it a checkpoint, another library's file, or one of a newer dresfl?",
        )
    try:
        if (found in (FORMAT, REGRESSION) or "sha256" in described) and described.get("sha256") != _digest(described):
            raise ValueError("its description does not have its sha256")
        values = _upgraded(described) if found == _FORMAT_OF_0_1 else described
        model = _model(values, tensors)
        if weights_sha256(model.weights) != values["weights_sha256"]:
            raise ValueError("its weights do not have their weights_sha256")
    except (DresError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ModelError(f"{source} is damaged: {reason}", "get an unaltered copy") from error
    return model


def _upgraded(old: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a file of 0.1, which had three schemas: of `train`, of a coordinator, and of a client."""
    # `train` wrote its configuration, without a bound of the inputs; no prediction depends on that
    values = old["agreement"] if "agreement" in old else tomllib.loads(old["config"])["model"]
    return {"input_bound": 1.0, "classes": [], **old, **values}


def _model(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> StoredModel:
    shape, bits, bound = values["input_shape"], values["input_bits"], float(values["input_bound"])
    shift, classes = float(values["shift"]), tuple(values["classes"])
    if not all(type(n) is int and n > 0 for n in shape) or not shape or type(bits) is not int or not 0 <= bits <= 16:
        raise ValueError(f"input_shape = {shape} and input_bits = {bits} are no shape and bits")
    if not (math.isfinite(shift) and 0 < bound < math.inf):
        raise ValueError(f"shift = {shift} and input_bound = {bound} are out of range")
    target_bits, reach = 0, 1.0
    if values["format"] == REGRESSION:
        target_bits, reach = values["target_bits"], float(values["target_bound"])
        if type(target_bits) is not int or target_bits < 1 or not 0 < reach < math.inf:
            raise ValueError(f"target_bits = {target_bits} and target_bound = {reach} are out of range")
    layers = tuple(layer_from_dict(layer) for layer in values["layers"])
    network = Network(
        layers,
        tuple(shape),
        bits,
        values["weight_bits"],
        max(0.0, math.log2(bound)),
        target_bits=target_bits,
        target_magnitude=math.log2(reach),
    )
    if not all(isinstance(name, str) for name in classes) or len(classes) not in (0, network.num_labels):
        raise ValueError(f"{len(classes)} classes are named, but the network has {network.num_labels}")
    wanted = {f"{p.name}.weight": p.fan for p in network.parameters} | {
        f"{p.name}.bias": p.fan[1:] for p in network.parameters
    }
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != wanted or any(tensor.dtype != torch.float64 for tensor in tensors.values()):
        raise ValueError(f"it has weights {found} where its layers have {wanted}, in float64")
    ordered = [tensors[f"{p.name}.{part}"].flatten() for p in network.parameters for part in ("weight", "bias")]
    integers = torch.cat(ordered) * network.weight_scales
    if not bool(((integers == integers.round()) & (integers.abs() < _WEIGHT_LIMIT)).all()):
        raise ValueError("a weight is not a multiple of its step, or is out of range")
    return StoredModel(network, integers.to(torch.int64), shift, bound, classes)


def _digest(described: Mapping[str, Any]) -> str:
    """SHA-256 of a description, without the digest itself."""
    rest = {key: value for key, value in described.items() if key != "sha256"}
    return hashlib.sha256(_canonical(rest).encode()).hexdigest()


def _canonical(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"))
