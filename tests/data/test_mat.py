import contextlib
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import loadmat, savemat

from dresfl.data import mat
from dresfl.data.mat import read_mat
from dresfl.errors import DataError

HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
X = np.random.default_rng(0).integers(0, 256, (4, 5, 3, 7), np.uint8)
Y = np.array([[10], [1], [2], [3], [4], [5], [9]], np.uint8)


def element(kind, value):
    return struct.pack("<II", kind, len(value)) + value + bytes(-len(value) % 8)


def small(kind, value):
    return struct.pack("<I", kind | len(value) << 16) + value.ljust(4, b"\0")


def variable(name, shape, values, *, flags=9, storage=2):
    parts = element(6, struct.pack("<II", flags, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, parts + small(1, name) + element(storage, values))


def compressed(value):
    packed = zlib.compress(value)
    return struct.pack("<II", 15, len(packed)) + packed


@pytest.fixture
def path(tmp_path):
    return tmp_path / "test_32x32.mat"


@pytest.mark.parametrize("do_compression", [False, True])
def test_agrees_with_scipy(path, do_compression):
    savemat(path, {"X": X, "y": Y}, do_compression=do_compression)
    ours, theirs = read_mat(path), loadmat(path)
    assert ours.keys() == {"X", "y"}
    for name in ours:
        assert np.array_equal(ours[name], theirs[name])
        assert ours[name].dtype == np.uint8


def test_reads_whole_doubles_as_matlab_stores_them(path):
    path.write_bytes(HEADER + compressed(variable(b"y", (3, 1), b"\x0a\x01\x02", flags=6)))
    assert np.array_equal(read_mat(path)["y"], loadmat(path)["y"])
    assert read_mat(path)["y"].tolist() == [[10], [1], [2]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "version 5"),
        (HEADER[:127], "version 5"),
        (HEADER[:-2] + b"MI", "version 5"),
        (b"\x89HDF\r\n" + bytes(200), "version 5"),
        (HEADER + b"\x0e\0\0", "ends within an element's type"),
        (HEADER + struct.pack("<II", 14, 9) + bytes(8), "ends within an element's value"),
        (HEADER + small(14, b"abcd")[:3] + b"\1" + bytes(8), "ends within an element's value"),
        (HEADER + element(9, bytes(8)), "not stored as unsigned bytes"),
        (HEADER + variable(b"y", (2, 1), bytes(16), storage=9), "not stored as unsigned bytes"),
        (HEADER + variable(b"y", (2, 1), bytes(2), flags=4), "not of real numbers"),
        (HEADER + variable(b"y", (2, 1), bytes(2), flags=9 | 0x0800), "not of real numbers"),
        (HEADER + variable(b"y", (3, 1), bytes(2)), "2 bytes for an array of shape"),
        (HEADER + variable(b"y", (-2, -1), bytes(2)), "2 bytes for an array of shape"),
        (HEADER + variable(b"y", (2,), bytes(2)), "2 bytes for an array of shape"),
        (HEADER + variable(b"y", (0, 2**31 - 1), b""), "0 bytes for an array of shape"),
        (HEADER + variable(b"\xff", (2, 1), bytes(2)), "ascii"),
        (HEADER + 2 * variable(b"y", (2, 1), bytes(2)), "'y' twice"),
        (HEADER + compressed(2 * variable(b"y", (2, 1), bytes(2))), "holds not one other"),
        (HEADER + compressed(b""), "holds not one other"),
        (HEADER + compressed(compressed(variable(b"y", (2, 1), bytes(2)))), "not stored as unsigned bytes"),
        (HEADER + element(15, compressed(bytes(99))[8:-4]), "ends early"),
        (HEADER + element(15, b"not zlib"), "Error -3"),
    ],
)
def test_refuses_a_malformed_file(path, content, message):
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_mat(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint


def test_a_bomb_is_not_inflated_beyond_the_limit(path, monkeypatch):
    path.write_bytes(HEADER + compressed(variable(b"X", (5000, 10000), bytes(50_000_000))))
    monkeypatch.setattr(mat, "MAX_BYTES", 1_000_000)
    tracemalloc.start()
    with pytest.raises(DataError, match="larger than any"):
        read_mat(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


GOOD = HEADER + variable(b"X", (2, 2, 3, 1), bytes(12)) + compressed(variable(b"y", (1, 1), b"\x0a"))


def test_any_truncation_is_read_or_refused(path):
    for length in range(len(GOOD)):
        path.write_bytes(GOOD[:length])
        with contextlib.suppress(DataError):
            assert read_mat(path).keys() < {"X", "y"}


@given(st.integers(128, len(GOOD) - 1), st.integers(1, 255))
def test_any_flipped_byte_is_read_or_refused(tmp_path_factory, position, flip):
    content = bytearray(GOOD)
    content[position] ^= flip
    path = tmp_path_factory.mktemp("mat") / "flipped.mat"
    path.write_bytes(content)
    with contextlib.suppress(DataError):
        assert all(array.dtype == np.uint8 for array in read_mat(path).values())
