import contextlib
import gzip
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.data.idx import read_idx
from dresfl.errors import DataError


def header(*shape, magic=b"\0\0\x08"):
    return magic + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


def write(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(params=["images", "images.gz"])
def path(request, tmp_path):
    return tmp_path / request.param


def test_reads_what_was_written(path):
    values = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(read_idx(write(path, header(2, 3, 4) + values.tobytes()), 3), values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with , wanted 00000803"),
        (header(2, 1, 1, magic=b"\0\0\x0d") + bytes(2), "begins with 00000d03"),
        (header(2, 1, 1, magic=b"\1\0\x08") + bytes(2), "begins with 01000803"),
        (header(2) + bytes(2), "begins with 00000801, wanted 00000803"),
        (header(2, 1, 1)[:-1], "ends within its header"),
        (header(2, 3, 4) + bytes(23), "promises 24 values, holds 23"),
        (header(2, 3, 4) + bytes(25), "promises 24 values, holds more"),
        (header(2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(9), "can be there"),
        (header(0, 2**32 - 1, 2**32 - 1), "empty shape"),
    ],
)
def test_refuses_a_malformed_file(path, content, message):
    with pytest.raises(DataError, match=message) as caught:
        read_idx(write(path, content), 3)
    assert str(path) in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("length", [0, 5, 40, -9, -1])
def test_refuses_a_truncated_gzip(tmp_path, length):
    path = tmp_path / "labels.gz"
    content = np.random.default_rng(0).integers(0, 256, 500, np.uint8).tobytes()
    path.write_bytes(gzip.compress(header(500) + content)[:length])
    with pytest.raises(DataError):
        read_idx(path, 1)


def test_refuses_a_gzip_with_a_flipped_byte(tmp_path):
    path = tmp_path / "labels.gz"
    damaged = bytearray(gzip.compress(header(500) + bytes(500)))
    damaged[-6] ^= 1  # within the checksum
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="cannot be read: CRC"):
        read_idx(path, 1)


def test_a_gzip_bomb_is_not_inflated(tmp_path):
    path = write(tmp_path / "labels.gz", header(10) + bytes(50_000_000))
    tracemalloc.start()
    with pytest.raises(DataError, match="holds more"):
        read_idx(path, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_folder_in_its_place_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path, 1)


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, gzipped):
    path = tmp_path_factory.mktemp("idx") / ("raw.gz" if gzipped else "raw")
    path.write_bytes(content)
    with contextlib.suppress(DataError):
        assert read_idx(path, 1).ndim == 1
