"""Tensors and a JSON description as one safetensors file."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from dresfl.errors import CheckpointError
from dresfl.files import write_atomic

_DTYPES = {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.float64: "F64", torch.float32: "F32"}
# what reading altered bytes may end in, within json, safetensors and torch
_FOREIGN = (AttributeError, TypeError, KeyError, IndexError, RuntimeError, OverflowError, MemoryError)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, object]) -> None:
    """Write tensors and their description, atomically."""
    write_atomic(path, *encode_tensors(tensors, meta))


def encode_tensors(tensors: Mapping[str, Tensor], meta: Mapping[str, object]) -> list[bytes | memoryview]:
    """The parts of a safetensors file with a description, whose values become JSON. Tensors are not copied."""
    described = {name: json.dumps(meta[name], sort_keys=True) for name in sorted(meta)}
    header: dict[str, object] = {"__metadata__": described}
    parts: list[bytes | memoryview] = []
    end = 0
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        parts.append(octets(tensor))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *parts]


def octets(tensor: Tensor) -> memoryview:
    """A contiguous tensor's bytes in memory, which are little-endian on all machines that this runs on."""
    data: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return data


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    """What `save_tensors` wrote."""
    try:
        return decode_tensors(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}", "delete the run's folder to start over") from error


def decode_tensors(data: bytes) -> tuple[dict[str, Tensor], dict[str, object]]:
    """The tensors of a safetensors file, and its description, whose values are JSON; ValueError if it is damaged."""
    try:
        header = int.from_bytes(data[:8], "little")
        described = json.loads(data[8 : 8 + header]).get("__metadata__", {})
        return load(data), {name: json.loads(value) for name, value in described.items()}
    except (SafetensorError, *_FOREIGN) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
