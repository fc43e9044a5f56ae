"""A file of rows -> what a model takes, batch after batch: for predictions, and for measuring a model.

A model that carries a schema reads any table of it. Without one it reads NumPy archives, and tables of plain numbers:
its feature names choose the columns; if it has none, all columns count, in their order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dresfl.data import read_npz_arrays
from dresfl.errors import DataError, UsageError
from dresfl.tables import Column, Encoder, Label, Schema, batches
from dresfl.tables.reading import column_names

from .model import Model
from .rows import to_inputs


@final
@dataclass(frozen=True, eq=False)
class RowBatch:
    """Some rows of a file, in order."""

    inputs: npt.NDArray[np.float32]  # (B,F)
    outcomes: npt.NDArray[Any] | None  # classes (B,) as places, or targets (B,C) in their unit; None: not wanted
    kept: dict[str, list[Any]] = field(default_factory=dict)  # other columns that were asked for


def row_batches(
    model: Model, path: Path, *, outcomes: bool | None = False, label: str = "", keep: Sequence[str] = ()
) -> Iterator[RowBatch]:
    """The rows of a file as a model takes them.

    outcomes: read what really came of each row, too; None: only where an archive has it. label: the column that says
    it; the schema's own, or `label`, if empty. keep: columns to carry along as they are.
    """
    schema = model.schema
    if schema is None and path.suffix.lower() == ".npz" and "inputs" in (arrays := read_npz_arrays(path)):
        if keep or label:
            raise UsageError("--keep and --label are of tables, and this is a NumPy archive", "leave them out")
        yield _archive(model, path, arrays, outcomes)
        return
    if schema is None and path.suffix.lower() == ".npz":
        read_npz_arrays(path, "inputs")  # says what is missing
    if schema is None:
        schema = _plain_schema(model, path, label or "label")
    elif label and label != schema.label.column:
        raise UsageError(f"the model's label is the column {schema.label.column!r}", "leave out --label")
    yield from _table(model, path, schema, bool(outcomes), keep)


def _table(model: Model, path: Path, schema: Schema, outcomes: bool, keep: Sequence[str]) -> Iterator[RowBatch]:
    encoder = Encoder(schema, str(path))
    wanted = [column.name for column in schema.columns] + [schema.label.column] * outcomes
    rows = 0
    for batch in batches(path, [*wanted, *(name for name in keep if name not in wanted)]):
        found: npt.NDArray[Any] | None = None
        if outcomes and schema.task == "regression":
            found = schema.real_targets(encoder.targets(batch))
        elif outcomes:
            found = encoder.labels(batch)
        kept = {name: batch.column(name).to_pylist() for name in keep}
        yield RowBatch(to_inputs(encoder.inputs(batch), model.network, str(path)), found, kept)
        encoder.next_batch(batch)
        rows += batch.num_rows
    if not rows:
        raise DataError(f"{path} has no rows", "give at least one row after the header")


def _plain_schema(model: Model, path: Path, label: str) -> Schema:
    """A schema of unscaled numbers, for a model that has none."""
    names = model.feature_names or tuple(name for name in column_names(path) if name != label)
    if len(names) != model.network.input_size:
        raise DataError(
            f"{path} has {len(names)} columns beside {label!r}, but the model takes {model.network.input_size} inputs",
            "name the column of the outcome with --label, and leave out columns that are no inputs",
        )
    columns = tuple(Column(name, "number", mean=0.0, spread=1.0) for name in names)
    if model.task == "regression":
        return Schema("regression", columns, Label(label, mean=0.0, spread=1.0))
    classes = model.classes or tuple(map(str, range(model.num_classes)))
    return Schema("classification", columns, Label(label, classes=classes))


def _archive(model: Model, path: Path, arrays: dict[str, npt.NDArray[Any]], outcomes: bool | None) -> RowBatch:
    inputs = to_inputs(arrays["inputs"], model.network, str(path))
    key = "targets" if model.task == "regression" else "labels"
    if outcomes is False or (outcomes is None and key not in arrays):
        return RowBatch(inputs, None)
    if key not in arrays:
        raise DataError(f"cannot read rows from {path}: it has no {key}", f"save an array `{key}` beside `inputs`")
    found = arrays[key]
    if found.dtype.kind not in ("fiu" if key == "targets" else "iu"):
        raise DataError(f"{path}: {key} have type {found.dtype}", "classes are integers from 0, targets are numbers")
    return RowBatch(inputs, found.astype(np.float64 if key == "targets" else np.int64))
