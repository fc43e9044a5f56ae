"""Whole tables as rows for training: as a data set, by client, or straight as the integers that a client shares."""

import dataclasses
from collections.abc import Iterator
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from dresfl.data import DataSet
from dresfl.errors import DataError, UsageError
from dresfl.kernels.threads import torch_threads
from dresfl.quantize import Quantizer

from .columns import as_text
from .encoding import Encoder
from .reading import Table, batches, num_rows, source_name
from .schema import Schema

Rows = npt.NDArray[np.int64]


def read_data_set(source: Table, schema: Schema, name: str = "") -> DataSet:
    """A table's rows as its schema encodes them. Whoever holds the table runs this.

    source: a path (.csv, .tsv, .parquet, .arrow, .feather, .npz), a pandas DataFrame or a pyarrow Table.

    >>> import pyarrow as pa
    >>> from dresfl.tables import Column, Label, Schema
    >>> schema = Schema("classification", (Column("age", "number", minimum=0, maximum=100),), Label("ill", ("n", "y")))
    >>> rows = read_data_set(pa.table({"ill": ["n", "y"], "age": [25, 75]}), schema)
    >>> rows.inputs.tolist(), rows.labels.tolist()
    ([[-0.5], [0.5]], [0, 1])
    """
    called = name or source_name(source)
    encoder = Encoder(schema, called)
    parts = [(encoder.inputs(batch), _outcome(encoder, batch)) for batch in _numbered(encoder, source)]
    if not parts:
        raise DataError(f"{called} has no rows", "give at least one row after the header")
    return _data_set(parts, schema, called)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ClientRows:
    """The rows of one table that several clients hold: `parts[i]` are those of the client `names[i]`."""

    data: DataSet
    names: tuple[str, ...]
    parts: list[Rows]


def split_by_client(source: Table, schema: Schema, client_column: str) -> ClientRows:
    """The rows of a table in which a column says whose they are. Clients are in the order of their names."""
    if client_column in Encoder(schema).columns:
        raise UsageError(
            f"the column {client_column!r} says whose a row is, and the schema has it as an input or label",
            "take it out of the schema",
        )
    encoder = Encoder(schema, source_name(source))
    parts, owners = [], []
    for batch in _numbered(encoder, source, client_column):
        parts.append((encoder.inputs(batch), _outcome(encoder, batch)))
        owners += as_text(batch.column(client_column)).to_pylist()
    if not parts:
        raise DataError(f"{encoder.name} has no rows", "give at least one row after the header")
    if None in owners:
        raise DataError(
            f"{encoder.name}: column {client_column!r} is missing in {owners.count(None)} rows, the first of which is "
            f"row {owners.index(None) + 1}",
            "every row belongs to a client",
        )
    names, indices = np.unique(np.array(owners), return_inverse=True)
    rows = [np.flatnonzero(indices == client) for client in range(len(names))]
    return ClientRows(_data_set(parts, schema, encoder.name), tuple(names.tolist()), rows)


def read_integers(source: Table, schema: Schema, quantizer: Quantizer) -> tuple[torch.Tensor, torch.Tensor]:
    """A table's inputs as the integers (m,F) that a client shares, and its labels (m,) or targets (m,1).

    The reals of one batch at a time are in memory. An integer takes 2 bytes if the schema bounds every input, else 4.
    """
    encoder = Encoder(schema, source_name(source))
    dtype = _integer_type(schema, quantizer)
    known = num_rows(source)
    integers: list[torch.Tensor] = []
    outcomes: list[torch.Tensor] = []
    if known:  # what is to be filled is there at once, and is in memory as far as it is filled
        integers.append(torch.empty(known, schema.num_features, dtype=dtype))
        outcomes.append(torch.empty((known, *_outcome_shape(schema)), dtype=_outcome_type(schema)))
    with torch_threads(1):  # a batch is too small for more: they would wait for each other after every operation
        for batch in _numbered(encoder, source):
            rows, outcome = torch.from_numpy(encoder.inputs(batch)), torch.from_numpy(_outcome(encoder, batch))
            if known:
                here = slice(encoder.rows, encoder.rows + len(rows))
                quantizer.integers(rows, out=integers[0][here])
                outcomes[0][here] = outcome
            else:
                integers.append(quantizer.integers(rows, out=torch.empty(rows.shape, dtype=dtype)))
                outcomes.append(outcome)
    if not outcomes:
        raise DataError(f"{encoder.name} has no rows", "give at least one row after the header")
    return _joined(integers), _joined(outcomes)


def _outcome_shape(schema: Schema) -> tuple[int, ...]:
    return () if schema.task == "classification" else (1,)


def _outcome_type(schema: Schema) -> torch.dtype:
    return torch.int64 if schema.task == "classification" else torch.float32


def _integer_type(schema: Schema, quantizer: Quantizer) -> torch.dtype:
    """The narrower of int16 and int32 that holds the integers of every row that the schema allows."""
    bound = schema.input_bound
    fits = bound is not None and (bound + abs(quantizer.shift)) * 2.0**quantizer.input_bits < 2**15 - 1
    return torch.int16 if fits else torch.int32


def _joined(blocks: list[torch.Tensor]) -> torch.Tensor:
    """Blocks of rows as one, each freed as soon as it is copied."""
    if len(blocks) == 1:
        return blocks[0]
    out = torch.empty((sum(map(len, blocks)), *blocks[0].shape[1:]), dtype=blocks[0].dtype)
    place = 0
    blocks.reverse()
    while blocks:
        block = blocks.pop()
        out[place : place + len(block)] = block
        place += len(block)
    return out


def _numbered(encoder: Encoder, source: Table, *more: str) -> Iterator[Any]:
    """The batches of a table with the columns of a schema, and with more; the encoder knows their rows' numbers."""
    for batch in batches(source, [*encoder.columns, *more]):
        yield batch
        encoder.next_batch(batch)


def _outcome(encoder: Encoder, batch: Any) -> npt.NDArray[Any]:
    """The labels (B,) of a batch, or in a regression its targets (B,1)."""
    if encoder.schema.task == "classification":
        return encoder.labels(batch)
    return encoder.targets(batch)


def _data_set(parts: list[tuple[npt.NDArray[np.float32], npt.NDArray[Any]]], schema: Schema, name: str) -> DataSet:
    inputs = np.concatenate([inputs for inputs, _ in parts])
    outcome = np.concatenate([outcome for _, outcome in parts])
    if schema.task == "classification":
        return DataSet(inputs, outcome, schema.num_classes, name)
    return DataSet.regression(inputs, outcome, name)
