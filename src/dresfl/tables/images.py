"""Images in folders, one folder a class: PNG and JPEG files as a data set."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dresfl.data import DataSet
from dresfl.errors import DataError

from .reading import library

_ENDINGS = (".png", ".jpg", ".jpeg")


def image_classes(folders: Sequence[Path]) -> tuple[str, ...]:
    """The names of the classes of some clients' folders, sorted: every folder in one of them is a class."""
    found = {entry.name for folder in folders for entry in folder.iterdir() if entry.is_dir() and _files(entry)}
    if len(found) < 2:
        raise DataError(
            f"{folders[0]} has {len(found)} folders with images, wanted one for each of at least 2 classes",
            "put the PNG or JPEG files of each class into a folder with its name",
        )
    return tuple(sorted(found))


def read_image_folder(
    folder: Path, classes: Sequence[str], *, image_size: int = 0, channels: int = 0, name: str = ""
) -> DataSet:
    """The images (B,H,W,C) below a folder, in [0, 1], in the order of classes and file names.

    image_size: the side to which images are resized; 0: all must have one size. channels: 1 gray, 3 colour, 0: gray if
    every image is.
    """
    image = library("PIL.Image")
    paths = [(path, place) for place, one in enumerate(classes) for path in _files(folder / one)]
    if not paths:
        raise DataError(f"{folder} has no images in folders called {', '.join(classes)}", "check the path")
    arrays = [_pixels(image, path, image_size, channels) for path, _ in paths]
    wanted = max(array.shape[2] for array in arrays)
    shapes = {array.shape[:2] for array in arrays}
    if len(shapes) > 1:
        raise DataError(f"the images below {folder} have {len(shapes)} sizes", "give image_size, for example 64")
    out = np.empty((len(arrays), *arrays[0].shape[:2], wanted), np.float32)
    for row, array in enumerate(arrays):
        np.divide(array, np.float32(255), out=out[row], dtype=np.float32)  # a gray one is repeated
    return DataSet(out, np.array([place for _, place in paths]), len(classes), name or str(folder))


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)


def _pixels(image: "object", path: Path, size: int, channels: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        with image.open(path) as picture:  # type: ignore[attr-defined]
            gray = channels == 1 or (channels == 0 and picture.mode in ("1", "L", "I;16"))
            made = picture.convert("L" if gray else "RGB")
            if size:
                made = made.resize((size, size), image.Resampling.BILINEAR)  # type: ignore[attr-defined]
            pixels = np.asarray(made, np.uint8)
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:  # type: ignore[attr-defined]
        raise DataError(f"{path} is no image that can be read: {type(error).__name__}", "is it whole?") from None
    return pixels.reshape(*pixels.shape[:2], -1)
