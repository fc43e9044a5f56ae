"""Which runs make up a table or a figure: a cell is one data set, one method, one seed.

A recipe is a TOML file a data set. Its top-level keys hold for every method. Tables change them for some:

| method | tables that change it, one after the other |
|---|---|
| fedavg, fedavg-is, fedavg-is-unbiased, scaffold, centralised | [baselines], then the method's own |
| dresfl-paper | [dresfl-paper] |
| dresfl | [dresfl] |
| dresfl-linear, dresfl-hidden | [dresfl], then the method's own |
| like-fedavg, like-fedavg-is, like-scaffold, like-centralised | [dresfl], [like], then the method's own |

Last comes what tuning chose: [DATASET.METHOD] of tuned.toml. Tables merge, everything else replaces. Below a
baseline's table, [baseline] has its `BaselineSettings`.
"""

import dataclasses
import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, final

from dresfl.deploy.toml import closest, parse
from dresfl.errors import UsageError
from dresfl.experiments.comparison import BaselineSettings
from dresfl.experiments.config import RunConfig
from dresfl.experiments.published import LIKE, METHODS, TABLE_DATASETS, recipes
from dresfl.runtimes.local import first_feasible_seed, paper

NEEDED = 9  # R of the paper's setting: degree 8, K = T = 1
EVALUATIONS = 70  # a run, unless its recipe says otherwise
INFEASIBLE_ROUNDS = 2000  # enough to see that hardly a round can be decoded
PERTURBED = ("scaffold", "like-scaffold")  # chaotic: some runs are repeated with first weights that differ by 1e-9

Tuned = Mapping[str, Mapping[str, Mapping[str, Any]]]  # {dataset: {method: what changes in its configuration}}

_HERE = resources.files(__package__)


@final
@dataclass(frozen=True)
class Cell:
    """One run of the matrix."""

    dataset: str
    method: str
    seed: int
    dropout_seed: int
    passed_over: tuple[int, ...]  # infeasible draws between the seed before and this one
    config: RunConfig
    feasible: bool = True
    baseline: BaselineSettings | None = None  # of baselines alone
    perturbation: int = 0  # above 0: another run of the same seed, with first weights moved by 1e-9
    trial: str = ""  # the setting that a trial of tuning has: it is measured on held-out training rows

    @property
    def name(self) -> str:
        return f"{self.dataset}/{self.method}/{self._run}"

    @property
    def is_dresfl(self) -> bool:
        return self.method.startswith("dresfl")

    @property
    def data_key(self) -> tuple[object, ...]:
        """Equal for runs that read the same rows."""
        return self.config.data.dataset, self.config.features, self.config.device

    def folder(self, out: Path) -> Path:
        """Where the run keeps its files."""
        return out / ("tuning" if self.trial else "runs") / self.dataset / self.method / self._run

    def jsonl(self, out: Path) -> Path:
        """The run's record, written when it is complete."""
        if self.trial:
            return self.folder(out).with_name(f"{self._run}.jsonl")
        return out / "jsonl" / f"{self.dataset}-{self.method}-{self._run.replace('-', '')}.jsonl"

    @property
    def _run(self) -> str:
        if self.trial:
            return self.trial
        run = f"seed-{self.seed}" if self.feasible else f"infeasible-{self.dropout_seed}"
        return f"{run}-perturbed-{self.perturbation}" if self.perturbation else run


