"""The MATLAB files (version 5, little-endian) of SVHN, parsed by hand.

SciPy's reader is made for files one trusts: a single wrong byte can crash the whole process. What SVHN needs
of the format is little. After a header of 128 bytes come elements: a type and a length, both uint32, and the
value, padded to 8 bytes. A variable is a `matrix` element, possibly within a `compressed` one, and holds as
elements its flags, its shape, its name, and its values in column-major order.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .files import MAX_BYTES, content, damaged

_INT8, _UINT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 2, 5, 6, 14, 15  # types of elements
_DOUBLES, _BYTES = 6, 9  # classes of variables; whole doubles below 256 are stored as bytes too
_COMPLEX = 0x08


def read_mat(path: Path) -> dict[str, npt.NDArray[np.uint8]]:
    """The variables of a MATLAB file, by name; DataError unless all are arrays stored as unsigned bytes.

    >>> from scipy.io import savemat
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "test_32x32.mat")
    ...     savemat(path, {"y": np.array([[10], [3]], np.uint8)})
    ...     read_mat(path)["y"].tolist() == [[10], [3]]
    True
    """
    data = memoryview(content(path))
    if len(data) < 128 or bytes(data[124:128]) != b"\x00\x01IM":
        raise damaged(path, "not a MATLAB file of version 5, little-endian")
    variables: dict[str, npt.NDArray[np.uint8]] = {}
    room = MAX_BYTES  # for all that is compressed
    try:
        for kind, value in _elements(data[128:]):
            if kind == _COMPRESSED:
                kind, value = _inflated(value, room)
                room -= len(value)
            name, array = _variable(kind, value)
            if name in variables:
                raise ValueError(f"it holds {name!r} twice")
            variables[name] = array
    except (ValueError, zlib.error) as error:
        raise damaged(path, f"not the MATLAB file it should be: {error}") from error
    return variables


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The types and values of the elements that fill `data`."""
    while data:
        if len(data) < 8:
            raise ValueError("it ends within an element's type")
        kind, size = struct.unpack_from("<II", data)
        start, end = 8, 8 + size
        if kind >> 16:  # at most 4 bytes of value take the place of the length, which shares a word with the type
            kind, size = kind & 0xFFFF, kind >> 16
            start, end = 4, 8
        if start + size > min(end, len(data)):
            raise ValueError("it ends within an element's value")
        yield kind, data[start : start + size]
        data = data[end if kind == _COMPRESSED else end + -end % 8 :]


def _inflated(value: memoryview, room: int) -> tuple[int, memoryview]:
    """The one element in a compressed one: no more is unpacked than its length says, and than there is room for."""
    stream = zlib.decompressobj()
    head = stream.decompress(value, 8)
    size = int.from_bytes(head[4:], "little")
    if size > room:
        raise ValueError("its compressed data is larger than any data set's")
    inflated = head + stream.decompress(stream.unconsumed_tail, size + 8)
    if not stream.eof:
        raise ValueError("it has a compressed element that ends early, or holds not one other")
    elements = list(islice(_elements(memoryview(inflated)), 2))
    if len(elements) != 1:
        raise ValueError("it has a compressed element that holds not one other")
    return elements[0]


def _variable(kind: int, value: memoryview) -> tuple[str, npt.NDArray[np.uint8]]:
    parts = list(islice(_elements(value), 5)) if kind == _MATRIX else []
    if [part_kind for part_kind, _ in parts] != [_UINT32, _INT32, _INT8, _UINT8]:
        raise ValueError("it holds something that is not stored as unsigned bytes")
    flags, sizes, name, values = (part for _, part in parts)
    if len(flags) != 8 or flags[0] not in (_DOUBLES, _BYTES) or flags[1] & _COMPLEX:
        raise ValueError("it holds a variable that is not of real numbers")
    shape = struct.unpack(f"<{len(sizes) // 4}i", sizes[: len(sizes) // 4 * 4])
    if not 2 <= len(shape) <= 4 or min(shape) < 1 or math.prod(shape) != len(values):
        raise ValueError(f"it holds {len(values)} bytes for an array of shape {shape}")
    return str(name, "ascii"), np.frombuffer(values, np.uint8).reshape(shape[::-1]).T
