"""A trained model for other programs: ONNX, torch, safetensors. None of these files needs dresfl."""

import io
import json
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from dresfl.errors import UsageError
from dresfl.files import write_atomic
from dresfl.storage.tensors import save_tensors

from .model import Model
from .onnx_graph import onnx_bytes
from .real_network import RealModule, RealNetwork

Format = Literal["onnx", "torch", "safetensors"]
Precision = Literal["float64", "float32"]
ENDINGS: dict[str, str] = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}


def export_model(model: Model, path: str | Path, format: Format = "onnx", precision: Precision = "float64") -> None:
    """Write a model as a file that other programs read. Features go in as they are, outputs come out.

    "onnx": a graph that clips, scales, rounds and predicts; needs the extra `onnx`. "torch": the same as an exported
    program, for `torch.export.load`. "safetensors": the weights, and what comes before them, as plain tensors.
    precision: of the layers. Scaling and rounding are in float64 always.

    >>> import dresfl as dr, tempfile
    >>> network = dr.mlp((3, 2), input_bits=4, weight_bits=10)
    >>> model = dr.simulate(network, [([[1.0, 0.0, 0.5]], [1])] * 3, rounds=2).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dr.export_model(model, folder + "/model.onnx")
    ...     Path(folder, "model.onnx").stat().st_size > 100
    True
    """
    if format not in get_args(Format):
        raise UsageError(f"the format {format!r} is not known", f"use one of {', '.join(get_args(Format))}")
    if precision not in get_args(Precision):
        raise UsageError(f"the precision {precision!r} is not known", f"use one of {', '.join(get_args(Precision))}")
    real = model.to_real()
    if format == "onnx":
        dtype = np.float64 if precision == "float64" else np.float32
        write_atomic(Path(path), onnx_bytes(real, dtype, {"dresfl": json.dumps(describe(model), sort_keys=True)}))
    elif format == "torch":
        if precision != "float64":
            raise UsageError("a torch file is in float64", "leave out --precision, or use onnx")
        write_atomic(Path(path), _exported_program(real))
    else:
        _write_tensors(Path(path), model, real, torch.float64 if precision == "float64" else torch.float32)


def describe(model: Model) -> dict[str, Any]:
    """What a reader of an exported file needs to know of it, as plain values."""
    return {
        "task": model.task,
        "classes": list(model.classes),
        "feature_names": list(model.feature_names),
        "units": list(model.units),
        "weights_sha256": model.weights_sha256,
    }


def _exported_program(real: RealNetwork) -> bytes:
    module = RealModule(real).eval()
    features = torch.zeros(2, *real.network.input_shape, dtype=torch.float64)
    with torch.no_grad():
        module(features)  # tables of indices are made here, and not while the program is traced
        rows = torch.export.Dim("rows", min=1)
        program = torch.export.export(module, (features,), dynamic_shapes=({0: rows},))
    kept = io.BytesIO()
    torch.export.save(program, kept)
    return kept.getvalue()


def _write_tensors(path: Path, model: Model, real: RealNetwork, dtype: torch.dtype) -> None:
    prepared, network = real.preparation, real.network
    tensors = {name: tensor.to(dtype) for name, tensor in real.tensors.items()}
    tensors |= {
        f"features.{name}": torch.from_numpy(getattr(prepared, name)) for name in ("low", "high", "offset", "factor")
    }
    about = {
        **describe(model),
        "layers": [layer.to_dict() for layer in network.layers],
        "input_shape": list(network.input_shape),
        "input_bits": prepared.input_bits,
        "shift": prepared.shift,
        "target_offset": real.target_offset,
        "target_factor": real.target_factor,
    }
    save_tensors(path, tensors, {"dresfl export": about})
