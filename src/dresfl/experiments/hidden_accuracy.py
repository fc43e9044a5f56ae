"""Accuracy of the hidden mode beside the open mode: same rows, same network, same optimiser, same rounds.

    python -m dresfl.experiments.hidden_accuracy digits --seeds 10 --out results/hidden_accuracy.jsonl
    python -m dresfl.experiments.hidden_accuracy mnist --seeds 3 --data FOLDER --device cuda --out …

adds a line for each run. Both modes run without coding (engine `direct`), which gives the weights of the protocol.
For each seed both start from the same weights and draw the same batches, so that their differences can be compared.
Learning rates are the presets'; `--choose` compares some on held-out training rows and prints what it found. Test rows
are looked at once, at the end of each run.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from dresfl.api.simulate import simulate
from dresfl.api.simulate_hidden import hidden_session
from dresfl.coding import CodeParameters
from dresfl.data import DataSet, load, partition
from dresfl.model import Network, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.settings import HiddenSettings, Schedule

Mode = Literal["open", "hidden"]
Rows = npt.NDArray[np.int64]

_CLIENTS = 20
_BATCH = 64


@final
@dataclass(frozen=True)
class Task:
    """A data set with the settings that both modes train it with."""

    dataset: str
    sizes: tuple[int, ...]
    rounds: int
    learning_rate: float

    def network(self) -> Network:
        """The network, over images as flat rows."""
        return mlp(self.sizes, input_bits=4, weight_bits=10)

    def optimizer(self) -> Optimizer:
        """Momentum with a cosine schedule."""
        return Optimizer("momentum", self.learning_rate, "cosine")


TASKS = {
    "digits": Task("digits", (64, 32, 32, 10), 600, 0.03),
    "mnist": Task("mnist", (784, 64, 64, 10), 20_000, 0.02),
}


def accuracy(
    task: Task, train: DataSet, test: DataSet, mode: Mode, seed: int, schedule: Schedule = "S4", device: str = "cpu"
) -> float:
    """The share of `test` that a model trained on `train` classifies right."""
    parts = partition(train.labels, _CLIENTS, "label-sorted")
    settings = HiddenSettings(schedule=schedule, trusted_dealers=True)
    if mode == "open":  # with the weights and batches of the hidden run of this seed
        code, rows = CodeParameters(_CLIENTS, batch_size=_BATCH), [len(part) for part in parts]
        twin = hidden_session(task.network(), code, settings, task.optimizer(), task.rounds, rows, seed)
        seed = twin.stream.seed
    run = simulate(
        task.network(),
        [(train.inputs[rows].reshape(len(rows), -1), train.labels[rows]) for rows in parts],
        rounds=task.rounds,
        optimizer=task.optimizer(),
        batch_size=_BATCH,
        seed=seed,
        test=(test.inputs.reshape(test.num_rows, -1), test.labels),
        engine="direct",
        device=device,
        evaluate_every=task.rounds,
        mode=mode,
        hidden=settings if mode == "hidden" else None,
    )
    found = run.summary.test_accuracy
    if found is None:
        raise RuntimeError("a run with test rows has an accuracy")
    return found


def held_out(train: DataSet) -> tuple[DataSet, DataSet]:
    """Training rows without every fifth of each class, and those."""
    kept = np.ones(train.num_rows, np.bool_)
    kept[np.argsort(train.labels, kind="stable")[::5]] = False
    return _chosen(train, np.flatnonzero(kept)), _chosen(train, np.flatnonzero(~kept))


def _chosen(rows: DataSet, places: Rows) -> DataSet:
    return replace(rows, inputs=rows.inputs[places], labels=rows.labels[places])


def choose(task: Task, train: DataSet, rates: tuple[float, ...], seeds: int, device: str) -> dict[float, list[float]]:
    """The mean accuracy of both modes on held-out training rows at each rate, open mode first."""
    kept, judged = held_out(train)
    found = {}
    for rate in rates:
        own = replace(task, learning_rate=rate)
        modes: tuple[Mode, ...] = ("open", "hidden")
        runs = [[accuracy(own, kept, judged, mode, seed, device=device) for seed in range(seeds)] for mode in modes]
        found[rate] = [round(statistics.mean(each), 4) for each in runs]
    return found


def main() -> None:
    """Run both modes for some seeds and add a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=sorted(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=0, help="0: the task's")
    parser.add_argument("--schedules", nargs="+", choices=("S2", "S4"), default=["S4"])
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--choose", type=float, nargs="+", metavar="RATE", help="compare rates on training rows")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    task = TASKS[given.dataset]
    task = replace(task, rounds=given.rounds) if given.rounds else task
    split = load(task.dataset, given.data)
    if given.choose:
        print(json.dumps(choose(task, split.train, tuple(given.choose), given.seeds, given.device)))
        return
    for seed in range(given.seeds):
        runs: list[tuple[Mode, Schedule]] = [("open", ""), *(("hidden", schedule) for schedule in given.schedules)]
        for mode, schedule in runs:
            start = time.perf_counter()
            found = accuracy(task, split.train, split.test, mode, seed, schedule, given.device)
            line: dict[str, Any] = {
                "dataset": task.dataset,
                "sizes": task.sizes,
                "rounds": task.rounds,
                "learning_rate": task.learning_rate,
                "mode": mode,
                "schedule": schedule,
                "seed": seed,
                "accuracy": found,
                "device": given.device,
                "seconds": round(time.perf_counter() - start, 1),
            }
            print(json.dumps(line), flush=True)
            if given.out is not None:
                with given.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
