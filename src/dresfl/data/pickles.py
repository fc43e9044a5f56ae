"""CIFAR's batch files: pickles, read without letting them reach any code but the stand-ins below.

A pickle is a program that may call whatever `find_class` hands it and set attributes of what it holds. A
batch needs four names to rebuild one array of bytes; each is answered by a stand-in that only writes down
what it is told, so that not even NumPy's own constructors see values a stranger chose. Every stand-in has a
`__setstate__`, without which a pickle could set attributes of the class itself. The array is made afterwards,
from what was written down and checked.

The program is read through before it is run: one wrong byte can make the unpickler ask for 20 GB.
"""

import io
import math
import pickle
import pickletools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .files import content, damaged


class _Dtype:
    """Stands in for numpy.dtype: remembers the code, such as "u1", and ignores byte order details."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Stands in for numpy.ndarray and for the function that makes an empty one: remembers what to fill in."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def pixels(self) -> npt.NDArray[np.uint8]:
        """The (B, F) array of bytes; ValueError or TypeError unless the state describes exactly that."""
        _, shape, dtype, column_major, values = self.state
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", b"u1"):
            raise ValueError("its array is not of unsigned bytes")
        if len(shape) != 2 or min(shape) < 1 or math.prod(shape) != len(values):
            raise ValueError(f"its array has shape {shape} but {len(values)} bytes")
        flat = np.frombuffer(values, np.uint8)
        return flat.reshape(shape[::-1]).T if column_major else flat.reshape(shape)


class _Bytes(bytes):
    """Stands in for _codecs.encode, which Python 3 writes where Python 2 is to find bytes."""

    def __new__(cls, text: str, encoding: str) -> Self:
        if encoding != "latin1":
            raise ValueError(f"it encodes text as {encoding!r}")
        return super().__new__(cls, text, encoding)

    def __setstate__(self, state: Any) -> None:
        pass


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _Bytes,
}


# What protocols 2 to 4 have for dicts, lists, tuples, whole numbers, text, bytes and arrays.
_NEEDED = """
    PROTO FRAME STOP MARK BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD
    NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINSTRING SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE
    BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS
"""
_INSTRUCTIONS = frozenset(_NEEDED.split())


class _BatchUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module!r}, {name!r}, which no images need")
        return _STAND_INS[module, name]


def read_batch(path: Path, label_key: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The pixels (B, F) and the labels (B,) of a CIFAR batch; DataError for anything else, which is not run.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "test_batch")
    ...     _ = path.write_bytes(pickle.dumps({"data": np.full((2, 3), 9, np.uint8), "labels": [1, 0]}, 4))
    ...     pixels, labels = read_batch(path, "labels")
    >>> (pixels.tolist(), labels.tolist()) == ([[9, 9, 9], [9, 9, 9]], [1, 0])
    True
    """
    program = content(path)
    try:
        _check_program(program)
        return _contents(_BatchUnpickler(io.BytesIO(program), encoding="bytes").load(), label_key)
    except Exception as error:  # a hostile pickle can provoke nearly any exception, and none is our bug
        raise damaged(path, f"not a CIFAR batch: {error}") from error


def read_cifar(paths: Sequence[Path], *, label_key: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The images (B,32,32,3) and labels (B,) of several batches, one after the other."""
    batches = [read_batch(path, label_key) for path in paths]
    for path, (pixels, _) in zip(paths, batches, strict=True):
        if pixels.shape[1] != 3 * 32 * 32:
            raise damaged(path, f"{pixels.shape[1]} values a row, wanted 3072 (3 channels of 32x32)")
    pixels = np.concatenate([pixels for pixels, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels  # (B,3072) -> (B,C,H,W) -> (B,H,W,C)


def binary_rows(path: Path, label_key: str, *, coarse: Sequence[int] = ()) -> bytes:
    """A batch as the file of CIFAR's binary version: for each row its label and its pixels, a byte each.

    `coarse`: CIFAR-100's class of each fine class, which the binary version has before the label.
    """
    pixels, labels = read_batch(path, label_key)
    if labels.min() < 0 or labels.max() >= (len(coarse) or 256):
        raise damaged(path, f"its labels reach from {labels.min()} to {labels.max()}")
    before = [np.array(coarse, np.uint8)[labels]] if coarse else []
    return np.column_stack([*before, labels.astype(np.uint8), pixels]).tobytes()


def _check_program(program: bytes) -> None:
    """ValueError if it has an instruction no batch needs, a length beyond its end, or a far memo slot."""
    argument: Any
    for step, (instruction, argument, _) in enumerate(pickletools.genops(program)):
        if instruction.name not in _INSTRUCTIONS:
            raise ValueError(f"it has the instruction {instruction.name}, which no images need")
        # Slots are numbered as they are filled, and the unpickler makes room for all up to the highest.
        if instruction.name in ("BINPUT", "LONG_BINPUT") and argument > step:
            raise ValueError(f"its step {step} fills the memo slot {argument}")


def _contents(batch: Any, label_key: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    if not isinstance(batch, dict):
        raise TypeError(f"it holds a {type(batch).__name__}, wanted a dict")
    # Python 2 wrote the keys as bytes; whoever pickles the batch again may write them as text.
    array = batch.get(b"data", batch.get("data"))
    labels = batch.get(label_key.encode(), batch.get(label_key))
    if not isinstance(array, _Array):
        raise TypeError("it holds no array called data")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise TypeError(f"it holds no list of whole numbers called {label_key}")
    pixels = array.pixels()
    if len(pixels) != len(labels):  # two such batches could add up and yet be out of step
        raise ValueError(f"it holds {len(pixels)} images, {len(labels)} labels")
    return pixels, np.array(labels, np.int64)
