"""Which runs make up a table or a figure: a cell is one data set, one method, one seed.

A recipe is a TOML file a data set. Its top-level keys hold for every method; [dresfl-paper], [dresfl] and [baselines]
change them for those, and a table named like one baseline for that one alone. Tables merge, everything else replaces.
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
from dresfl.experiments.config import RunConfig
from dresfl.experiments.published import METHODS, recipes
from dresfl.runtimes.local import first_feasible_seed, paper

NEEDED = 9  # R of the paper's setting: degree 8, K = T = 1
EVALUATIONS = 70  # a run, unless its recipe says otherwise
INFEASIBLE_ROUNDS = 2000  # enough to see that hardly a round can be decoded


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

    @property
    def name(self) -> str:
        return f"{self.dataset}/{self.method}/{self._run}"

    @property
    def is_dresfl(self) -> bool:
        return self.method.startswith("dresfl")

    def folder(self, out: Path) -> Path:
        """Where the run keeps its files."""
        return out / "runs" / self.dataset / self.method / self._run

    def jsonl(self, out: Path) -> Path:
        """The run's record, written when it is complete."""
        return out / "jsonl" / f"{self.dataset}-{self.method}-{self._run.replace('-', '')}.jsonl"

    @property
    def _run(self) -> str:
        return f"seed-{self.seed}" if self.feasible else f"infeasible-{self.dropout_seed}"


def recipe(dataset: str, method: str, *, rounds: int = 0, engine: str = "", device: str = "") -> RunConfig:
    """A method's configuration on a data set, for seed 0.

    `rounds`, `engine` and `device` win over the recipe where given.

    >>> config = recipe("mnist", "dresfl-paper")
    >>> (config.rounds, config.optimizer.learning_rate, config.federation.num_clients)
    (70000, 0.1, 20)
    """
    if dataset not in recipes():
        raise UsageError(f"there is no recipe for {dataset!r}", closest(dataset, recipes()))
    if method not in METHODS:
        raise UsageError(f"unknown method {method!r}", closest(method, METHODS))
    text = (resources.files(__package__) / "recipes" / f"{dataset}.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    own = {name: table.pop(name, {}) for name in ("baselines", *METHODS)}
    merged = {"name": f"{dataset}-{method}", **table}
    for name in (method,) if method.startswith("dresfl") else ("baselines", method):
        merged = _merged(merged, own[name])
    every = dict.fromkeys(("evaluate_every", "checkpoint_every"), max(1, (rounds or merged["rounds"]) // EVALUATIONS))
    given = {"engine": engine, "device": device, **({"rounds": rounds, **every} if rounds else {})}
    return parse(RunConfig, {**every, **merged, **{key: value for key, value in given.items() if value}})


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
    with_infeasible: bool = False,
) -> list[Cell]:
    """The cells of a table or figure; `rounds`, `engine` and `device` win over the recipes where given.

    `with_infeasible` adds one short DReS-FL run under a draw that leaves too few clients, on the first data set.
    """
    if seeds < 1 or rounds < 0:
        raise UsageError("seeds and rounds must be at least 1")
    cells: list[Cell] = []
    for dataset in datasets:
        found = {method: recipe(dataset, method, rounds=rounds, engine=engine, device=device) for method in methods}
        for seed in range(seeds):
            for method, config in found.items():
                draw, passed = feasible_draws(seeds, config.federation.num_clients)[seed]
                cells.append(Cell(dataset, method, seed, draw, passed, _seeded(config, seed, draw)))
    like = next((cell for cell in cells if cell.is_dresfl), None)
    if with_infeasible and like:
        short = min(like.config.rounds, INFEASIBLE_ROUNDS)
        config = recipe(like.dataset, like.method, rounds=short, engine=engine, device=device)
        draw = infeasible_draw(config.federation.num_clients)
        config = _seeded(config, like.seed, draw)
        cells.append(Cell(like.dataset, like.method, like.seed, draw, (), config, feasible=False))
    return cells


def _seeded(config: RunConfig, seed: int, draw: int) -> RunConfig:
    return dataclasses.replace(config, seed=seed, dropout=dataclasses.replace(config.dropout, seed=draw))
