"""Files are whole or absent, and what cannot be read is said so."""

import builtins
import errno
import json
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import CheckpointError, DresError, IdentityError, StoreError
from dresfl.files import (
    make_private_folder,
    read_file,
    read_private,
    read_record,
    write_atomic,
    write_new,
    write_record,
)
from dresfl.storage.tensors import load_tensors, save_tensors


def test_write_atomic_makes_folders_and_replaces(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["file"]


def test_data_is_on_the_disk_before_the_name(tmp_path, monkeypatch):
    """fsync of the data, then the rename, then fsync of the folder."""
    events = []
    fsync, rename = os.fsync, os.replace

    def spied_fsync(number):
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{number}") else "data")
        return fsync(number)

    def spied_replace(source, target):
        events.append("rename")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", spied_fsync)
    monkeypatch.setattr(os, "replace", spied_replace)
    write_atomic(tmp_path / "file", b"x")
    assert events == ["data", "rename", "folder"]


def failing(*arguments, **more):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["open", "fsync", "replace"])
def test_a_full_disk_is_an_error_with_a_hint_and_leaves_the_old_file(tmp_path, monkeypatch, where):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with monkeypatch.context() as patched:
        patched.setattr(builtins if where == "open" else os, where, failing)
        with pytest.raises(DresError, match="No space left on device") as caught:
            write_atomic(path, b"new")
    assert "free some space" in caught.value.hint
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("below", ["x", "x/y/z"])
def test_a_folder_that_cannot_be_made_is_an_error_with_a_hint(tmp_path, below):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DresError) as caught:
        write_atomic(tmp_path / "file" / below, b"data")
    assert caught.value.hint


def test_a_crash_at_any_step_leaves_the_old_file_or_the_new(tmp_path, monkeypatch):
    class Crash(BaseException):
        pass

    for step in range(3):
        path = tmp_path / f"{step}"
        write_atomic(path, b"old")
        calls = iter(range(10))

        def crash(real, calls=calls, step=step):
            def wrapped(*arguments):
                if next(calls) == step:
                    raise Crash
                return real(*arguments)

            return wrapped

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", crash(os.fsync))
            patched.setattr(os, "replace", crash(os.replace))
            with pytest.raises(Crash):
                write_atomic(path, b"new")
        assert path.read_bytes() == (b"old" if step < 2 else b"new")


# -- new and private files ---------------------------------------------------------------------------------------


def mode(path):
    return oct(path.stat().st_mode & 0o777)


def test_private_files_are_private_from_the_start(tmp_path):
    os.umask(0o022)
    write_atomic(tmp_path / "a", b"x", private=True)
    write_new(tmp_path / "b", b"x", private=True)
    write_new(tmp_path / "c", b"x")
    make_private_folder(tmp_path / "d" / "e")
    modes = {path.name: mode(path) for path in (tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path / "d" / "e")}
    assert modes == {"a": "0o600", "b": "0o600", "c": "0o644", "e": "0o700"}


def test_a_new_file_is_never_written_over(tmp_path):
    write_new(tmp_path / "key", b"first")
    with pytest.raises(IdentityError, match="not written over") as caught:
        write_new(tmp_path / "key", b"second", error=IdentityError)
    assert caught.value.hint
    assert (tmp_path / "key").read_bytes() == b"first"


def test_a_new_file_on_a_full_disk_is_not_left_half_written(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(StoreError, match="No space left") as caught:
            write_new(tmp_path / "key", b"data")
    assert "free some space" in caught.value.hint
    assert os.listdir(tmp_path) == []


def test_reading_is_limited_to_regular_files_of_a_size(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", 5) == b"12345"
    with pytest.raises(StoreError, match="larger than 4 bytes"):
        read_file(tmp_path / "file", 4)
    os.mkfifo(tmp_path / "pipe")
    for name, words in {
        "pipe": "not a regular file",
        "absent": "cannot read",
        ".": "cannot read|not a regular",
    }.items():
        with pytest.raises(IdentityError, match=words):
            read_file(tmp_path / name, 5, error=IdentityError)


def test_a_secret_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "secret"
    write_new(path, b"x", private=True)
    assert read_file(path, 9, private=True) == read_private(path, 9) == b"x"
    assert read_private(tmp_path / "absent", 9) is None
    path.chmod(0o640)
    for read in (read_private, lambda *arguments: read_file(*arguments, private=True)):
        with pytest.raises(StoreError, match="0640") as caught:
            read(path, 9)
        assert "chmod 600" in caught.value.hint


def test_records_come_back_and_any_changed_byte_is_refused(tmp_path):
    path = tmp_path / "record"
    assert read_record(path) is None
    write_record(path, {"b": [1, None], "a": "ç"})
    assert mode(path) == "0o600"
    assert read_record(path) == {"a": "ç", "b": [1, None]}
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(StoreError, match="damaged"):
            read_record(path)


def test_this_module_is_light():
    code = "import sys, dresfl.files; assert not {'torch', 'numpy', 'safetensors'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- tensors ---------------------------------------------------------------------------------------------------

TENSORS = {
    "round": torch.tensor([3]),
    "weights": torch.tensor([1, -(2**40), 2**62]),
    "optimizer.first": torch.tensor([0.1, -1e-300, float("inf")], dtype=torch.float64),
}
META = {"progress": {"round_number": 3, "seconds": 0.1}, "text": "naïve"}


def test_tensors_and_description_come_back(tmp_path):
    save_tensors(tmp_path / "file", TENSORS, META)
    tensors, meta = load_tensors(tmp_path / "file")
    assert meta == META
    assert {n: (t.dtype, t.tolist()) for n, t in tensors.items()} == {
        n: (t.dtype, t.tolist()) for n, t in TENSORS.items()
    }


def test_a_view_is_saved_as_it_looks(tmp_path):
    save_tensors(tmp_path / "file", {"x": torch.arange(6).view(2, 3).T}, {})
    assert load_tensors(tmp_path / "file")[0]["x"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "file"
    save_tensors(path, TENSORS, META)
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="cannot read"):
            load_tensors(path)


def refuses_or_loads(path, data):
    path.write_bytes(data)
    try:
        load_tensors(path)
    except CheckpointError as error:
        assert error.hint  # noqa: PT017


@given(st.data())
def test_a_changed_header_raises_nothing_but_checkpoint_errors(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("checkpoint") / "file"
    save_tensors(path, TENSORS, META)
    encoded = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(encoded[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    refuses_or_loads(path, bytes(encoded))


@given(st.binary(max_size=60), st.booleans())
def test_random_bytes_raise_nothing_but_checkpoint_errors(tmp_path_factory, noise, framed):
    path = tmp_path_factory.mktemp("checkpoint") / "file"
    refuses_or_loads(path, len(noise).to_bytes(8, "little") + noise if framed else noise)


@pytest.mark.parametrize("header", [[], 3, None, {"__metadata__": []}, {"__metadata__": {"a": 1}}, {"x": 1}])
def test_a_header_that_is_json_but_wrong_is_refused(tmp_path, header):
    text = json.dumps(header).encode()
    (tmp_path / "file").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(CheckpointError):
        load_tensors(tmp_path / "file")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(CheckpointError, match="cannot read"):
            load_tensors(path)