def recipe(
    dataset: str, method: str, *, rounds: int = 0, engine: str = "", device: str = "", tuned: Tuned | None = None
) -> RunConfig:
    """A method's configuration on a data set, for seed 0.

    `rounds`, `engine` and `device` win over the recipe where given. tuned: what tuning chose; None: what the package
    has.

    >>> config = recipe("mnist", "dresfl-paper")
    >>> (config.rounds, config.optimizer.learning_rate, config.federation.num_clients)
    (70000, 0.1, 20)
    """
    merged, _ = _tables(dataset, method, tuned)
    every = dict.fromkeys(("evaluate_every", "checkpoint_every"), max(1, (rounds or merged["rounds"]) // EVALUATIONS))
    engine = "" if merged.get("mode") == "hidden" else engine  # its record is that of the clear values
    given = {"engine": engine, "device": device, **({"rounds": rounds, **every} if rounds else {})}
    return parse(RunConfig, {**every, **merged, **{key: value for key, value in given.items() if value}})


def baseline_settings(dataset: str, method: str, tuned: Tuned | None = None) -> BaselineSettings | None:
    """What a baseline has beside its configuration; None for DReS-FL.

    >>> baseline_settings("mnist", "like-fedavg").start
    'dresfl'
    """
    _, settings = _tables(dataset, method, tuned)
    return None if method.startswith("dresfl") else parse(BaselineSettings, settings, "baseline")


def _tables(dataset: str, method: str, tuned: Tuned | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """A method's whole table, and apart from it the table [baseline]."""
    if dataset not in recipes():
        raise UsageError(f"there is no recipe for {dataset!r}", closest(dataset, recipes()))
    if method not in METHODS:
        raise UsageError(f"unknown method {method!r}", closest(method, METHODS))
    table = tomllib.loads((_HERE / "recipes" / f"{dataset}.toml").read_text(encoding="utf-8"))
    own = {name: table.pop(name, {}) for name in ("baselines", "like", *METHODS)}
    merged = {"name": f"{dataset}-{method}", **table}
    chosen = (packaged_choices() if tuned is None else tuned).get(dataset, {}).get(method, {})
    for changes in (*(own[name] for name in _changed_by(method)), chosen):
        merged = _merged(merged, changes)
    return merged, merged.pop("baseline", {})


def _changed_by(method: str) -> tuple[str, ...]:
    """The tables of a recipe that change a method."""
    if method.startswith(LIKE):
        return "dresfl", "like", method
    if method in ("dresfl", "dresfl-paper"):
        return (method,)
    return ("dresfl" if method.startswith("dresfl") else "baselines"), method


@functools.cache
def packaged_choices() -> Tuned:
    """What tuning chose for the recipes of this version."""
    return tomllib.loads((_HERE / "tuned.toml").read_text(encoding="utf-8"))


def _merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


@functools.cache
def feasible_draws(count: int, num_clients: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The first `count` dropout seeds that leave enough reliable clients, each with those passed over before it.

    >>> [seed for seed, _ in feasible_draws(3, 20)] == sorted(seed for seed, _ in feasible_draws(3, 20))
    True
    """
    draws: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(count):
        seed, passed = first_feasible_seed(num_clients, NEEDED, start=draws[-1][0] + 1 if draws else 0)
        draws.append((seed, tuple(passed)))
    return tuple(draws)


def infeasible_draw(num_clients: int) -> int:
    """The first dropout seed that leaves too few."""
    return next(seed for seed in range(10_000) if paper(num_clients, seed).num_reliable < NEEDED)


def matrix(
    datasets: Sequence[str],
    methods: Sequence[str],
    *,
    seeds: int,
    rounds: int = 0,
    engine: str = "",
    device: str = "",
    tuned: Tuned | None = None,
    with_infeasible: bool = False,
    perturbations: int = 0,
) -> list[Cell]:
    """The cells of a table or figure; `rounds`, `engine` and `device` win over the recipes where given.

    `with_infeasible` adds a short run of `dresfl-paper` on the first data set, under a draw that leaves too few.
    `perturbations` adds so many runs of seed 0 of the chaotic methods, each with its first weights moved by 1e-9.
    """
    if seeds < 1 or rounds < 0:
        raise UsageError("seeds and rounds must be at least 1")
    cells: list[Cell] = []
    for dataset in datasets:
        found = {
            method: recipe(dataset, method, rounds=rounds, engine=engine, device=device, tuned=tuned)
            for method in methods
        }
        beside = {method: baseline_settings(dataset, method, tuned) for method in methods}
        for seed in range(seeds):
            for method, config in found.items():
                draw, passed = feasible_draws(seeds, config.federation.num_clients)[seed]
                seeded_config = seeded(config, seed, draw)
                cells.append(Cell(dataset, method, seed, draw, passed, seeded_config, baseline=beside[method]))
        firsts = [cell for cell in cells if cell.dataset == dataset and cell.seed == 0 and cell.method in PERTURBED]
        for number in range(1, perturbations + 1):
            cells += [dataclasses.replace(cell, perturbation=number) for cell in firsts]
    others = TABLE_DATASETS[1:]  # the table shows it on its first data set
    like = next((cell for cell in cells if cell.method == "dresfl-paper" and cell.dataset not in others), None)
    if with_infeasible and like:
        short = min(like.config.rounds, INFEASIBLE_ROUNDS)
        config = recipe(like.dataset, like.method, rounds=short, engine=engine, device=device, tuned=tuned)
        draw = infeasible_draw(config.federation.num_clients)
        config = seeded(config, like.seed, draw)
        cells.append(Cell(like.dataset, like.method, like.seed, draw, (), config, feasible=False))
    return cells


def seeded(config: RunConfig, seed: int, draw: int) -> RunConfig:
    """A recipe's configuration with another seed and draw of dropouts."""
    return dataclasses.replace(config, seed=seed, dropout=dataclasses.replace(config.dropout, seed=draw))
