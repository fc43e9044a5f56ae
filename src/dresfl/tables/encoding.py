"""Batches of a table -> what a network takes: features, labels, targets. A client runs it on its own rows.

Nothing here looks at more than one batch, and nothing is fitted: the schema alone decides what a cell becomes.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dresfl.errors import DataError

from .columns import Cells, Mask, read_numbers, read_words
from .schema import Column, Schema

_ROWS_NAMED = 5

Floats32 = npt.NDArray[np.float32]


@final
class Encoder:
    """Makes features of a table's batches, in order, and counts what was clipped and what was missing.

    >>> import pyarrow as pa
    >>> from dresfl.tables import Column, Label, Schema
    >>> schema = Schema(
    ...     "classification", (Column("age", "number", minimum=0, maximum=100),), Label("ill", classes=("no", "yes"))
    ... )
    >>> batch = pa.RecordBatch.from_pydict({"age": [0, 50, 100], "ill": ["no", "no", "yes"]})
    >>> encoder = Encoder(schema)
    >>> encoder.inputs(batch).tolist(), encoder.labels(batch).tolist()
    ([[-1.0], [0.0], [1.0]], [0, 0, 1])
    """

    def __init__(self, schema: Schema, name: str = "the table") -> None:
        self.schema, self.name = schema.check_complete(), name
        self.clipped: Counter[str] = Counter()  # values, by column
        self.missing: Counter[str] = Counter()
        self.rows = 0  # of the batches before the present one

    @property
    def columns(self) -> list[str]:
        """The columns that a batch must have: the inputs, then the label."""
        return [*(column.name for column in self.schema.columns), self.schema.label.column]

    def inputs(self, batch: Any) -> Floats32:
        """The features (B,F) of a batch, float32. DataError names the first rows that the schema refuses."""
        out = np.empty((batch.num_rows, self.schema.num_features), np.float32)
        place = 0
        for column in self.schema.columns:
            width = len(column.features)
            self._encode(column, batch.column(column.name), out[:, place : place + width])
            place += width
        return out

    def labels(self, batch: Any) -> npt.NDArray[np.int64]:
        """The classes (B,) of a batch, as places in `label.classes`."""
        label = self.schema.label
        places, missing, unknown = read_words(batch.column(label.column), label.classes)
        self._refuse(label.column, {"is missing": missing, "is no class of the label": unknown})
        return places

    def targets(self, batch: Any) -> Floats32:
        """The scaled targets (B,1) of a batch, float32. Of a regression."""
        column = self.schema.label.as_number
        cells = self._cells(column, batch.column(column.name))
        offset, factor = column.scaling
        return ((cells.values - offset) * factor).astype(np.float32)[:, None]

    def next_batch(self, batch: Any) -> None:
        """Say that a batch is done: rows of the next one are numbered after it."""
        self.rows += batch.num_rows

    def _encode(self, column: Column, array: Any, out: Floats32) -> None:
        """One column of a batch into its features (B,f)."""
        if column.kind == "category":
            self._encode_words(column, array, out)
            return
        cells = self._cells(column, array)
        offset, factor = column.scaling
        values = cells.values
        if cells.missing is not None and cells.missing.any():
            values = np.where(cells.missing, column.fill_value, values)
        # one pass and no copy: the product goes to its place as float32
        np.multiply(values - offset, factor, out=out[:, 0], casting="same_kind")
        if column.missing == "indicator":
            out[:, 1] = 0.0 if cells.missing is None else cells.missing

    def _encode_words(self, column: Column, array: Any, out: Floats32) -> None:
        places, missing, unknown = read_words(array, column.vocabulary, column.other)
        wrong = {"is not in the vocabulary": unknown}
        self._refuse(column.name, wrong | ({"is missing": missing} if column.missing == "refuse" else {}))
        self.missing[column.name] += int(missing.sum())
        if column.missing == "constant":
            places[missing] = column.vocabulary.index(str(column.fill))
        out[:] = 0.0
        there = np.flatnonzero(places >= 0)
        if column.encoding == "ordinal":
            out[there, 0] = 2.0 * places[there] / (len(column.vocabulary) - 1) - 1.0
        else:
            out[there, places[there]] = 1.0
        if column.missing == "indicator":
            out[:, -1] = missing

    def _cells(self, column: Column, array: Any) -> Cells:
        """The cells of a column, if the schema takes them all; what is clipped and missing is counted."""
        cells = read_numbers(array, column)
        self._refuse(column.name, wrong_cells(cells, column))
        if cells.missing is not None:
            self.missing[column.name] += int(cells.missing.sum())
        if cells.clipped is not None:
            self.clipped[column.name] += int(cells.clipped.sum())
        return cells

    def _refuse(self, column: str, wrong: dict[str, Mask]) -> None:
        for words, mask in wrong.items():
            if mask.any():
                rows = np.flatnonzero(mask)
                named = ", ".join(str(self.rows + row + 1) for row in rows[:_ROWS_NAMED].tolist())
                raise DataError(
                    f"{self.name}: column {column!r} {words} in {len(rows)} of rows {self.rows + 1} to "
                    f"{self.rows + len(mask)}: row {named}{', …' if len(rows) > _ROWS_NAMED else ''}",
                    "`dresfl schema check` lists every problem; mend the rows, or agree on another schema",
                )


def wrong_cells(cells: Cells, column: Column) -> dict[str, Mask]:
    """The masks of cells that a column refuses, by what is wrong with them."""
    refused = dict(cells.wrong)
    if column.missing == "refuse" and cells.missing is not None:
        refused["is missing"] = cells.missing
    return refused


def examined(schema: Schema, batch: Any) -> Iterator[tuple[str, str, Mask, bool]]:
    """Every (column, what, mask, is it a problem) of a batch. `schema check` runs it; nothing is refused."""
    for column in schema.columns:
        if column.name not in batch.schema.names:
            continue
        array = batch.column(column.name)
        if column.kind == "category":
            _, missing, unknown = read_words(array, column.vocabulary, column.other)
            yield column.name, "is not in the vocabulary", unknown, True
            yield column.name, "is missing", missing, column.missing == "refuse"
            continue
        yield from _examined_numbers(column, array)
    label = schema.label
    if label.column not in batch.schema.names:
        return
    if schema.task == "regression":
        yield from _examined_numbers(label.as_number, batch.column(label.column))
        return
    _, missing, unknown = read_words(batch.column(label.column), label.classes)
    yield label.column, "is no class of the label", unknown, True
    yield label.column, "is missing", missing, True


def _examined_numbers(column: Column, array: Any) -> Iterator[tuple[str, str, Mask, bool]]:
    cells = read_numbers(array, column)
    for words, mask in cells.wrong.items():
        yield column.name, words, mask, True
    if cells.missing is not None:
        yield column.name, "is missing", cells.missing, column.missing == "refuse"
    if cells.clipped is not None:
        yield column.name, "is clipped", cells.clipped, False
