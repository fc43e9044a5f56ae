"""Hospitals with tables of their own: the estimators over nine skewed clients, beside scikit-learn on pooled rows.

Each split of a table draws its test rows anew. The rest is dealt to nine hospitals by the value of one column, in parts
of unequal size, so hospitals differ in inputs and in classes or targets. Three hospitals miss 99 % of the rounds and
the others 5 %. The settings are chosen for each split by cross-validation among its training rows alone. Test rows are
looked at once, by the model that the coded protocol then trains.
"""

import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dresfl.errors import DataError
from dresfl.estimators import DresClassifier, DresRegressor
from dresfl.files import write_atomic

from .bench.run import machine

NAME = "hospitals.jsonl"
COLUMNS = ("table", "splits", "score", "beside", "its score", "mean gap", "standard error", "largest gap")
_HOSPITALS, _ABSENT, _FOLDS = 9, 3, 3
_AWAY, _SOMETIMES = 0.99, 0.05  # how often an absent hospital misses a round, and any other one
_TEST_SHARE = 0.25
_FIRST_SPLIT = 2000  # splits below it were looked at while the candidates were chosen
# one square layer with some weight decays, or a linear model; each with columns clipped early or late
_CANDIDATES: tuple[dict[str, Any], ...] = tuple(
    {**model, "clip": clip}
    for clip in (2.0, 3.0)
    for model in (
        {"weight_decay": 1.0},
        {"weight_decay": 2.0},
        {"weight_decay": 4.0},
        {"hidden_layer_sizes": (), "learning_rate": 0.05, "weight_decay": 0.0},
    )
)

Record = dict[str, Any]
Array = npt.NDArray[Any]


@final
@dataclass(frozen=True)
class Table:
    """A table, the column by which hospitals differ, and what it is compared with. Scores: accuracy, or R²."""

    name: str
    load: Callable[..., tuple[Array, Array]]
    key_column: int
    estimator: Callable[..., Any]
    classifies: bool
    pooled: tuple[str, ...]


TABLES = (
    Table("breast cancer", load_breast_cancer, 0, DresClassifier, True, ("LogisticRegression", "MLPClassifier")),
    Table("diabetes", load_diabetes, 2, DresRegressor, False, ("Ridge",)),
)


