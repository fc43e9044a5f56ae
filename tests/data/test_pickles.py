import contextlib
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.data import pickles
from dresfl.data.pickles import read_batch
from dresfl.errors import DataError

PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 6)

# What Python 2 and NumPy 1 wrote, as in the official files: protocol 2, byte strings, the old module names.
OFFICIAL = (
    b"\x80\x02}(U\x04data"
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
    b"(K\x01K\x02K\x06\x86cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    b"\x89U\x0c" + bytes(range(12)) + b"tb"
    b"U\x06labels]K\x03aK\x07au."
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "batch"


def read(path, content):
    path.write_bytes(content)
    return read_batch(path, "labels")


def assert_sample(batch):
    pixels, labels = batch
    assert np.array_equal(pixels, PIXELS)
    assert pixels.dtype == np.uint8
    assert labels.tolist() == [3, 7]
    assert labels.dtype == np.int64


def test_reads_the_official_form(path):
    assert pickle.loads(OFFICIAL.replace(b"numpy.core", b"numpy._core"), encoding="bytes")[b"labels"] == [
        3,
        7,
    ]
    assert_sample(read(path, OFFICIAL))


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("data", "labels"), [(b"data", b"labels"), ("data", "labels")])
def test_reads_what_python_3_writes(path, protocol, order, data, labels):
    batch = {data: np.array(PIXELS, order=order), labels: [3, 7], b"filenames": [b"a.png", b"b.png"]}
    assert_sample(read(path, pickle.dumps(batch, protocol)))


class Calls:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def test_a_hostile_pickle_is_not_run(path, tmp_path):
    proof = tmp_path / "proof"
    content = pickle.dumps({b"data": PIXELS, b"labels": Calls(os.system, f"touch {proof}")}, 2)
    with pytest.raises(DataError, match="asks for 'posix', 'system'"):
        read(path, content)
    assert not proof.exists()
    pickle.loads(content)
    assert proof.exists()  # it was a real one


@pytest.mark.parametrize("function", [eval, getattr, np.load, np.frombuffer, np.float64, os.getcwd])
def test_no_other_name_is_handed_out(path, function):
    with pytest.raises(DataError, match="asks for"):
        read(path, pickle.dumps(Calls(function, "0")))


def test_stand_ins_cannot_be_rebuilt_from_within(path):
    before = {name: dict(vars(stand_in)) for name, stand_in in pickles._STAND_INS.items()}
    for module, name in pickles._STAND_INS:
        get = b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n"
        content = get + b"N}X\x05\0\0\0stateK\x01s\x86b."  # BUILD with slots: setattr(it, "state", 1)
        with pytest.raises(DataError):
            read(path, content)
    assert before == {name: dict(vars(stand_in)) for name, stand_in in pickles._STAND_INS.items()}


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"\x80\x02}r\xff\xff\xff\x7f.", "its step 2 fills the memo slot 2147483647"),
        (b"\x80\x02}q\x03.", "its step 2 fills the memo slot 3"),
        (b"\x80\x05\x96" + b"\xff" * 7 + b"\x7f.", "bytearray8"),
        (b"\x80\x05\x96\x01\0\0\0\0\0\0\0a.", "instruction BYTEARRAY8"),
        (b"\x80\x03B\xff\xff\xff\x7fabc.", "bytes"),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fabc.", "bytes8"),
        (b"(ios\ngetcwd\n.", "instruction INST"),
        (b"P1\n.", "instruction PERSID"),
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"\x80\x02}", "STOP"),
    ],
)
def test_a_program_no_batch_needs_is_refused_before_it_runs(path, program, message, monkeypatch):
    monkeypatch.delattr(pickles, "_BatchUnpickler")
    with pytest.raises(DataError, match=message):
        read(path, program)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, 2], "holds a list, wanted a dict"),
        ({b"labels": [1]}, "no array called data"),
        ({b"data": b"123", b"labels": [1]}, "no array called data"),
        ({b"data": PIXELS}, "whole numbers called labels"),
        ({b"data": PIXELS, b"labels": (1, 2)}, "whole numbers called labels"),
        ({b"data": PIXELS, b"labels": [1, 2.0]}, "instruction BINFLOAT"),
        ({b"data": PIXELS, b"labels": [1, True]}, "whole numbers called labels"),
        ({b"data": PIXELS, b"labels": [1, 1 << 70]}, "too large"),
        ({b"data": PIXELS, b"labels": [1]}, "2 images, 1 labels"),
        ({b"data": PIXELS.astype(np.float32), b"labels": [1, 2]}, "not of unsigned bytes"),
        ({b"data": PIXELS.ravel(), b"labels": [1, 2]}, r"shape \(12,\)"),
        ({b"data": PIXELS[:0], b"labels": []}, r"shape \(0, 6\)"),
    ],
)
def test_refuses_other_contents(path, batch, message):
    with pytest.raises(DataError, match=message) as caught:
        read(path, pickle.dumps(batch, 4))
    assert str(path) in str(caught.value)
    assert caught.value.hint


def test_refuses_an_array_of_another_size_than_it_says(path):
    with pytest.raises(DataError, match=r"shape \(2, 7\) but 12 bytes"):
        read(path, OFFICIAL.replace(b"K\x02K\x06\x86", b"K\x02K\x07\x86"))
    with pytest.raises(DataError, match="shape"):
        read(path, OFFICIAL.replace(b"K\x02K\x06\x86", b"K\x02J\xff\xff\xff\xff\x86"))


def test_refuses_a_truncated_batch(path):
    for length in range(len(OFFICIAL)):
        with pytest.raises(DataError):
            read(path, OFFICIAL[:length])


@given(st.integers(0, len(OFFICIAL) - 1), st.integers(1, 255))
def test_any_flipped_byte_is_read_or_refused(tmp_path_factory, position, flip):
    content = bytearray(OFFICIAL)
    content[position] ^= flip
    with contextlib.suppress(DataError):
        pixels, labels = read(tmp_path_factory.mktemp("pickle") / "batch", bytes(content))
        assert len(pixels) == len(labels)
