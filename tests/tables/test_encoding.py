"""Cells become the numbers that the schema says, whatever the table is kept in; what it refuses is named by row."""

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.data import integer_rows
from dresfl.errors import DataError, UsageError
from dresfl.quantize import Quantizer
from dresfl.tables import Column, Encoder, Label, Schema, batches, read_data_set, read_integers, split_by_client
from tables.ward import CSV, INPUTS, SCHEMA, numbers_schema, write_csv

WANTED = np.array(INPUTS, np.float32)


def arrow_table() -> pa.Table:
    """The table of CSV with the types that a database gives."""
    return pa.table(
        {
            "age": pa.array([50, 0, 100], pa.int16()),
            "pressure": [150.0, 300.0, None],
            "blood": pa.array(["A", "O", None]).dictionary_encode(),
            "stage": ["low", "middle", "high"],
            "admitted": [datetime.date(2020, 1, 1), datetime.date(2020, 7, 1), datetime.date(2020, 12, 31)],
            "smoker": [True, False, None],
            "outcome": ["home", "ward", "ward"],
        }
    )


def kept_as(kind: str, folder: Path) -> Any:
    table = arrow_table()
    if kind == "csv":
        return write_csv(folder)
    if kind == "semicolons":
        return write_csv(folder, CSV.replace(",", ";"))
    if kind == "byte order mark":
        return write_csv(folder, "\ufeff" + CSV)
    if kind == "parquet":
        pyarrow.parquet.write_table(table, folder / "ward.parquet", row_group_size=2)
        return str(folder / "ward.parquet")
    if kind == "feather":
        pyarrow.feather.write_feather(table, folder / "ward.feather")
        return folder / "ward.feather"
    if kind == "pandas":
        return table.to_pandas()
    if kind == "pandas of objects":
        return table.to_pandas().astype(object)
    return table


@pytest.mark.parametrize(
    "kind", ["csv", "semicolons", "byte order mark", "parquet", "feather", "pandas", "pandas of objects", "arrow"]
)
def test_every_way_of_keeping_a_table_gives_the_same(kind: str, tmp_path: Path) -> None:
    data = read_data_set(kept_as(kind, tmp_path), SCHEMA)
    np.testing.assert_array_equal(data.inputs, WANTED)
    assert data.labels.tolist() == [0, 1, 1]
    assert data.num_classes == 2


def test_clipped_and_missing_values_are_counted(tmp_path: Path) -> None:
    encoder = Encoder(SCHEMA)
    for batch in batches(write_csv(tmp_path), encoder.columns):
        encoder.inputs(batch)
    assert +encoder.clipped == {"pressure": 1}
    assert +encoder.missing == {"pressure": 1, "blood": 1, "smoker": 1}


