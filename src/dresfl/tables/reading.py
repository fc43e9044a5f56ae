"""Rows of a table in batches, whatever it is kept in: CSV, Parquet, Arrow, pandas, a NumPy archive.

Only a few batches are in memory at a time. Texts of a CSV file stay texts here: `encoding` knows what each column must
be, and says which rows are wrong. An error names rows and columns and never a value.
"""

import bisect
import importlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np

from dresfl.data import read_npz_arrays
from dresfl.errors import DataError, UsageError

Table: TypeAlias = Any
"""A path, a pyarrow Table or RecordBatch, or a pandas DataFrame."""

ROWS_AT_A_TIME = 2**14  # features of so many rows stay in a processor's cache
_CSV_BLOCK = 2**22  # bytes
_DELIMITERS = ",;\t|"


def library(name: str) -> Any:
    """pyarrow or pandas, or a part of them: the extra `tables` brings them, and only tables need them."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UsageError(f"tables need {package}, which is not installed", "pip install 'dresfl[tables]'") from error


@final
@dataclass(eq=False)
class BrokenRows:
    """Rows of a CSV file whose number of cells is not that of its header. They are left out of the batches."""

    numbers: list[int] = field(default_factory=list)  # counted from 1, without the header, ascending

    def number_of(self, place: int) -> int:
        """The number in the file of the row that is the `place`-th (from 0) of those that are not broken."""
        number = place + 1
        while (shifted := place + 1 + bisect.bisect_right(self.numbers, number)) != number:
            number = shifted
        return number


def batches(source: Table, columns: Sequence[str] | None = None, broken: BrokenRows | None = None) -> Iterator[Any]:
    """The table's record batches, of the wanted columns in their order; None: of all columns.

    broken: gets the rows of a CSV file that cannot be read. Without it they are an error.
    """
    arrow = library("pyarrow")
    name = source_name(source)
    try:
        for batch in _batches(arrow, source, columns, broken):
            if batch.num_rows:
                yield batch
    except arrow.ArrowInvalid as error:
        raise DataError(f"{name} cannot be read as a table", _reason(error)) from None  # its text may hold values
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{name} cannot be read: {type(error).__name__}", "check the path and the file") from None


def source_name(source: Table) -> str:
    """What errors call a table."""
    return str(source) if isinstance(source, str | Path) else type(source).__name__


def column_names(source: Table) -> list[str]:
    """The names of a table's columns, in its order."""
    arrow = library("pyarrow")
    if isinstance(source, str | Path):
        path = _checked_path(source)
        try:
            if _suffix(path) == ".parquet":
                return list(library("pyarrow.parquet").read_schema(path).names)
            if _suffix(path) in (".csv", ".tsv", ".txt"):
                return _csv_header(path)[0]
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read: {type(error).__name__}", "check the path and the file") from None
    for batch in batches(source):
        return list(batch.schema.names)
    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return [str(name) for name in source.columns]
    return list(source.schema.names) if hasattr(source, "schema") else []


def num_rows(source: Table) -> int | None:
    """How many rows a table has, if that can be known before they are read."""
    if isinstance(source, str | Path):
        path = _checked_path(source)
        if _suffix(path) != ".parquet":
            return None
        with _parquet(path) as file:
            return int(file.metadata.num_rows)
    return len(source)


def _batches(arrow: Any, source: Table, columns: Sequence[str] | None, broken: BrokenRows | None) -> Iterator[Any]:
    if isinstance(source, str | Path):
        path = _checked_path(source)
        read = {
            ".csv": _csv_batches,
            ".tsv": _csv_batches,
            ".txt": _csv_batches,
            ".parquet": _parquet_batches,
            ".arrow": _arrow_file_batches,
            ".feather": _arrow_file_batches,
            ".npz": _npz_batches,
        }.get(_suffix(path))
        if read is None:
            raise UsageError(
                f"{path}: a table ending in {path.suffix or 'nothing'} is not known",
                "use .csv, .tsv, .parquet, .arrow, .feather or .npz",
            )
        yield from read(path, columns, broken)
    elif isinstance(source, arrow.Table):
        _check_columns(source.schema.names, columns, "the Arrow table")
        table = source if columns is None else source.select(list(columns))
        yield from table.to_batches(max_chunksize=ROWS_AT_A_TIME)
    elif isinstance(source, arrow.RecordBatch):
        yield from _batches(arrow, arrow.Table.from_batches([source]), columns, broken)
    elif type(source).__module__.startswith("pandas"):
        yield from _pandas_batches(arrow, source, columns)
    else:
        raise UsageError(
            f"a {type(source).__name__} is no table",
            "give a path, a pandas DataFrame, a pyarrow Table, or with NumPy arrays no schema",
        )