def hospital_of(column: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The hospital of each row by the value of a column, smallest values to hospital 0. Hospital h gets h + 1 parts.

    >>> hospital_of(np.arange(45.0)).tolist()[:6], np.bincount(hospital_of(np.arange(45.0))).tolist()
    ([0, 1, 1, 2, 2, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    sizes = np.arange(1, _HOSPITALS + 1)
    ends = np.ceil(np.cumsum(sizes) / sizes.sum() * len(column)).astype(np.int64)
    ranks = np.argsort(np.argsort(column, kind="stable"), kind="stable")
    return np.searchsorted(ends, ranks, side="right")


def play(table: Table, split: int, rounds: int = 200) -> Record:
    """One split of a table: choose settings, train by the coded protocol, score on its test rows."""
    start = time.perf_counter()
    inputs, wanted = table.load(return_X_y=True)
    rows, tested = train_test_split(
        np.arange(len(inputs)),
        test_size=_TEST_SHARE,
        random_state=_FIRST_SPLIT + split,
        stratify=wanted if table.classifies else None,
    )
    x, y, keys = inputs[rows], wanted[rows], hospital_of(inputs[rows, table.key_column])
    absent = np.sort(np.random.default_rng(_FIRST_SPLIT + split).choice(_HOSPITALS, _ABSENT, replace=False))
    rates = tuple(_AWAY if hospital in absent else _SOMETIMES for hospital in range(_HOSPITALS))
    fixed = {"rounds": rounds, "random_state": split}
    chosen = _choose(table, x, y, keys, fixed)
    found = table.estimator(**fixed, **chosen, dropout_rates=rates).fit(x, y, clients=keys)
    return {
        "table": table.name,
        "split": split,
        "rounds": rounds,
        "chosen": chosen,
        "score": found.score(inputs[tested], wanted[tested]),
        "pooled": {name: _pooled(name, x, y).score(inputs[tested], wanted[tested]) for name in table.pooled},
        "test_rows": len(tested),
        "hospital_rows": np.bincount(keys).tolist(),
        "absent": absent.tolist(),
        "engine": found.summary_.engine,
        "skipped_rounds": found.summary_.skipped_rounds,
        "weights_sha256": found.summary_.weights_sha256,
        "machine": machine(),
        "seconds": round(time.perf_counter() - start, 1),
    }


def _choose(table: Table, x: Array, y: Array, keys: Array, fixed: dict[str, Any]) -> dict[str, Any]:
    """The candidate of the best mean score on validation rows. Engine direct finds the weights of the coded one."""
    kind = StratifiedKFold if table.classifies else KFold
    folds = list(kind(_FOLDS, shuffle=True, random_state=0).split(x, y))

    def score(candidate: dict[str, Any]) -> float:
        estimator = table.estimator(**fixed, **candidate, engine="direct")
        return float(np.mean([estimator.fit(x[a], y[a], clients=keys[a]).score(x[b], y[b]) for a, b in folds]))

    return max(_CANDIDATES, key=score)


def _pooled(name: str, x: Array, y: Array) -> Any:
    """scikit-learn's estimator with its defaults, on all rows in one place."""
    known = {
        "LogisticRegression": LogisticRegression(max_iter=1000),
        "MLPClassifier": MLPClassifier(max_iter=1000, random_state=0),
        "Ridge": Ridge(),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make_pipeline(StandardScaler(), known[name]).fit(x, y)


# -- records ----------------------------------------------------------------------------------------------------------


def read_records(out: Path) -> list[Record]:
    """The records of a folder, none if it has no such file."""
    path = out / NAME
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}", "move the file away and run again") from error


def measure(out: Path, splits: int, rounds: int, note: Callable[[str], None]) -> list[Record]:
    """Play the splits that have no line yet. A stopped run goes on with the same command."""
    out.mkdir(parents=True, exist_ok=True)
    records = read_records(out)
    done = {(record["table"], record["split"], record["rounds"]) for record in records}
    for table in TABLES:
        for split in range(splits):
            if (table.name, split, rounds) not in done:
                records.append(play(table, split, rounds))
                write_atomic(out / NAME, "".join(json.dumps(record) + "\n" for record in records).encode())
                note(f"{table.name}, split {split}: {records[-1]['score']:.3f}")
    return records


def results(records: Sequence[Record]) -> list[dict[str, Any]]:
    """For each table and each estimator on pooled rows: mean scores, the mean gap, its standard error, the largest."""
    found: list[dict[str, Any]] = []
    for table in TABLES:
        own = [record for record in records if record["table"] == table.name]
        for name in table.pooled if own else ():
            gaps = [record["pooled"][name] - record["score"] for record in own]
            error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else None
            found.append(
                {
                    "table": table.name,
                    "splits": len(own),
                    "score": statistics.mean(record["score"] for record in own),
                    "beside": name,
                    "pooled_score": statistics.mean(record["pooled"][name] for record in own),
                    "mean_gap": statistics.mean(gaps),
                    "standard_error": error,
                    "largest_gap": max(gaps),
                }
            )
    return found


def rows(records: Sequence[Record]) -> list[list[str]]:
    """`results` as text, in the order of COLUMNS: accuracies in percent and points, R² as it is."""
    found: list[list[str]] = []
    for line in results(records):
        percent = line["beside"] != "Ridge"

        def show(value: float | None, sign: str = "", percent: bool = percent) -> str:
            if value is None:
                return "one split"
            return f"{100 * value:{sign}.2f}" if percent else f"{value:{sign}.3f}"

        unit = "accuracy, %" if percent else "R²"
        found.append(
            [
                f"{line['table']} ({unit})",
                str(line["splits"]),
                show(line["score"]),
                line["beside"],
                show(line["pooled_score"]),
                show(line["mean_gap"], "+"),
                show(line["standard_error"]),
                show(line["largest_gap"], "+"),
            ]
        )
    return found


def markdown(records: Sequence[Record]) -> str:
    """The table of the page docs/results/hospitals.md."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows(records)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
