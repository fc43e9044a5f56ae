"""A file of two places: the newest write is found again, a torn one leaves the one before, and damage is refused."""

import os
from pathlib import Path

import pytest

from dresfl.errors import StoreError
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.two_places import MOST_CONTENT, SECTOR, TwoPlaces

IDENTITY = b"session"
KEYS = [None, StorageKey(bytes(range(32)))]


def create(path, content=b"first", key=None, **more):
    return TwoPlaces.create(path, IDENTITY, content, key, "hop", **more)


def reopened(path, key=None, identity=IDENTITY):
    file = TwoPlaces(path, identity, key, "hop")
    file.close()
    return file.content


@pytest.mark.parametrize("key", KEYS)
def test_the_newest_content_is_found_again(tmp_path, key):
    path = tmp_path / "f"
    file = create(path, key=key)
    assert path.stat().st_size == 2 * SECTOR
    for number in range(5):
        file.write(b"content %d" % number)
        assert reopened(path, key) == b"content %d" % number
    file.close()
    assert path.stat().st_size == 2 * SECTOR
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StoreError, match="closed"):
        file.write(b"more")


def test_sealed_places_do_not_show_their_content(tmp_path):
    file = create(tmp_path / "f", b"a value that is secret", KEYS[1])
    file.close()
    assert b"secret" not in (tmp_path / "f").read_bytes()
    with pytest.raises(StoreError, match="damaged"):
        reopened(tmp_path / "f", StorageKey(bytes(32)))


@pytest.mark.parametrize("key", KEYS)
def test_every_changed_byte_of_a_file_of_one_sector_is_refused(tmp_path, key):
    path = tmp_path / "f"
    file = create(path, b"x" * MOST_CONTENT, key)
    file.write(b"y" * MOST_CONTENT)
    file.close()
    whole = path.read_bytes()
    for place in range(0, 2 * SECTOR, 37):
        if key is None and place % SECTOR >= SECTOR - 52:  # where a seal would be
            continue
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StoreError, match="damaged"):
            reopened(path, key)
    path.write_bytes(whole[:SECTOR])
    with pytest.raises(StoreError, match="damaged"):
        reopened(path, key)


def test_a_torn_write_of_a_long_content_leaves_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "f"
    file = create(path, b"0" * 3000)
    file.write(b"1" * 3000)
    real = os.pwrite

    def torn(number, data, place):
        real(number, data[: len(data) // 2], place)
        raise OSError(5, "the power is gone")

    monkeypatch.setattr(os, "pwrite", torn)
    with pytest.raises(StoreError, match="cannot write"):
        file.write(b"2" * 3000)
    monkeypatch.undo()
    file.close()
    assert reopened(path) == b"1" * 3000


def test_a_file_of_another_run_or_role_is_refused(tmp_path):
    create(tmp_path / "f").close()
    with pytest.raises(StoreError, match="damaged"):
        reopened(tmp_path / "f", identity=b"another")
    create(tmp_path / "g", key=KEYS[1]).close()
    with pytest.raises(StoreError, match="damaged"):
        TwoPlaces(tmp_path / "g", IDENTITY, KEYS[1], "seeds")


def test_content_that_does_not_fit_is_refused(tmp_path):
    file = create(tmp_path / "f")
    with pytest.raises(StoreError, match="do not fit"):
        file.write(bytes(MOST_CONTENT + 1))
    file.close()
    assert reopened(tmp_path / "f") == b"first"


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(StoreError, match="nothing"):
        reopened(Path(tmp_path / "nothing"))


def test_old_content_is_overwritten_after_two_writes(tmp_path):
    path = tmp_path / "f"
    file = create(path, b"an old secret")
    for content in (b"next", b"and next"):
        file.write(content)
    file.close()
    assert b"an old secret" not in path.read_bytes()
