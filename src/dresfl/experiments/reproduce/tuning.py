"""Tuning: the same number of settings for every method, measured on training rows that no client gets.

A trial is a cell whose record lies below OUT/tuning; a finished one is never run again. OUT/tuning.jsonl has one line a
trial, OUT/tuned.toml the best setting of each data set and method, as `matrix` takes it.
"""

import dataclasses
import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from dresfl.errors import DresError, UsageError
from dresfl.experiments.published import LIKE, METHODS, recipes
from dresfl.files import write_atomic

from .matrix import Cell, Tuned, baseline_settings, feasible_draws, recipe, seeded
from .records import Record, read_record

SEED = 100  # of every trial: none of the table's
_PART_OF_THE_ROUNDS = 3

Grid = Mapping[str, Sequence[Any]]


def tuned_methods() -> list[str]:
    """The methods that are tuned, in the table's order."""
    return [method for method in METHODS if method in _grids()]


def grid(dataset: str, method: str) -> list[dict[str, Any]]:
    """The settings that are tried for a method on a data set: {dotted key: value}.

    >>> len(grid("mnist", "dresfl")) == len(grid("mnist", "like-scaffold")) == 6
    True
    """
    keys: Grid = _grids().get(dataset, {}).get(method) or _grids()[method]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*keys.values())]


def _grids() -> dict[str, Any]:
    return tomllib.loads((resources.files(__package__) / "tune.toml").read_text(encoding="utf-8"))


def trials(
    datasets: Sequence[str],
    methods: Sequence[str],
    chosen: Tuned,
    *,
    rounds: int = 0,
    engine: str = "",
    device: str = "",
) -> list[Cell]:
    """The trials of some methods, a cell each; `rounds` 0: a third of the recipe's.

    chosen: what was chosen before. Methods like for like take the weight decay of `dresfl` from it.
    """
    cells: list[Cell] = []
    for dataset, method in itertools.product(datasets, methods):
        usual = recipe(dataset, method, tuned={})
        length = rounds or max(1, usual.rounds // _PART_OF_THE_ROUNDS)
        draw, passed = feasible_draws(1, usual.federation.num_clients)[0]
        for setting in grid(dataset, method):
            changes = {dataset: {method: _nested({**_of_ours(chosen, dataset, method), **setting})}}
            config = recipe(dataset, method, rounds=length, engine=engine, device=device, tuned=changes)
            config = dataclasses.replace(config, evaluate_every=length, checkpoint_every=length)
            name = "-".join(f"{key.rpartition('.')[2]}-{value}" for key, value in setting.items())
            beside = baseline_settings(dataset, method, changes)
            cells.append(
                Cell(dataset, method, SEED, draw, passed, seeded(config, SEED, draw), baseline=beside, trial=name)
            )
    return cells


def _of_ours(chosen: Tuned, dataset: str, method: str) -> dict[str, Any]:
    """What a method takes over from what was chosen for `dresfl`."""
    ours = chosen.get(dataset, {}).get("dresfl", {}).get("optimizer", {}) if method.startswith(LIKE) else {}
    return {"optimizer.weight_decay": ours["weight_decay"]} if "weight_decay" in ours else {}


def _nested(setting: Mapping[str, Any]) -> dict[str, Any]:
    """{"optimizer.learning_rate": 1} -> {"optimizer": {"learning_rate": 1}}."""
    table: dict[str, Any] = {}
    for key, value in setting.items():
        where, _, name = key.rpartition(".")
        (table.setdefault(where, {}) if where else table)[name] = value
    return table


def waves(methods: Sequence[str]) -> list[list[str]]:
    """Methods that can be tuned together, wave by wave: those like for like after `dresfl`, which they copy.

    >>> waves(["dresfl", "like-fedavg"])
    [['dresfl'], ['like-fedavg']]
    """
    first = [method for method in methods if not method.startswith(LIKE)]
    return [wave for wave in (first, [method for method in methods if method not in first]) if wave]


def write_choices(out: Path) -> Tuned:
    """Write OUT/tuning.jsonl and OUT/tuned.toml from the trials that have run; return what is chosen."""
    lines = sorted((_line(path) for path in (out / "tuning").glob("*/*/*.jsonl")), key=_place)
    write_atomic(out / "tuning.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    write_atomic(out / "tuned.toml", choices_text(lines).encode())
    return read_choices(out / "tuned.toml")


def read_choices(path: Path) -> Tuned:
    """What tuning chose, from its file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}", "make it with `dresfl reproduce tune`") from error


def _line(path: Path) -> dict[str, Any]:
    """What tuning.jsonl says of a trial."""
    record = read_record(path)
    dataset, method = record.dataset, record.method
    setting = next((s for s in grid(dataset, method) if _matches(s, record)), None)
    if setting is None:
        raise DresError(f"{path} is no trial of tune.toml as it is today", "delete it, or choose another --out")
    kept = ("rounds", "seed", "train_rows", "test_rows", "data_sha256", "device", "commit")
    return {
        "dataset": dataset,
        "method": method,
        "setting": {**_taken_over(record), **setting},
        "accuracy": record.result["test_accuracy"],
        "seconds": record.result["seconds"],
        **{"held_out_rows" if key == "test_rows" else key: record.header.get(key) for key in kept},
        **({"error": record.result["error"]} if "error" in record.result else {}),
    }


def _matches(setting: Mapping[str, Any], record: Record) -> bool:
    tables = {**record.header["config"], "baseline": record.header.get("baseline")}
    return all(_at(tables, key) == value for key, value in setting.items())


def _taken_over(record: Record) -> dict[str, Any]:
    if not record.method.startswith(LIKE):
        return {}
    return {"optimizer.weight_decay": record.header["config"]["optimizer"]["weight_decay"]}


def _at(table: Any, key: str) -> Any:
    for name in key.split("."):
        table = table[name]
    return table


def _place(line: Mapping[str, Any]) -> tuple[int, ...]:
    """Where a trial stands: by data set, method, and its place in the grid."""
    setting = {key: line["setting"][key] for key in grid(line["dataset"], line["method"])[0]}
    place = grid(line["dataset"], line["method"]).index(setting)
    return recipes().index(line["dataset"]), METHODS.index(line["method"]), place


def choices_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """The text of tuned.toml for the lines of tuning.jsonl.

    The best is the setting with the highest accuracy on the held-out rows; of equals, the first.
    """
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for line in lines:
        found = best.setdefault((line["dataset"], line["method"]), line)
        if line["accuracy"] > found["accuracy"]:
            best[line["dataset"], line["method"]] = line
    parts = ["# What `dresfl reproduce tune` chose, by data set and method; the recipes hold everything else."]
    for (dataset, method), line in best.items():
        measured = f"{100 * line['accuracy']:.2f} % of {line['held_out_rows']} held-out rows, {line['rounds']} rounds"
        head = [f"# {measured}", f"[{dataset}.{method}]"]
        parts.append("\n".join([*head, *(f"{key} = {json.dumps(value)}" for key, value in line["setting"].items())]))
    return "\n\n".join(parts) + "\n"
