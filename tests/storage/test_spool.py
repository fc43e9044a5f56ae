"""The coordinator's disk between dealer and receiver."""

from pathlib import Path

import pytest

from dresfl.errors import DresError
from dresfl.storage import spool as spool_module
from dresfl.storage.spool import Spool


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MEMORY_BYTES", 0)


def test_few_bytes_stay_in_memory_and_the_rest_goes_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "MEMORY_BYTES", 10)
    spool = Spool(tmp_path, b"a" * 16)
    for number in range(4):
        spool.put(1, 0, number, b"sealed")
    assert [spool.in_memory(1, 0, number) for number in range(4)] == [b"sealed", None, None, None]
    assert [spool.get(1, 0, number) for number in range(4)] == [b"sealed"] * 4
    spool.drop(1, 0, 0)
    assert spool.get(1, 0, 0) is None
    spool.put(1, 0, 9, b"there")
    assert spool.in_memory(1, 0, 9) == b"there"
    assert Spool(tmp_path, b"a" * 16).stored() == [(1, 0, 1), (1, 0, 2), (1, 0, 3)]


@pytest.mark.usefixtures("no_memory")
def test_what_is_stored_is_found_after_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path, b"a" * 16)
    spool.put(1, 0, 3, b"sealed")
    spool.put(2, 0, 3, b"another")
    spool.drop(2, 0, 3)
    spool.drop(2, 0, 3)
    again = Spool(tmp_path, b"a" * 16)
    assert again.stored() == [(1, 0, 3)]
    assert again.get(1, 0, 3) == b"sealed"
    assert again.get(2, 0, 3) is None


@pytest.mark.usefixtures("no_memory")
def test_other_sharings_are_forgotten(tmp_path: Path) -> None:
    Spool(tmp_path, b"a" * 16).put(1, 0, 3, b"sealed")
    assert Spool(tmp_path, b"b" * 16).stored() == []
    assert Spool(tmp_path, b"a" * 16).get(1, 0, 3) is None


@pytest.mark.usefixtures("no_memory")
def test_half_a_slice_and_strange_files_are_not_slices(tmp_path: Path) -> None:
    folder = tmp_path / (b"a" * 16).hex()
    spool = Spool(tmp_path, b"a" * 16)
    spool.put(1, 0, 3, b"sealed")
    for name in ("0.4.part", "notes.txt", "5"):
        (folder / "1" / name).write_bytes(b"x")
    assert spool.stored() == [(1, 0, 3)]


@pytest.mark.usefixtures("no_memory")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    spool = Spool(tmp_path, b"a" * 16)
    (tmp_path / (b"a" * 16).hex() / "1").write_bytes(b"where a folder should be")
    with pytest.raises(DresError, match="cannot make the folder"):
        spool.put(1, 0, 3, b"sealed")
