"""What a process keeps between two runs on the same data: reading and transforming features takes longer than a run."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import final

import numpy as np

from dresfl.data import Split
from dresfl.experiments.comparison import RealRows
from dresfl.experiments.prepare import ClientData, Prepared, Rows, load_split, prepare
from dresfl.quantize import Quantizer

from .matrix import Cell

_HELD_OUT_EVERY = 10


@final
class DataKeeper:
    """The data set of the run before, ready for the next one. A process has one keeper, and it keeps one data set.

    shared: where processes share the rows of extracted features (see `extract_features`); None: each has its own.
    several: the data (`Cell.data_key`) that more than one cell reads, so that its rows are worth a place there.
    """

    def __init__(
        self, folder: Path | None, shared: Path | None = None, several: Collection[tuple[object, ...]] = ()
    ) -> None:
        self._folder, self._shared, self._several = folder, shared, several
        self._key: tuple[object, ...] = ()
        self._split: Split | None = None
        self._integers: dict[Quantizer, ClientData] = {}
        self._parts: bytes = b""  # of the clients that the integers are dealt to
        self.real_rows = RealRows()

    def prepared(self, cell: Cell) -> Prepared:
        """What a cell starts from. A trial of tuning is measured on rows held out of the training set."""
        if self._split is None or self._key != cell.data_key:
            self._split = None  # first: both may not fit
            self._integers = {}
            self.real_rows.release()
            shared = self._shared if cell.data_key in self._several else None
            self._split, self._key = load_split(cell.config, self._folder, shared), cell.data_key
        if cell.is_dresfl:
            self.real_rows.release()
        held_out = held_out_rows(self._split.train.labels) if cell.trial else None
        made = prepare(cell.config, self._folder, split=self._split, held_out=held_out)
        parts = b"".join(len(rows).to_bytes(8, "little") + rows.tobytes() for rows in made.parts)
        if parts != self._parts:
            self._integers = {}
            self._parts = parts
        return dataclasses.replace(made, kept=self._integers)


def held_out_rows(labels: Rows) -> Rows:
    """Every tenth training row of each class, in ascending order: what tuning measures on.

    >>> held_out_rows(np.array([0] * 10 + [1] * 21)).tolist()
    [9, 19, 29]
    """
    found = [np.flatnonzero(labels == label)[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY] for label in np.unique(labels)]
    return np.sort(np.concatenate(found))
