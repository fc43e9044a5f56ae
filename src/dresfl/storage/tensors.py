"""Tensors and a JSON description as one safetensors file."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dresfl.errors import CheckpointError
from dresfl.files import write_atomic

# what reading altered bytes may end in, within json, safetensors and torch
_FOREIGN = (AttributeError, TypeError, KeyError, IndexError, RuntimeError, OverflowError, MemoryError)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, object]) -> None:
    """Write tensors and their description, atomically."""
    write_atomic(path, encode_tensors(tensors, meta))


def encode_tensors(tensors: Mapping[str, Tensor], meta: Mapping[str, object]) -> bytes:
    """The bytes of a safetensors file with a description, whose values become JSON."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    described = {name: json.dumps(value, sort_keys=True) for name, value in meta.items()}
    data: bytes = save(contiguous, metadata=described)
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
