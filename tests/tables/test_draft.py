"""A drafted schema fits the table it was made from, and holds no cell of it."""

import datetime
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import DataError, UsageError
from dresfl.tables import check_table, draft, parse_schema
from dresfl.tables.schema_toml import EPOCH
from tables.ward import CSV, write_csv


def test_the_kinds_that_it_finds(tmp_path: Path) -> None:
    made = draft([write_csv(tmp_path)], label="outcome", leave_out=["patient"])
    kinds = {column.name: column.kind for column in made.columns}
    assert kinds == {
        "age": "number",
        "pressure": "number",
        "blood": "category",
        "stage": "category",
        "admitted": "date",
        "smoker": "flag",
    }
    assert {column.name for column in made.columns if column.missing == "indicator"} == {"pressure", "blood", "smoker"}
    with pytest.raises(UsageError, match="vocabulary"):
        made.check_complete()


def leaves(table: Any) -> list[Any]:
    parts = table.values() if isinstance(table, dict) else table if isinstance(table, list) else None
    return [table] if parts is None else [leaf for part in parts for leaf in leaves(part)]


def test_no_cell_is_in_the_draft(tmp_path: Path) -> None:
    text = draft([write_csv(tmp_path)], label="outcome").to_toml()
    names, *rows = [line.split(",") for line in CSV.splitlines()]
    cells = {cell for row in rows for cell in row} - {"", "0"}  # 0: the bound of what is never negative
    found = {str(leaf) for leaf in leaves(tomllib.loads(text))} - set(names)
    assert cells & found == set()
    assert [cell for cell in cells if re.search(rf"(?<![\w.-]){re.escape(cell)}(?![\w.-])", text)] == []


numbers = st.one_of(
    st.floats(-1e12, 1e12), st.integers(-1000, 1000).map(float), st.sampled_from([1.0, 10.0, -0.1, 1e-9])
)


@given(st.lists(numbers, min_size=1, max_size=10))
def test_bounds_lie_strictly_outside_all_numbers(values: list[float]) -> None:
    made = draft([pa.table({"x": values, "y": ["a"] * len(values)})], label="y")
    bounds = [bound for column in made.columns for bound in (column.minimum, column.maximum) if bound is not None]
    assert [bound for bound in bounds if bound != 0 and bound in values] == []
    for column in made.columns:
        if column.kind == "number":
            assert column.minimum is not None
            assert column.maximum is not None
            assert column.minimum <= min(values)
            assert max(values) <= column.maximum
            assert all(len(f"{bound:e}".split("e")[0].strip("-0.")) <= 1 for bound in bounds)


@given(st.lists(st.dates(datetime.date(1000, 1, 1)), min_size=1, max_size=10))
def test_bounds_lie_strictly_outside_all_dates(dates: list[datetime.date]) -> None:
    (column,) = draft([pa.table({"x": dates, "y": ["a"] * len(dates)})], label="y").columns
    days = [float((date - EPOCH).days) for date in dates]
    assert column.kind == "date"
    assert column.minimum is not None
    assert column.maximum is not None
    assert column.minimum < min(days)
    assert max(days) < column.maximum or max(dates).year >= 9990


def test_words_come_only_from_named_columns(tmp_path: Path) -> None:
    path = write_csv(tmp_path)
    wanted = ["outcome", "stage", "blood"]
    made = draft([path], label="outcome", vocabulary=wanted, leave_out=["patient"])
    assert made.label.classes == ("home", "ward")
    assert {column.name: column.vocabulary for column in made.columns if column.vocabulary} == {
        "stage": ("high", "low", "middle"),
        "blood": ("A", "O"),
    }
    whole = parse_schema(made.to_toml())
    assert whole == made
    assert check_table(path, whole.check_complete()).problems == ()


def test_texts_that_are_no_category_are_left_out() -> None:
    rows = 200
    table = pa.table(
        {"id": [f"p{n}" for n in range(rows)], "x": list(range(rows)), "e": [None] * rows, "y": ["a"] * rows}
    )
    made = draft([table], label="y")
    assert [column.name for column in made.columns] == ["x"]
    assert "'id' is left out" in made.to_toml()
    assert "'e' is left out" in made.to_toml()
    assert "identifier" in made.comments["x"]


def test_several_tables_are_one_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dresfl.tables.reading.ROWS_AT_A_TIME", 2)
    tables = [pa.table({"x": ["1", "2", "3"], "y": [0.5] * 3}), pa.table({"x": ["4", "2020-01-01"], "y": [70.0] * 2})]
    made = draft(tables, label="y", task="regression")
    assert made.columns[0].kind == "category"  # neither all numbers nor all dates
    assert (made.label.minimum, made.label.maximum) == (0, 80)


def test_what_it_cannot_draft() -> None:
    table = pa.table({"x": np.arange(3), "y": ["a", "b", "c"]})
    with pytest.raises(UsageError, match="no column 'z'"):
        draft([table], label="z")
    with pytest.raises(DataError, match="no number"):
        draft([table], label="y", task="regression")
    with pytest.raises(DataError, match="no rows"):
        draft([table.slice(0, 0)], label="y")
