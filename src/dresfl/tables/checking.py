"""Every problem of a table, with row, column and count. A client runs it before it joins; nothing is changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from .encoding import examined
from .reading import BrokenRows, Table, batches, column_names, source_name
from .schema import Schema

_ROWS_NAMED = 10


@final
@dataclass(frozen=True)
class Finding:
    """One thing about one column: how many rows, and the first of them. Rows count from 1, without the header."""

    column: str
    what: str
    count: int
    rows: tuple[int, ...] = ()
    values: tuple[str, ...] = ()  # of those rows, only if somebody asked for them

    def __str__(self) -> str:
        named = ", ".join(map(str, self.rows)) + (", …" if self.count > len(self.rows) else "")
        return f"{self.column}: {self.what}, {self.count} rows: {named}"


@final
@dataclass(frozen=True)
class Report:
    """What a check found: problems, for which a run would refuse the table, and notes, which only inform."""

    table: str
    num_rows: int
    problems: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    unused: tuple[str, ...]  # columns that the schema does not name


@final
@dataclass(eq=False)
class _Tally:
    """Counts of one thing about one column, over all batches."""

    problem: bool
    count: int = 0
    places: list[int] = field(default_factory=list)  # from 0, among the rows that can be read
    values: list[str] = field(default_factory=list)


def check_table(source: Table, schema: Schema, *, show_values: bool = False) -> Report:
    """Hold a table against a schema. Cell values are in the report only if `show_values`.

    >>> import pyarrow as pa
    >>> from dresfl.tables import Column, Label, Schema
    >>> schema = Schema("classification", (Column("age", "number", minimum=0, maximum=120),), Label("ill", ("n", "y")))
    >>> report = check_table(pa.table({"age": [30, 300, 31], "ill": ["n", "y", "n"]}), schema)
    >>> str(report.problems[0])
    'age: is above the maximum, 1 rows: 2'
    """
    present = column_names(source)
    wanted = [*(column.name for column in schema.columns), schema.label.column]
    here = [name for name in wanted if name in present]
    problems = [Finding(name, "is not in the table", 0) for name in wanted if name not in present]
    tallies: dict[tuple[str, str], _Tally] = {}
    broken, rows = BrokenRows(), 0
    for batch in batches(source, here or None, broken):
        for column, what, mask, problem in examined(schema, batch):
            places = np.flatnonzero(mask).tolist()
            if places:
                tally = tallies.setdefault((column, what), _Tally(problem))
                _add(tally, batch.column(column), places, rows, show_values)
        rows += batch.num_rows
    if broken.numbers:
        what = "has not as many cells as the header"
        problems.append(Finding("(row)", what, len(broken.numbers), tuple(broken.numbers[:_ROWS_NAMED])))
    if not rows:
        problems.append(Finding("(table)", "has no rows that can be read", 0))
    findings = {key: _finding(key, tally, broken) for key, tally in tallies.items()}
    problems += [findings[key] for key, tally in tallies.items() if tally.problem]
    notes = tuple(findings[key] for key, tally in tallies.items() if not tally.problem)
    unused = tuple(name for name in present if name not in wanted)
    return Report(source_name(source), rows + len(broken.numbers), tuple(problems), notes, unused)


def _add(tally: _Tally, array: Any, places: Sequence[int], start: int, show_values: bool) -> None:
    tally.count += len(places)
    chosen = places[: _ROWS_NAMED - len(tally.places)]
    tally.places += [start + place for place in chosen]
    if show_values:
        tally.values += [str(array[place].as_py()) for place in chosen]


def _finding(key: tuple[str, str], tally: _Tally, broken: BrokenRows) -> Finding:
    rows = tuple(broken.number_of(place) for place in tally.places)
    return Finding(*key, tally.count, rows, tuple(tally.values))
