"""A client's notes of its sums: durable, whole or refused."""

import pytest

from dresfl.errors import StoreError
from dresfl.files import write_record
from dresfl.protocol import NotedSum
from dresfl.storage.sum_notes import SUMS, SumFile


def test_what_is_noted_is_found_by_the_next_process(tmp_path):
    assert SumFile(tmp_path).sums() == {}
    first, second = NotedSum(b"p" * 32, b"v" * 32), NotedSum(b"q" * 32, b"", (0, 2, 5), b"m" * 32)
    SumFile(tmp_path).note_sum(bytes(16), first)
    SumFile(tmp_path).note_sum(b"1" * 16, second)
    assert SumFile(tmp_path).sums() == {bytes(16): first, b"1" * 16: second}
    signed = NotedSum(first.plan, first.vector, (1, 2, 3))
    SumFile(tmp_path).note_sum(bytes(16), signed)
    assert SumFile(tmp_path).sums()[bytes(16)] == signed


@pytest.mark.parametrize(
    "entry", [["00", "00", []], ["00", "zz", [1], ""], ["00", "00", ["1"], ""], 7, ["00", "00", [True], ""]]
)
def test_damaged_notes_are_refused(tmp_path, entry):
    file = SumFile(tmp_path)
    file.note_sum(bytes(16), NotedSum(b"p" * 32))
    path = tmp_path / SUMS
    path.write_text(path.read_text()[:-9])
    with pytest.raises(StoreError):
        file.sums()
    path.unlink()
    write_record(path, {"sums": {"00": entry}})
    with pytest.raises(StoreError, match="not a list of sums"):
        file.sums()
