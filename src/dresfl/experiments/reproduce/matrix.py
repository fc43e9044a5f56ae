"""Which runs make up a table or a figure: a cell is one data set, one method, one seed.

A recipe is a TOML file a data set. Its top-level keys hold for every method; [dresfl-paper], [dresfl] and [baselines]
change them for those, and a table named like one baseline for that one alone. Tables merge, everything else replaces.
"""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, final

from dresfl.baselines import LOSSES, Loss
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
    loss: Loss = "cross-entropy"  # of a baseline
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


def recipe(dataset: str, method: str) -> tuple[RunConfig, Loss]:
    """A method's configuration on a data set, for seed 0, and the loss of a baseline.

    >>> config, _ = recipe("mnist", "dresfl-paper")
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
    loss = merged.pop("loss", "cross-entropy")
    if loss not in LOSSES:
        raise UsageError(f"the recipe {dataset} has an unknown loss {loss!r}", "use cross-entropy or squared")
    every = max(1, parse(RunConfig, merged).rounds // EVALUATIONS)
    return parse(RunConfig, {"evaluate_every": every, "checkpoint_every": every, **merged}), loss


def _merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _with_rounds(config: RunConfig, rounds: int) -> RunConfig:
    every = max(1, rounds // EVALUATIONS)
    return dataclasses.replace(config, rounds=rounds, evaluate_every=every, checkpoint_every=every)


def feasible_draws(count: int, num_clients: int) -> list[tuple[int, tuple[int, ...]]]:
    """The first `count` dropout seeds that leave enough reliable clients, each with those passed over before it.

    >>> [seed for seed, _ in feasible_draws(3, 20)] == sorted(seed for seed, _ in feasible_draws(3, 20))
    True
    """
    draws: list[tuple[int, tuple[int, ...]]] = []
    start = 0
    for _ in range(count):
        seed, passed = first_feasible_seed(num_clients, NEEDED, start)
        draws.append((seed, tuple(passed)))
        start = seed + 1
    return draws


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
        per_method = {method: _configured(dataset, method, rounds, engine, device) for method in methods}
        clients = {config.federation.num_clients for config, _ in per_method.values()}
        draws = {count: feasible_draws(seeds, count) for count in clients}
        for seed in range(seeds):
            for method, (config, loss) in per_method.items():
                draw, passed = draws[config.federation.num_clients][seed]
                cells.append(Cell(dataset, method, seed, draw, passed, _seeded(config, seed, draw), loss))
    ours = [cell for cell in cells if cell.is_dresfl]
    if with_infeasible and ours:
        cells.append(_infeasible(ours[0]))
    return cells


def _configured(dataset: str, method: str, rounds: int, engine: str, device: str) -> tuple[RunConfig, Loss]:
    config, loss = recipe(dataset, method)
    if rounds:
        config = _with_rounds(config, rounds)
    for key, value, known in (("engine", engine, ("coded", "direct")), ("device", device, ("cpu", "cuda"))):
        if value and value not in known:
            raise UsageError(f"--{key} {value!r} is not known", closest(value, known))
        if value:
            config = dataclasses.replace(config, **{key: value})  # type: ignore[arg-type]
    return config, loss


def _seeded(config: RunConfig, seed: int, draw: int) -> RunConfig:
    return dataclasses.replace(config, seed=seed, dropout=dataclasses.replace(config.dropout, seed=draw))


def _infeasible(like: Cell) -> Cell:
    draw = infeasible_draw(like.config.federation.num_clients)
    config = _with_rounds(_seeded(like.config, like.seed, draw), min(like.config.rounds, INFEASIBLE_ROUNDS))
    return Cell(like.dataset, like.method, like.seed, draw, (), config, like.loss, feasible=False)