def _checked_path(source: str | Path) -> Path:
    path = Path(source)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}, a table was wanted", "check the path")
    return path


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def _check_columns(present: Sequence[str], wanted: Sequence[str] | None, name: str) -> None:
    twice = next((one for one, count in Counter(present).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{name} has two columns called {twice!r}", "rename one of them")
    missing = [one for one in wanted or () if one not in present]
    if missing:
        raise DataError(
            f"{name} has no column {', '.join(map(repr, missing))}", f"its columns: {', '.join(map(repr, present))}"
        )


# -- CSV: every cell as text ---------------------------------------------------------------------------------------


def _csv_header(path: Path) -> tuple[list[str], str]:
    """The names of the columns, and the character between them: that of , ; tab | which the first line has most of."""
    arrow = library("pyarrow")
    csv = library("pyarrow.csv")
    with arrow.input_stream(str(path), compression="detect") as stream:
        first = stream.read(2**16).split(b"\n", 1)[0].decode("utf-8", "replace")
    delimiter = max(_DELIMITERS, key=first.count)
    try:
        with _csv_reader(csv, path, delimiter, {}, lambda row: "skip") as reader:
            return list(reader.schema.names), delimiter
    except arrow.ArrowInvalid as error:
        if "mpty CSV" in str(error):
            raise DataError(f"{path} is empty", "its first line must name the columns") from None
        raise


def _csv_reader(csv: Any, path: Path, delimiter: str, types: dict[str, Any], broken: Any) -> Any:
    return csv.open_csv(
        str(path),
        read_options=csv.ReadOptions(block_size=_CSV_BLOCK, use_threads=False),
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=broken),
        convert_options=csv.ConvertOptions(column_types=types, strings_can_be_null=True),
    )


def _csv_batches(path: Path, columns: Sequence[str] | None, broken: BrokenRows | None) -> Iterator[Any]:
    arrow, csv = library("pyarrow"), library("pyarrow.csv")
    names, delimiter = _csv_header(path)
    _check_columns(names, columns, str(path))
    found = BrokenRows() if broken is None else broken

    def note(row: Any) -> str:
        found.numbers.append(row.number - 1)  # the header is row 1
        return "skip"

    with _csv_reader(csv, path, delimiter, {name: arrow.string() for name in names}, note) as reader:
        while True:
            batch = next(reader, None)
            if broken is None and found.numbers:
                raise DataError(
                    f"{path}: row {found.numbers[0]} has not as many cells as the header ({len(names)})",
                    "quote cells that hold the separator; `dresfl schema check` lists every such row",
                )
            if batch is None:
                return
            yield batch if columns is None else batch.select(list(columns))


# -- the others ------------------------------------------------------------------------------------------------------


def _parquet(path: Path) -> Any:
    """The file, read through a small buffer for each column: row groups of a million rows are never whole in memory."""
    return library("pyarrow.parquet").ParquetFile(path, pre_buffer=False, buffer_size=2**16)


def _parquet_batches(path: Path, columns: Sequence[str] | None, broken: BrokenRows | None) -> Iterator[Any]:
    with _parquet(path) as file:
        _check_columns(file.schema_arrow.names, columns, str(path))
        wanted = None if columns is None else list(columns)
        for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, columns=wanted):
            yield batch if wanted is None else batch.select(wanted)


def _arrow_file_batches(path: Path, columns: Sequence[str] | None, broken: BrokenRows | None) -> Iterator[Any]:
    ipc = library("pyarrow.ipc")
    with ipc.open_file(str(path)) as file:
        _check_columns(file.schema.names, columns, str(path))
        for place in range(file.num_record_batches):
            batch = file.get_batch(place)
            chosen = batch if columns is None else batch.select(list(columns))
            for start in range(0, chosen.num_rows, ROWS_AT_A_TIME):
                yield chosen.slice(start, ROWS_AT_A_TIME)


def _npz_batches(path: Path, columns: Sequence[str] | None, broken: BrokenRows | None) -> Iterator[Any]:
    """Arrays (m,) are columns under their own names. The columns of `inputs` (m,F) are called x0, x1, …, or as the
    array `feature_names` (F,) says.
    """
    arrow = library("pyarrow")
    arrays = read_npz_arrays(path)
    names = arrays.pop("feature_names", None)
    table: dict[str, Any] = {}
    for key, array in arrays.items():
        if key == "inputs" and array.ndim == 2:
            called = [f"x{place}" for place in range(array.shape[1])] if names is None else [str(n) for n in names]
            if len(called) != array.shape[1]:
                raise DataError(f"{path}: {len(called)} feature_names for {array.shape[1]} inputs", "give each a name")
            table |= dict(zip(called, array.T, strict=True))
        elif array.ndim == 1:
            table[key] = array
    if len({len(array) for array in table.values()}) != 1:
        raise DataError(f"{path} has no arrays of one value a row and equal lengths", "save one array for each column")
    _check_columns(list(table), columns, str(path))
    chosen = {name: table[name] for name in (table if columns is None else columns)}
    rows = len(next(iter(chosen.values())))
    for start in range(0, rows, ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        yield arrow.RecordBatch.from_pydict({name: _arrow_array(arrow, array[part]) for name, array in chosen.items()})


def _arrow_array(arrow: Any, array: Any) -> Any:
    return arrow.array(np.ascontiguousarray(array))


def _pandas_batches(arrow: Any, frame: Any, columns: Sequence[str] | None) -> Iterator[Any]:
    present = [str(name) for name in getattr(frame, "columns", ())]
    _check_columns(present, columns, "the DataFrame")
    places = range(len(present)) if columns is None else [present.index(name) for name in columns]
    for start in range(0, len(frame), ROWS_AT_A_TIME):
        part = frame.iloc[start : start + ROWS_AT_A_TIME]
        arrays = [_pandas_column(arrow, part.iloc[:, place], present[place]) for place in places]
        yield arrow.RecordBatch.from_arrays(arrays, names=[present[place] for place in places])


def _pandas_column(arrow: Any, column: Any, name: str) -> Any:
    try:
        return arrow.array(column, from_pandas=True)
    except (arrow.ArrowException, TypeError, ValueError):
        cells = zip(column, column.isna(), strict=True)  # of several types: as text
        return arrow.array([None if missing else str(cell) for cell, missing in cells], type=arrow.string())


def _reason(error: Exception) -> str:
    text = str(error)
    if "UTF8" in text or "UTF-8" in text:
        return "save it in UTF-8"
    return "is its ending right, and is it whole?"
