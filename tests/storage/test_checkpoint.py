"""A checkpoint: every byte of it is checked, it is of one session and its settings, and the one before stays."""

import os
import random
from dataclasses import replace

import pytest
import torch

from dresfl.errors import CheckpointError
from dresfl.files import write_atomic
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.checkpoint import EARLIER, NEWEST, RunFolder, read_checkpoint, write_checkpoint

from .test_run_folder import training

PROGRESS = {"round_number": 1}
SETTINGS = {"optimizer.method": "momentum", "optimizer.learning_rate": 0.1}


def written(folder, rounds=2):
    """A training after some rounds, with a checkpoint of each."""
    current = training()
    for number in range(rounds):
        current.round_number = number + 1
        current.weights = current.weights + 1
        write_checkpoint(folder, current, PROGRESS, "")
    return current


def state_of(found):
    return {name: tensor.tolist() for name, tensor in found.tensors.items()}


@pytest.mark.parametrize("key", [None, StorageKey(bytes(32))])
def test_every_flip_and_cut_is_found(tmp_path, key):
    folder = RunFolder(tmp_path, key=key, settings=SETTINGS)
    current = written(folder)
    path, chance = tmp_path / NEWEST, random.Random(3)
    whole = path.read_bytes()
    assert torch.equal(read_checkpoint(folder, current).tensors["weights"], current.weights)
    for bit in [*range(0, 8 * 120, 5), *(chance.randrange(8 * len(whole)) for _ in range(300))]:
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(CheckpointError) as caught:
            read_checkpoint(folder, current)
        assert caught.value.hint
    for length in [0, 1, 7, 8, 9, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(50))]:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="the one before it is sound and is of round 1"):
            read_checkpoint(folder, current)


def test_the_one_before_is_used_when_asked_for_and_takes_its_place(tmp_path):
    current = written(RunFolder(tmp_path), rounds=3)
    before = (tmp_path / EARLIER).read_bytes()
    (tmp_path / NEWEST).write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(RunFolder(tmp_path, how_to_use_earlier="do so"), current)
    assert caught.value.hint == "do so"
    found = read_checkpoint(RunFolder(tmp_path, use_earlier=True), current)
    assert int(found.tensors["round"]) == 2
    assert (tmp_path / NEWEST).read_bytes() == before
    assert not (tmp_path / EARLIER).exists()
    assert int(read_checkpoint(RunFolder(tmp_path), current).tensors["round"]) == 2


def test_a_sound_checkpoint_is_used_whatever_is_asked_for(tmp_path):
    current = written(RunFolder(tmp_path), rounds=3)
    assert int(read_checkpoint(RunFolder(tmp_path, use_earlier=True), current).tensors["round"]) == 3
    assert read_checkpoint(RunFolder(tmp_path / "none"), current) is None


def test_a_checkpoint_of_another_session_is_refused_and_never_stepped_over(tmp_path):
    folder = RunFolder(tmp_path, use_earlier=True)
    written(folder)
    other = training()
    other.session = replace(other.session, run_nonce=b"another run")
    with pytest.raises(CheckpointError, match="is of another run") as caught:
        read_checkpoint(folder, other)
    assert caught.value.hint


def test_other_settings_are_named_with_both_values(tmp_path):
    current = written(RunFolder(tmp_path, settings=SETTINGS))
    now = {"optimizer.method": "sgd", "optimizer.learning_rate": 0.1, "optimizer.more": 1}
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(RunFolder(tmp_path, settings=now, use_earlier=True), current)
    assert 'optimizer.method was "momentum" and is now "sgd"' in str(caught.value)
    assert "optimizer.more was not there and is now 1" in str(caught.value)
    assert "learning_rate" not in str(caught.value)
    assert "put the old values back" in caught.value.hint


def test_the_newest_is_there_at_every_moment(tmp_path, monkeypatch):
    """A crash between any two steps leaves the old checkpoint or the new one under its name."""

    class Crash(BaseException):
        pass

    def crashing(real, step, calls):
        def wrapped(*arguments):
            if next(calls) == step:
                raise Crash
            return real(*arguments)

        return wrapped

    folder, path = RunFolder(tmp_path), tmp_path / NEWEST
    current = written(folder)
    for step in range(1, 6):
        with monkeypatch.context() as patched:
            calls = iter(range(1, 100))
            for name in ("fsync", "replace", "link"):
                patched.setattr(os, name, crashing(getattr(os, name), step, calls))
            with pytest.raises(Crash):
                write_checkpoint(folder, current, PROGRESS, "")
        assert path.exists()
        assert read_checkpoint(folder, current) is not None


def test_without_hard_links_the_one_before_is_kept_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *a: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
    for content in (b"one", b"two", b"three"):
        write_atomic(tmp_path / "file", content, keep=tmp_path / "before")
    assert ((tmp_path / "file").read_bytes(), (tmp_path / "before").read_bytes()) == (b"three", b"two")
