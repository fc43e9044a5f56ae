"""The IDX files of MNIST and its relatives, parsed by hand.

In order: two zero bytes; the type (8: unsigned bytes); the number of axes; the size of each axis as a
big-endian uint32; the values, last axis fastest.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .files import MAX_BYTES, damaged

_DEFLATE_RATIO = 1032  # no deflate stream can expand further than this


def read_idx(path: Path, num_axes: int) -> npt.NDArray[np.uint8]:
    """The array of unsigned bytes in an IDX file, plain or (by its name) gzipped; DataError if it is not one.

    No more is read than the sizes promise, and sizes beyond what the file can hold are refused unread.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "labels-idx1-ubyte")
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    ...     read_idx(path, num_axes=1).tolist() == [7, 2, 1]
    True
    """
    gzipped = path.suffix == ".gz"
    try:
        room = min(path.stat().st_size * (_DEFLATE_RATIO if gzipped else 1), MAX_BYTES)
        with gzip.open(path) if gzipped else path.open("rb") as file:
            shape = _shape(file.read(4 + 4 * num_axes), num_axes, path)
            size = math.prod(shape)
            if size > room:
                raise damaged(path, f"promises {size} values, at most {room} can be there")
            values = file.read(size + 1)  # one more, so that a file that goes on is noticed
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"cannot be read: {error}") from error
    if len(values) != size:
        came = "more" if len(values) > size else f"{len(values)}"
        raise damaged(path, f"promises {size} values, holds {came}")
    return np.frombuffer(values, np.uint8).reshape(shape)


def idx_pair(prefix: str) -> tuple[str, str]:
    """The files of one part of a data set: its images and its labels."""
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"


def idx_content(path: Path) -> bytes:
    """The bytes of an IDX file, unpacked: what its authors' checksums are of."""
    num_axes = 3 if "idx3" in path.name else 1
    values = read_idx(path, num_axes)
    return bytes([0, 0, 8, num_axes]) + struct.pack(f">{num_axes}I", *values.shape) + values.tobytes()


def read_images(
    paths: Sequence[Path], *, transposed: bool = False
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The images (B,H,W,1) and labels (B,) of a pair of files. `transposed`: the file has columns for rows."""
    images, labels = read_idx(paths[0], num_axes=3), read_idx(paths[1], num_axes=1)
    if transposed:
        images = images.swapaxes(1, 2)  # (B,W,H) -> (B,H,W)
    return images[..., np.newaxis], labels.astype(np.int64)  # (B,H,W) -> (B,H,W,1)


def _shape(header: bytes, num_axes: int, path: Path) -> tuple[int, ...]:
    wanted = bytes([0, 0, 8, num_axes])
    if header[:4] != wanted:
        raise damaged(path, f"begins with {header[:4].hex()}, wanted {wanted.hex()}")
    if len(header) != 4 + 4 * num_axes:
        raise damaged(path, "ends within its header")
    shape = struct.unpack(f">{num_axes}I", header[4:])
    if 0 in shape:  # with a zero among them, any other size would pass for an empty array
        raise damaged(path, f"has the empty shape {shape}")
    return shape
