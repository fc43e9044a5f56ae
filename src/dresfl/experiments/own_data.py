"""A configuration's own files -> a split and each client's rows: a simulated federation on real tables or images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from dresfl.data import DataSet, Split
from dresfl.data.partition import Rows
from dresfl.errors import DataError, UsageError
from dresfl.tables import Schema, image_classes, load_schema, read_data_set, read_image_folder, split_by_client

from .config import RunConfig


@final
@dataclass(frozen=True, eq=False)
class OwnData:
    """What `[data] files` hold. parts: each client's rows of the training set; None: they are still to be dealt."""

    split: Split
    classes: tuple[str, ...]
    schema: Schema | None
    parts: list[Rows] | None


def load_own_data(config: RunConfig, folder: Path | None) -> OwnData:
    """Read a configuration's files, which stand below `folder`, or else below the folder where the command was given.

    Without a test file each client's rows are split: a share of them, drawn with the run's seed, are test rows.
    """
    paths = [_place(file, folder) if file else None for file in config.data.files]
    given = [path for path in paths if path is not None]
    if not given:
        raise UsageError("data.files names no file", 'an empty one, "", is a client without rows')
    test = _place(config.data.test_file, folder) if config.data.test_file else None
    if all(path.is_dir() for path in given):
        return _images(config, paths, given, test)
    if not config.data.schema:
        raise UsageError("data.files are tables, and data.schema is empty", "dresfl schema init FILE drafts one")
    schema = load_schema(_place(config.data.schema, folder))
    if config.data.client_column:
        one = split_by_client(given[0], schema, config.data.client_column)
        _check_clients(config, len(one.names), f"{given[0]} has rows of")
        data = one.data
        parts: list[Rows] | None = one.parts
    else:
        data, parts = _joined(config, [None if path is None else read_data_set(path, schema) for path in paths])
    tested = None if test is None else read_data_set(test, schema)
    split, kept = _split(config, data, parts, tested)
    return OwnData(split, schema.label.classes, schema, kept)


def _place(file: str, folder: Path | None) -> Path:
    return Path(file) if folder is None else folder / file


def _images(config: RunConfig, paths: Sequence[Path | None], given: Sequence[Path], test: Path | None) -> OwnData:
    if config.data.schema or config.data.client_column:
        raise UsageError("folders of images have no schema and no client_column", "leave them out")
    classes, size = image_classes([*given, *([test] if test else [])]), config.data.image_size
    found = [None if path is None else read_image_folder(path, classes, image_size=size) for path in paths]
    tested = None if test is None else read_image_folder(test, classes, image_size=size)
    channels = max(part.input_shape[2] for part in [*found, tested] if part is not None)
    data, parts = _joined(config, [None if part is None else _with_channels(part, channels) for part in found])
    split, kept = _split(config, data, parts, None if tested is None else _with_channels(tested, channels))
    return OwnData(split, classes, None, kept)


def _with_channels(data: DataSet, channels: int) -> DataSet:
    """Gray images as coloured ones, if those of another client are."""
    if data.input_shape[2] == channels:
        return data
    return replace(data, inputs=np.repeat(data.inputs, channels, axis=3))


def _joined(config: RunConfig, found: Sequence[DataSet | None]) -> tuple[DataSet, list[Rows] | None]:
    """The clients' rows as one data set, and whose they are; None has no rows. One file is dealt out later."""
    given = [part for part in found if part is not None]
    if len(found) == 1 and config.federation.num_clients != 1:
        return given[0], None
    _check_clients(config, len(found), "data.files names")
    if len({part.input_shape for part in given}) > 1:
        raise DataError("the images of the clients have several sizes", "give data.image_size, for example 64")
    ends = np.cumsum([0 if part is None else part.num_rows for part in found]).tolist()
    parts = [np.arange(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    inputs = np.concatenate([part.inputs for part in given])
    labels = np.concatenate([part.labels for part in given])
    real = [part.targets for part in given if part.targets is not None]
    return replace(given[0], inputs=inputs, labels=labels, targets=np.concatenate(real) if real else None), parts


def _check_clients(config: RunConfig, found: int, words: str) -> None:
    wanted = config.federation.num_clients
    if found != wanted:
        raise UsageError(
            f"{words} {found} clients, but federation.num_clients is {wanted}",
            f"set num_clients = {found} in [federation]; one file alone is dealt out by data.partition",
        )


def _split(
    config: RunConfig, data: DataSet, parts: list[Rows] | None, test: DataSet | None
) -> tuple[Split, list[Rows] | None]:
    """Training and test rows, and each client's rows of the training set."""
    data = replace(data, name=Path(config.name).name)
    if test is not None:
        return Split(data, replace(test, name=data.name)), parts
    held_out = _drawn(parts if parts is not None else [np.arange(data.num_rows)], config.data.test_share, config.seed)
    is_test = np.zeros(data.num_rows, np.bool_)
    is_test[held_out] = True
    place = np.cumsum(~is_test) - 1  # of a row among the training rows
    kept = None if parts is None else [place[rows[~is_test[rows]]] for rows in parts]
    return Split(data.rows(np.flatnonzero(~is_test)), data.rows(np.flatnonzero(is_test))), kept


def _drawn(parts: Sequence[Rows], share: float, seed: int) -> Rows:
    """A share of each client's rows; every client that has rows keeps at least one."""
    generator = np.random.default_rng(seed)
    counts = [max(0, min(len(rows) - 1, round(share * len(rows)))) for rows in parts]
    if not any(counts):
        raise DataError("no client has rows enough for a test set", "give data.test_file, or a larger data.test_share")
    return np.concatenate(
        [generator.permutation(rows)[:count] for rows, count in zip(parts, counts, strict=True)]
    ).astype(np.int64)
