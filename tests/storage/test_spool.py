"""Sealed slices on the coordinator's disk."""

from dresfl.storage.spool import Spool


def test_slices_survive_and_those_of_other_sharings_go(tmp_path):
    spool = Spool(tmp_path, b"a" * 16)
    spool.put(1, 0, 3, b"sealed")
    spool.put(2, 0, 3, b"other")
    assert Spool(tmp_path, b"a" * 16).stored() == [(1, 0, 3), (2, 0, 3)]
    assert Spool(tmp_path, b"a" * 16).get(1, 0, 3) == b"sealed"
    assert Spool(tmp_path, b"b" * 16).stored() == []
    assert Spool(tmp_path, b"a" * 16).get(1, 0, 3) is None


def test_what_is_dropped_is_gone(tmp_path):
    spool = Spool(tmp_path, b"a" * 16)
    spool.put(1, 0, 3, b"sealed")
    spool.drop(1, 0, 3)
    spool.drop(1, 0, 3)
    assert spool.get(1, 0, 3) is None
    assert spool.stored() == []


def test_unfinished_writes_and_strangers_are_not_slices(tmp_path):
    spool = Spool(tmp_path, b"a" * 16)
    spool.put(1, 0, 3, b"sealed")
    folder = tmp_path / (b"a" * 16).hex()
    (folder / "1" / "0.4.part").write_bytes(b"half")
    (folder / "1" / "x.y").write_bytes(b"")
    assert spool.stored() == [(1, 0, 3)]
