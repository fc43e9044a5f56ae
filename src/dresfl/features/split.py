"""From a data set's images to the rows that clients share: extraction, once, then transforms."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dresfl.data import DataSet, Origin, Split, map_rows
from dresfl.errors import DataError
from dresfl.files import write_atomic

from .cache import Rows, only_one, read_rows, write_rows
from .extractor import Extractor, load_extractor
from .settings import Features
from .transforms import transformed

# Images at a time: enough to fill a large GPU, little enough for a CPU's memory. Halved where it does not fit.
_AT_A_TIME = {"cuda": 256, "cpu": 32}


def extract_features(
    split: Split, settings: Features, folder: Path | None, device: str, shared: Path | None = None
) -> Split:
    """The split with its images replaced by features, float32 (B,F); run by whoever holds images.

    Without an extractor the transforms keep the inputs' shape: images stay images.

    Extracted features are kept in the folder that the environment variable DRESFL_CACHE names, or in `features`
    below the data folder; without either they are extracted every time. shared: a folder for the transformed rows of an
    extractor. They are then mapped from there, so that processes that give the same folder have one copy in memory.
    """
    if settings.plain:
        return split
    extractor = load_extractor(settings, folder, device) if settings.extractor else None
    parts: list[DataSet] = []
    for part, data in (("train", split.train), ("test", split.test)):
        if extractor is None:
            inputs = _all_transformed(data.inputs.reshape(data.num_rows, -1), settings).reshape(data.inputs.shape)
        else:
            rows = _features(extractor, data, part, cache_folder(folder))
            if shared is None:
                inputs = _all_transformed(rows, settings)
            else:
                inputs = _shared_rows(rows, settings, shared / f"{data.name}-{part}-{_digest(extractor, settings)}.npy")
        parts.append(dataclasses.replace(data, inputs=inputs, transformed=True))
    weights = extractor.weights_sha256 if extractor is not None else None
    return Split(train=parts[0], test=parts[1], made_from=Origin(split.origin.data, weights))


def extracted(extractor: Extractor, images: npt.NDArray[np.float32]) -> Iterator[Rows]:
    """The features of images (B,H,W,C) as float16, block by block. A GPU computes the next block meanwhile.

    All blocks have one size, the last one filled up, so that cuDNN looks for its fastest algorithms once.
    """
    size = min(_AT_A_TIME[extractor.device], len(images))
    started = done = 0
    running: list[_Running] = []
    while done < len(images):
        if started < len(images) and len(running) < 2:
            part = images[started : started + size]
            try:
                running.append(_start(extractor, part, size))
                started += len(part)
                continue
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
            size = (size + 1) // 2
            torch.cuda.empty_cache()  # out here: inside, the error still holds what was computed
            continue
        block = running.pop(0)
        if block.finished is not None:
            block.finished.synchronize()
        if not bool(block.finite):
            raise DataError(
                f"{extractor.name} makes NaN, or values beyond float16's 65504, of images {done} and on",
                "let the module scale its output down",
            )
        yield block.rows.numpy()
        done += len(block.rows)
    if extractor.device == "cuda":
        torch.cuda.empty_cache()  # other processes may want what the activations took


@final
@dataclass(frozen=True, eq=False)
class _Running:
    """A block under way: its features, float16 on the host, and whether all are finite; valid once it has finished."""

    rows: Tensor
    finite: Tensor
    finished: torch.cuda.Event | None = None


@torch.inference_mode()
def _start(extractor: Extractor, part: npt.NDArray[np.float32], size: int) -> _Running:
    """Begin a block; on a GPU nothing here waits for it."""
    images = torch.from_numpy(part)
    if extractor.device == "cpu":
        rows = extractor(images).to(torch.float16)
        return _Running(rows, torch.isfinite(rows).all())
    images = images.pin_memory().to(extractor.device, non_blocking=True)
    missing = images.new_zeros(size - len(images), *images.shape[1:])
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        rows = extractor(torch.cat((images, missing)))[: len(images)].to(torch.float16)
    finally:
        torch.backends.cudnn.benchmark = before
    finished = torch.cuda.Event()  # type: ignore[no-untyped-call]
    block = _Running(_to_host(rows), _to_host(torch.isfinite(rows).all()), finished)
    finished.record()
    return block


def _to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory, complete when what is queued on the GPU is."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _features(extractor: Extractor, data: DataSet, part: str, cache: Path | None) -> Rows:
    """The features of one part of a data set: from the cache, or extracted into it."""
    if data.inputs.ndim != 4 or data.input_shape[2] not in (1, 3):
        raise DataError(f"{data.name}: {extractor.name} wants images of 1 or 3 channels, not {data.input_shape}")
    if cache is None:
        return np.concatenate(list(extracted(extractor, data.inputs)))
    images = data.sha256["inputs"]
    digest = hashlib.sha256(f"{extractor.digest} {images} {data.input_shape}".encode()).hexdigest()
    path = cache / f"{data.name}-{part}-{digest[:24]}.npy"
    if not path.exists():
        with only_one(path):
            if not path.exists():
                description = {
                    "data": data.name,
                    "part": part,
                    "images_sha256": images,
                    "extractor": extractor.name,
                    "extractor_sha256": extractor.digest,
                    "image_size": extractor.image_size,
                    "mirror": extractor.mirror,
                    "device": extractor.device,
                    "torch": torch.__version__,
                }
                write_atomic(path.with_suffix(".json"), (json.dumps(description, indent=2) + "\n").encode())
                write_rows(path, data.num_rows, extracted(extractor, data.inputs))
    return read_rows(path, data.num_rows)


def cache_folder(folder: Path | None) -> Path | None:
    """Where extracted features are kept, for a data folder: see `extract_features`."""
    named = os.environ.get("DRESFL_CACHE")
    return Path(named) if named else folder / "features" if folder is not None else None


def _digest(extractor: Extractor, settings: Features) -> str:
    """Of everything that decides the transformed rows of given images."""
    return hashlib.sha256(f"{extractor.digest} {settings}".encode()).hexdigest()[:24]


def _shared_rows(rows: Rows, settings: Features, path: Path) -> npt.NDArray[np.float32]:
    """The transformed rows in a file, made by the first process that asks; mapped, and changes stay this process's."""
    if not path.exists():
        with only_one(path):
            if not path.exists():
                unfinished = path.with_suffix(".part")
                out = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.float32, shape=rows.shape)
                _all_transformed(rows, settings, out)
                out.flush()
                os.replace(unfinished, path)
    return np.lib.format.open_memmap(path, mode="c")


def _all_transformed(
    rows: npt.NDArray[np.floating], settings: Features, out: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """`transformed` piece by piece, into `out` if it is given: memory holds the result and one piece."""
    out = np.empty(rows.shape, np.float32) if out is None else out

    def work(piece: slice) -> None:
        copied = torch.from_numpy(np.array(rows[piece]))  # mapped rows are read-only, which torch warns of
        out[piece] = transformed(copied, settings).numpy()

    map_rows(work, *rows.shape)
    return out
