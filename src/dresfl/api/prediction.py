"""Predictions for a file of rows, as columns of a table: what `dresfl predict` prints and writes."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dresfl.errors import UsageError
from dresfl.files import write_atomic
from dresfl.tables.reading import library

from .evaluation import ClassReport, NumberReport, class_report, number_report, shares
from .model import Model
from .row_files import row_batches

PREDICTION = "prediction"
_ENDINGS = (".csv", ".parquet", ".npz")


@final
@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of each row of a file. `predict_file` makes it.

    >>> import dresfl as dr
    >>> network = dr.mlp((2, 2), input_bits=4, weight_bits=10)
    >>> model = dr.simulate(network, [([[1.0, 0.0]], [1])] * 3, rounds=2, classes=["no", "yes"]).model
    >>> Predictions(model, np.array([[0.25, 0.75]])).columns(scores=True)
    {'prediction': ['yes'], 'score no': [0.25], 'score yes': [0.75]}
    """

    model: Model
    outputs: npt.NDArray[np.float64]  # (m,C); of a regression in the target's unit
    kept: dict[str, list[Any]] = field(default_factory=dict)  # columns of the file that were asked for
    report: ClassReport | NumberReport | None = None  # where the file says what is true

    @property
    def places(self) -> npt.NDArray[Any]:
        """The class of each row (m,) as its place, or the predicted numbers (m,) or (m,C)."""
        if self.model.task == "regression":
            return self.outputs[:, 0] if self.outputs.shape[1] == 1 else self.outputs
        if self.outputs.shape[1] == 1:
            return (self.outputs[:, 0] > 0).astype(np.int64)
        places: npt.NDArray[np.int64] = self.outputs.argmax(1)
        return places

    def columns(self, scores: bool = False) -> dict[str, list[Any]]:
        """The table: kept columns, the prediction by its name, and with `scores` the share of each class."""
        found = dict(self.kept)
        places = self.places
        if places.ndim > 1:
            return found | {f"{PREDICTION} {target}": places[:, target].tolist() for target in range(places.shape[1])}
        names, regression = self.model.classes, self.model.task == "regression"
        found[PREDICTION] = [names[place] for place in places.tolist()] if names else places.tolist()
        if scores and regression:
            raise UsageError("scores are of classes, and the model predicts numbers", "leave out --scores")
        if scores:
            each = shares(self.outputs)
            names = names or tuple(map(str, range(each.shape[1])))
            found |= {f"score {name}": each[:, place].tolist() for place, name in enumerate(names)}
        return found


def predict_file(
    model: Model, path: str | Path, *, keep: Sequence[str] = (), outcomes: bool | None = False, label: str = ""
) -> Predictions:
    """Predict every row of a file: .csv, .tsv, .parquet, .arrow, .feather or .npz. A label column is not needed.

    keep: columns of the file to carry along, such as a number of each row. outcomes: also read what is true of each
    row, and measure the model by it; None: only where a NumPy archive has it. label: see `row_batches`.

    >>> import dresfl as dr, tempfile
    >>> network = dr.mlp((2, 2), input_bits=4, weight_bits=10)
    >>> model = dr.simulate(network, [([[1.0, 0.0], [0.0, 1.0]], [0, 1])] * 3, rounds=20, batch_size=4).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(folder + "/rows.npz", inputs=[[0.0, 1.0], [1.0, 0.0]])
    ...     dr.predict_file(model, folder + "/rows.npz").columns()
    {'prediction': [1, 0]}
    """
    parts, truth = [], []
    kept: dict[str, list[Any]] = {name: [] for name in keep}
    if PREDICTION in kept:
        raise UsageError(f"a column called {PREDICTION!r} cannot be kept", "rename it in the file")
    for batch in row_batches(model, Path(path), outcomes=outcomes, label=label, keep=keep):
        parts.append(model.in_units(model.decision_function(batch.inputs)))
        if batch.outcomes is not None:
            truth.append(batch.outcomes)
        for name in kept:
            kept[name] += batch.kept[name]
    outputs = np.concatenate(parts)
    report: ClassReport | NumberReport | None = None
    if truth and model.task == "regression":
        unit = "" if model.schema is None else model.schema.label.unit
        report = number_report(outputs, np.concatenate(truth), unit)
    elif truth:
        report = class_report(outputs, np.concatenate(truth), model.classes)
    return Predictions(model, outputs, kept, report)


def check_table_path(path: Path) -> None:
    """Refuse an ending that `write_table` does not know."""
    if path.suffix.lower() not in _ENDINGS:
        raise UsageError(f"{path}: predictions are written to {', '.join(_ENDINGS)}", "choose another ending")


def write_table(path: Path, columns: dict[str, list[Any]]) -> None:
    """Write columns as .csv, .parquet or .npz, whole or not at all."""
    check_table_path(path)
    buffer = io.BytesIO()
    if path.suffix.lower() == ".csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        buffer.write(text.getvalue().encode())
    elif path.suffix.lower() == ".parquet":
        library("pyarrow.parquet").write_table(library("pyarrow").table(columns), buffer)
    else:
        np.savez(buffer, **{name: np.array(values) for name, values in columns.items()})  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())