def test_a_numpy_archive(tmp_path: Path) -> None:
    inputs = np.array([[0, 0.25], [1, 0.5]])
    np.savez(tmp_path / "rows.npz", inputs=inputs, labels=np.array([1, 0]))
    data = read_data_set(tmp_path / "rows.npz", numbers_schema(2))
    assert data.inputs.tolist() == [[-1, -0.5], [1, 0]]
    assert data.labels.tolist() == [1, 0]
    np.savez(tmp_path / "named.npz", inputs=inputs, labels=np.array([1, 0]), feature_names=["x1", "x0"])
    assert read_data_set(tmp_path / "named.npz", numbers_schema(2)).inputs.tolist() == [[-0.5, -1], [0, 1]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("4711,50,", "4711,fifty,", "column 'age' is not a number"),
        ("4711,50,", "4711,101,", "column 'age' is above the maximum"),
        ("4711,50,", "4711,inf,", "column 'age' is not finite"),
        ("4711,50,", "4711,5_0,", "column 'age' is not a number"),
        ("4711,50,", "4711,,", "column 'age' is missing"),
        ("A,low", "A,lowest", "column 'stage' is not in the vocabulary"),
        ("2020-01-01", "2020-13-01", "column 'admitted' is not a date"),
        ("2020-01-01", "2019-12-31", "column 'admitted' is below the minimum"),
        ("yes,home", "maybe,home", "column 'smoker' is not a flag"),
        ("yes,home", "yes,hotel", "column 'outcome' is no class of the label"),
        ("yes,home", "yes,", "column 'outcome' is missing"),
    ],
)
def test_a_cell_that_the_schema_refuses(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in CSV
    with pytest.raises(DataError) as refused:
        read_data_set(write_csv(tmp_path, CSV.replace(old, new, 1)), SCHEMA)
    assert message in str(refused.value)
    assert "row 1" in str(refused.value)
    for cell in ("fifty", "lowest", "maybe", "hotel", "2020-13-01"):
        assert cell not in str(refused.value) + refused.value.hint


def test_rows_are_numbered_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dresfl.tables.reading.ROWS_AT_A_TIME", 4)
    table = pa.table({"x0": [0.5] * 9 + [2.0], "labels": [0] * 10})
    with pytest.raises(DataError, match="row 10"):
        read_data_set(table, numbers_schema(1))


def test_a_broken_row_is_named_without_its_cells(tmp_path: Path) -> None:
    path = write_csv(tmp_path, CSV + "4714,secret\n")
    with pytest.raises(DataError, match="row 4 has not as many cells") as refused:
        read_data_set(path, SCHEMA)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", b"", "empty"),
        ("head.csv", CSV.splitlines()[0].encode() + b"\n", "no rows"),
        ("bytes.csv", CSV.replace("low", "l\udcff").encode("utf-8", "surrogateescape"), "cannot be read"),
        ("lost.csv", CSV.replace(",age,", ",years,").encode(), "no column 'age'"),
        ("twice.csv", CSV.replace("patient", "age").encode(), "two columns called 'age'"),
        ("fake.parquet", b"PAR1 this is none PAR1", "cannot be read"),
        ("fake.feather", b"no feather", "cannot be read"),
        ("fake.npz", b"no archive", "cannot read rows"),
    ],
)
def test_files_that_are_no_table(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as refused:
        read_data_set(tmp_path / name, SCHEMA)
    assert message in str(refused.value)


def test_what_is_no_table_at_all(tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_bytes(b"")
    for source in (tmp_path / "rows.xlsx", 7, [[1, 2]]):
        with pytest.raises(UsageError):
            read_data_set(source, SCHEMA)
    with pytest.raises(DataError, match="does not exist"):
        read_data_set(tmp_path / "nothing.csv", SCHEMA)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow") as refused:
        read_data_set(write_csv(tmp_path), SCHEMA)
    assert "dresfl[tables]" in refused.value.hint


cells = st.one_of(st.none(), st.floats(-3, 3).map(lambda x: x + 0.0))


@given(st.lists(st.tuples(cells, st.sampled_from(["a", "b", "c", None])), min_size=1, max_size=20), st.booleans())
def test_against_a_plain_loop(rows: list[tuple[float | None, str | None]], as_text: bool) -> None:
    """The slow obvious twin: one cell at a time, in Python."""
    number = Column("n", "number", minimum=-2, maximum=2, clip=True, missing="constant", fill=1)
    word = Column("w", "category", vocabulary=("a", "b"), other=True, missing="indicator")
    schema = Schema("classification", (number, word), Label("y", ("0", "1")))
    wanted = []
    for value, letter in rows:
        clipped = 1.0 if value is None else max(-2.0, min(2.0, value))
        one_hot = [letter == "a", letter == "b", letter == "c", letter is None]
        wanted.append([np.float32(clipped * 0.5), *map(float, one_hot)])
    numbers = [value if value is None or not as_text else repr(value) for value, _ in rows]
    kind = pa.string() if as_text else pa.float64()
    table = pa.table(
        {"n": pa.array(numbers, kind), "w": pa.array([w for _, w in rows], pa.string()), "y": [0] * len(rows)}
    )
    assert read_data_set(table, schema).inputs.tolist() == wanted


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("bits", [4, 16])
def test_integers_are_those_of_the_data_set(
    tmp_path: Path, ending: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dresfl.tables.reading.ROWS_AT_A_TIME", 7)
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.random((50, 3)), columns=["x0", "x1", "x2"])
    frame["labels"] = generator.integers(0, 2, 50)
    path = tmp_path / f"rows.{ending}"
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    schema, quantizer = numbers_schema(3), Quantizer(bits)
    data = read_data_set(path, schema)
    wanted, _ = integer_rows(data, quantizer, np.arange(50))
    integers, labels = read_integers(path, schema, quantizer)
    assert integers.dtype == (torch.int16 if bits == 4 else torch.int32)
    assert torch.equal(integers.to(torch.int32), wanted)
    assert labels.tolist() == frame["labels"].tolist() == data.labels.tolist()


def test_rows_by_client() -> None:
    table = arrow_table().append_column("site", pa.array(["north", "east", "north"]))
    found = split_by_client(table, SCHEMA, "site")
    assert found.names == ("east", "north")
    assert [rows.tolist() for rows in found.parts] == [[1], [0, 2]]
    with pytest.raises(UsageError, match="says whose"):
        split_by_client(table, SCHEMA, "blood")
    with pytest.raises(DataError, match="row 2"):
        split_by_client(arrow_table().append_column("site", pa.array(["n", None, "n"])), SCHEMA, "site")


def test_targets_of_a_regression() -> None:
    schema = Schema("regression", (Column("x", "flag"),), Label("y", minimum=0, maximum=10))
    batch = pa.RecordBatch.from_pydict({"x": [True, False], "y": [0, 7.5]})
    assert Encoder(schema).targets(batch).tolist() == [[-1.0], [0.5]]
    data = read_data_set(pa.Table.from_batches([batch]), schema)
    assert data.is_regression
    assert data.targets is not None
    assert data.targets.tolist() == [[-1.0], [0.5]]
    integers, targets = read_integers(pa.Table.from_batches([batch]), schema, Quantizer(4))
    assert (integers.tolist(), targets.tolist()) == ([[16], [0]], [[-1.0], [0.5]])
    assert json.dumps(Encoder(schema).inputs(batch).tolist()) == "[[1.0], [0.0]]"
