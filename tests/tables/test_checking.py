"""`check_table` finds every problem with row, column and count, changes nothing, and shows no value unasked."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dresfl.tables import check_table
from tables.ward import CSV, SCHEMA, numbers_schema, write_csv

BAD = CSV + (
    "4714,old,150,A,low,2020-01-01,yes,home\n"
    "4715,torn\n"
    "4716,-7,400,B,lower,2020-02-30,perhaps,hotel\n"
    "4717,250,,B,,2020-05-05,no,\n"
)
PROBLEMS = {
    ("(row)", "has not as many cells as the header"): (5,),
    ("age", "is not a number"): (4,),
    ("age", "is below the minimum"): (6,),
    ("age", "is above the maximum"): (7,),
    ("stage", "is not in the vocabulary"): (6,),
    ("stage", "is missing"): (7,),
    ("admitted", "is not a date"): (6,),
    ("smoker", "is not a flag"): (6,),
    ("outcome", "is no class of the label"): (6,),
    ("outcome", "is missing"): (7,),
}
SECRETS = ("old", "torn", "-7", "250", "lower", "2020-02-30", "perhaps", "hotel", "4716")


def test_every_problem_has_its_row(tmp_path: Path) -> None:
    path = write_csv(tmp_path, BAD)
    report = check_table(path, SCHEMA)
    assert {(found.column, found.what): found.rows for found in report.problems} == PROBLEMS
    assert all(found.count == 1 for found in report.problems)
    notes = {(found.column, found.what): found.rows for found in report.notes}
    assert notes == {
        ("pressure", "is missing"): (3, 7),
        ("pressure", "is clipped"): (2, 6),
        ("blood", "is missing"): (3,),
        ("smoker", "is missing"): (3,),
    }
    assert report.unused == ("patient",)
    assert report.num_rows == 7
    assert path.read_text() == BAD


def test_values_are_shown_only_when_asked(tmp_path: Path) -> None:
    path = write_csv(tmp_path, BAD)
    quiet = str(dataclasses.asdict(check_table(path, SCHEMA))).replace(str(path), "")
    assert [cell for cell in SECRETS if f"'{cell}'" in quiet or (cell.isalpha() and cell in quiet)] == []
    shown = check_table(path, SCHEMA, show_values=True)
    assert {"old", "-7", "hotel"} <= {value for found in shown.problems for value in found.values}


def test_counts_go_over_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dresfl.tables.reading.ROWS_AT_A_TIME", 8)
    values = np.where(np.arange(50) % 3 == 0, 2.0, 0.5)
    (found,) = check_table(pa.table({"x0": values, "labels": [0] * 50}), numbers_schema(1)).problems
    assert (found.count, found.rows) == (17, tuple(range(1, 29, 3)))


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    path = write_csv(tmp_path, CSV.replace(",age,", ",years,"))
    report = check_table(path, SCHEMA)
    assert [(found.column, found.what) for found in report.problems] == [("age", "is not in the table")]
    assert set(report.unused) == {"patient", "years"}


def test_a_table_without_rows(tmp_path: Path) -> None:
    path = write_csv(tmp_path, CSV.splitlines()[0] + "\n")
    assert [found.what for found in check_table(path, SCHEMA).problems] == ["has no rows that can be read"]
