"""Files that are whole or absent: written beside their place, flushed to the disk, then renamed into it."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dresfl.errors import CheckpointError, DresError


def write_atomic(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace `path` by `data` so that a crash at any moment leaves the old file or the new one, never a part.

    A private file has mode 0600 from the start.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb", opener=_private if private else None) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise DresError(f"cannot write {path}: {error.strerror}", "free some space or choose another --out") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, object]) -> None:
    """Write tensors and a JSON description as one safetensors file, atomically."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    described = {name: json.dumps(value, sort_keys=True) for name, value in meta.items()}
    write_atomic(path, save(contiguous, metadata=described))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    """What `save_tensors` wrote."""
    try:
        data = path.read_bytes()
        header = int.from_bytes(data[:8], "little")
        described = json.loads(data[8 : 8 + header]).get("__metadata__", {})
        return load(data), {name: json.loads(value) for name, value in described.items()}
    except (OSError, SafetensorError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {error}", "delete the run's folder to start over") from error
