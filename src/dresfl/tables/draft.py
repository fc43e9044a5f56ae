"""A first schema for a table, which its holder then completes. No cell of any row is written into it.

Ranges are rounded away from the data, strictly, to one digit. Words are left out unless somebody asks for those of a
column by name. Means and spreads are left out: those of one client are not those of all.
"""

import datetime
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from dresfl.errors import DataError, UsageError

from .columns import as_text, missing_cells, read_numbers
from .reading import Table, batches, source_name
from .schema import Column, Kind, Label, Missing, Schema, Task
from .schema_toml import EPOCH

_MANY_WORDS = 100  # a text column with more is an identifier or free text
_MOST_WORDS = 10_000  # that are kept while a table is read


@final
@dataclass(eq=False)
class _Seen:
    """What has been seen of a column: the kinds that every cell so far can be, ranges by kind, and words."""

    possible: set[Kind] = field(default_factory=lambda: {"flag", "number", "date"})
    ranges: dict[Kind, tuple[float, float]] = field(default_factory=dict)
    missing: int = 0
    rows: int = 0
    words: set[str] = field(default_factory=set)
    fractions: bool = False  # whether a number is not whole

    def add(self, array: Any, name: str, words_wanted: bool) -> None:
        for kind in sorted(self.possible):
            self._try(array, name, kind)
        self.rows += len(array)
        self.missing += int(missing_cells(array).sum())
        if (words_wanted or not self.fractions) and len(self.words) <= _MOST_WORDS:
            self.words |= set(as_text(array).unique().drop_null().to_pylist())

    def _try(self, array: Any, name: str, kind: Kind) -> None:
        cells = read_numbers(array, Column(name, kind))
        if any(mask.any() for mask in cells.wrong.values()):
            self.possible.discard(kind)
            return
        there = cells.values[~np.isnan(cells.values)]
        if len(there) == 0:
            return
        low, high = self.ranges.get(kind, (math.inf, -math.inf))
        self.ranges[kind] = min(low, float(there.min())), max(high, float(there.max()))
        self.fractions |= kind == "number" and bool((there != np.floor(there)).any())

    @property
    def kind(self) -> Kind:
        kinds: tuple[Kind, ...] = ("flag", "number", "date")
        return next((kind for kind in kinds if kind in self.possible and kind in self.ranges), "category")

    @property
    def looks_like_identifier(self) -> bool:
        """Whole numbers, of which every one occurs once."""
        return not self.fractions and self.rows >= 20 and len(self.words) == self.rows


def draft(
    sources: Sequence[Table],
    *,
    label: str,
    task: Task = "classification",
    vocabulary: Collection[str] = (),
    leave_out: Collection[str] = (),
) -> Schema:
    """A draft from one client's tables. It may be incomplete: `Schema.check_complete` says what must be filled in.

    vocabulary: columns, or the label, whose words may be written down. leave_out: columns that are no inputs.

    >>> import pyarrow as pa
    >>> table = pa.table({"age": [31, 44], "ill": ["n", "y"]})
    >>> made = draft([table], label="ill")
    >>> made.columns[0].minimum, made.columns[0].maximum, made.label.classes
    (0.0, 50.0, ())
    """
    if not sources:
        raise UsageError("no table was given")
    seen: dict[str, _Seen] = {}
    for source in sources:
        for batch in batches(source):
            for name in batch.schema.names:
                if name not in leave_out:
                    seen.setdefault(name, _Seen()).add(batch.column(name), name, name in vocabulary)
    if not seen:
        raise DataError(f"{source_name(sources[0])} has no rows", "give at least one row after the header")
    for name in (label, *vocabulary):
        if name not in seen:
            raise UsageError(f"the table has no column {name!r}", f"its columns: {', '.join(map(repr, seen))}")
    comments: dict[str, str] = {}
    columns = []
    for name, found in seen.items():
        if name == label:
            continue
        column, comment = _column(name, found, name in vocabulary)
        if column is None:
            comments[""] = comments.get("", "") + comment + "\n"
            continue
        columns.append(column)
        comments[name] = comment
    made, comment = _label(label, task, seen[label], label in vocabulary)
    comments[""] = comments.get("", "") + comment
    return Schema(task, tuple(columns), made, comments)


def _column(name: str, found: _Seen, words_wanted: bool) -> tuple[Column | None, str]:
    rule: Missing = "indicator" if found.missing else "refuse"
    if found.missing == found.rows:
        return None, f"The column {name!r} is left out: it is empty."
    if words_wanted:
        return Column(name, "category", vocabulary=_words(name, found), missing=rule), ""
    if found.kind == "category":
        if len(found.words) > _MANY_WORDS:
            return None, f"The column {name!r} is left out: its texts are too many for a category."
        return Column(name, "category", missing=rule), "Write the words that may occur, and agree on them with all."
    if found.kind == "flag":
        return Column(name, "flag", missing=rule), ""
    minimum, maximum = (_dates_around if found.kind == "date" else _numbers_around)(*found.ranges[found.kind])
    comment = "The range is rounded from one client's rows. Set it to what is possible."
    if found.looks_like_identifier:
        comment += "\nEvery value occurs once. If this is an identifier, take the column out."
    return Column(name, found.kind, minimum=minimum, maximum=maximum, missing=rule), comment


def _words(name: str, found: _Seen) -> tuple[str, ...]:
    if len(found.words) > _MOST_WORDS:
        raise DataError(f"the column {name!r} has more than {_MOST_WORDS} words", "it is no category")
    return tuple(sorted(found.words))


def _label(name: str, task: Task, found: _Seen, words_wanted: bool) -> tuple[Label, str]:
    if task == "classification":
        classes = _words(name, found) if words_wanted else ()
        return Label(name, classes), "" if classes else 'Write the classes: classes = ["…", "…"]'
    if "number" not in found.possible or "number" not in found.ranges:
        raise DataError(f"the label {name!r} is no number", 'use task = "classification", or another label')
    minimum, maximum = _numbers_around(*found.ranges["number"])
    return Label(name, minimum=minimum, maximum=maximum), "The range is rounded from one client's rows."


def _numbers_around(low: float, high: float) -> tuple[float, float]:
    """Bounds of one digit that lie strictly outside all values; 0 stays a bound of values that are never negative."""
    minimum = 0.0 if low >= 0 else -_digit_above(-low)
    maximum = 0.0 if high <= 0 else _digit_above(high)
    return minimum, maximum if maximum > minimum else minimum + 1.0


def _digit_above(value: float) -> float:
    """The smallest number of one digit that is larger than a positive value.

    >>> [_digit_above(x) for x in (0.031, 1, 44, 90, 99.5, 100)]
    [0.04, 2.0, 50.0, 100.0, 100.0, 200.0]
    """
    place = math.floor(math.log10(value))
    digit = math.floor(value / 10.0**place) + 1
    made = float(f"{digit}e{place}")
    return made if made > value else float(f"{digit + 1}e{place}")


def _dates_around(low: float, high: float) -> tuple[float, float]:
    """First days of decades, strictly outside all dates."""
    first, last = (EPOCH + datetime.timedelta(days=math.floor(days)) for days in (low, high))
    early = first.year // 10 * 10
    if datetime.date(max(1, early), 1, 1) == first:
        early -= 10
    start, end = datetime.date(max(1, early), 1, 1), datetime.date(min(9999, last.year // 10 * 10 + 10), 1, 1)
    return float((start - EPOCH).days), float((end - EPOCH).days)
