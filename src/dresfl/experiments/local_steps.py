"""Several local steps beside one: the same number of gradient steps in fewer rounds, and what each round costs.

    python -m dresfl.experiments.local_steps digits digits-two-shards digits-square --out results/local_steps.jsonl
    python -m dresfl.experiments.local_steps mnist --data FOLDER --out results/local_steps.jsonl
    python -m dresfl.experiments.local_steps digits digits-two-shards digits-square mnist --times 20 --out …
    python -m dresfl.experiments.local_steps --table results/local_steps.jsonl

The first two add a line for each task, number of local steps s and seed. The third adds the time that a client takes
for an answer, measured in turns with the other numbers of steps. The last prints the table of both. A run with s
local steps has 1/s of the rounds, so that all runs of a task take as many steps and draw the same mini-batches.
Accuracies are those of engine `direct`. For seed 0 engine `coded` runs too, with as many missing clients as the setting
allows; its weights must be the same. `--choose` compares learning rates at s = 1 on held-out training rows and prints
what it found. Test rows are looked at once, at the end of each run. Rates are powers of two: they cost no bits.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from dresfl.api.plan import plan
from dresfl.api.simulate import Run, simulate
from dresfl.coding import CodeParameters
from dresfl.data import DataSet, load, partition
from dresfl.experiments.bench.run import machine
from dresfl.experiments.bench.stages import residues
from dresfl.experiments.bench.timing import interleaved
from dresfl.kernels.threads import torch_threads
from dresfl.model import Network, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, coded_answer, make_local_plan
from dresfl.runtimes.local import Dropouts, Engine

from .hidden_accuracy import held_out

_BATCH = 64


@final
@dataclass(frozen=True)
class Task:
    """A data set with the settings that all numbers of local steps have in common."""

    dataset: str
    sizes: tuple[int, ...]
    num_clients: int
    num_shards: int
    steps: int  # of gradient descent, in all rounds together
    learning_rate: float
    local_steps: tuple[int, ...]

    def network(self) -> Network:
        """The network, over images as flat rows."""
        return mlp(self.sizes, input_bits=4, weight_bits=10)

    def optimizer(self) -> Optimizer:
        """Plain gradient descent at a constant rate."""
        return Optimizer("sgd", self.learning_rate, "constant")


# The rates are the best of `--choose` 2^-8 … 2^-2 at s = 1, on held-out training rows.
TASKS = {
    "digits": Task("digits", (64, 10), 20, 1, 2400, 2.0**-4, (1, 2, 3, 4)),
    "digits-two-shards": Task("digits", (64, 10), 20, 2, 2400, 2.0**-4, (1, 2, 4)),
    "digits-square": Task("digits", (64, 16, 10), 30, 1, 2400, 2.0**-3, (1, 2)),
    "mnist": Task("mnist", (784, 10), 20, 1, 4800, 2.0**-6, (1, 2, 3, 4)),
}


def trained(task: Task, train: DataSet, test: DataSet, local_steps: int, seed: int, engine: Engine = "direct") -> Run:
    """One run. With engine `coded` the last clients never answer: as many as may be missing."""
    parts = partition(train.labels, task.num_clients, "label-sorted")
    dropouts = None
    if engine == "coded":
        may_miss = priced(task, train.num_rows, local_steps)["max_dropouts"]
        dropouts = Dropouts((*(0.0,) * (task.num_clients - may_miss), *(1.0,) * may_miss), seed)
    return simulate(
        task.network(),
        [(train.inputs[rows].reshape(len(rows), -1), train.labels[rows]) for rows in parts],
        rounds=task.steps // local_steps,
        optimizer=task.optimizer(),
        num_shards=task.num_shards,
        batch_size=_BATCH,
        local_steps=local_steps,
        seed=seed,
        dropouts=dropouts,
        test=(test.inputs.reshape(test.num_rows, -1), test.labels),
        engine=engine,
        threads=1,
        evaluate_every=task.steps,
    )


def priced(task: Task, rows: int, local_steps: int) -> dict[str, Any]:
    """What the plan says of so many local steps."""
    planned = plan(
        task.network(),
        num_clients=task.num_clients,
        num_shards=task.num_shards,
        batch_size=_BATCH,
        local_steps=local_steps,
        rows=rows,
        optimizer=task.optimizer(),
    )
    names = ("gradient_degree", "recovery_threshold", "max_dropouts", "needed_bits", "upload_bytes")
    more = {"num_moduli": len(planned.moduli), "share_bytes": planned.share_bytes_per_client}
    return {**{name: getattr(planned, name) for name in names}, **more}


def measured(name: str, task: Task, train: DataSet, test: DataSet, local_steps: int, seed: int) -> dict[str, Any]:
    """The record of one run. RuntimeError if the coded weights are not the direct ones."""
    direct = trained(task, train, test, local_steps, seed).summary
    prices, rounds = priced(task, train.num_rows, local_steps), task.steps // local_steps
    line = {
        "task": name,
        "dataset": task.dataset,
        "sizes": task.sizes,
        "num_clients": task.num_clients,
        "num_shards": task.num_shards,
        "batch_size": _BATCH,
        "learning_rate": task.learning_rate,
        "steps": task.steps,
        "local_steps": local_steps,
        "rounds": rounds,
        "seed": seed,
        "accuracy": direct.test_accuracy,
        "peak_bits": round(direct.peak_bits, 1),
        "alarms": direct.alarms,
        **prices,
        "run_upload_bytes": rounds * prices["upload_bytes"],
        "weights_sha256": direct.weights_sha256,
    }
    if seed == 0:
        coded = trained(task, train, test, local_steps, seed, "coded").summary
        if coded.weights_sha256 != direct.weights_sha256 or coded.skipped_rounds:
            raise RuntimeError(f"{name}, {local_steps} local steps: the coded run is not the direct one")
        seconds = {"seconds_per_round": coded.seconds_per_round, "threads": 1, "machine": machine()}
        line |= {"coded_equals_direct": True, "mean_answers": coded.mean_survivors, **seconds}
    return line


def choose(task: Task, train: DataSet, rates: Sequence[float], seeds: int) -> dict[float, float]:
    """The mean accuracy of one step a round on held-out training rows at each rate."""
    kept, judged = held_out(train)
    found = {}
    for rate in rates:
        own = replace(task, learning_rate=rate)
        runs = [trained(own, kept, judged, 1, seed).summary.test_accuracy or 0.0 for seed in range(seeds)]
        found[rate] = round(statistics.mean(runs), 4)
    return found


def answer_times(name: str, task: Task, seconds: float) -> list[dict[str, Any]]:
    """A record for each number of local steps: the time of one client's answer on one core, all measured in turns."""
    calls = {}
    for local_steps in task.local_steps:
        code = CodeParameters(task.num_clients, task.num_shards, batch_size=_BATCH, local_steps=local_steps)
        local = make_local_plan(task.network(), code, task.optimizer(), task.steps)
        session = Session(task.network(), code, (_BATCH,) * task.num_clients, seed=0, local=local)
        coded = residues(session.field, 1, local_steps * _BATCH, session.row_width)  # (M,1,s·B,W)
        weights = session.network.initial_weights(session.stream)
        calls[local_steps] = partial(coded_answer, session, 0, weights, coded)
    with torch_threads(1):
        found = interleaved(calls, seconds)
    return [
        {
            "task": name,
            "local_steps": local_steps,
            "answer_seconds": timing.median,
            "best_answer_seconds": timing.best,
            "turns": timing.runs,
            "threads": 1,
            "machine": machine(),
        }
        for local_steps, timing in found.items()
    ]


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The records as the table of docs/explanation/local-steps.md: a row for each task and number of local steps."""
    rows = [
        "| task | s | rounds | degree | answers needed | bits | primes | upload of a client | shares of a client | "
        "accuracy (seeds) | an answer takes |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    times: dict[tuple[str, int], float] = {}
    for line in lines:
        key = line["task"], line["local_steps"]
        if "answer_seconds" in line:
            times[key] = line["answer_seconds"]
        else:
            groups.setdefault(key, []).append(line)
    for (name, local_steps), found in groups.items():
        one, percent = found[0], [100 * line["accuracy"] for line in found]
        spread = f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else ""
        cells = [
            name,
            local_steps,
            one["rounds"],
            one["gradient_degree"],
            f"{one['recovery_threshold']} of {one['num_clients']}",
            f"{one['needed_bits']:.0f}",
            one["num_moduli"],
            f"{one['run_upload_bytes'] / 1e6:.1f} MB",
            f"{one['share_bytes'] / 1e6:.1f} MB",
            f"{statistics.mean(percent):.1f}{spread} ({len(percent)})",
            f"{1000 * times[name, local_steps]:.2g} ms" if (name, local_steps) in times else "–",
        ]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Run the tasks and add a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--choose", type=float, nargs="+", metavar="RATE", help="compare rates on training rows")
    parser.add_argument("--times", type=float, default=0.0, metavar="SECONDS", help="measure answers, run nothing else")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of these records, and run nothing")
    given = parser.parse_args()
    if given.table is not None:
        print(table([json.loads(line) for line in given.table.read_text(encoding="utf-8").splitlines()]), end="")
        return
    for name in given.tasks:
        if name not in TASKS:
            parser.error(f"unknown task {name!r}: known are {', '.join(TASKS)}")
        task = TASKS[name]
        if given.times:
            for record in answer_times(name, task, given.times):
                _add(record, given.out)
            continue
        split = load(task.dataset, given.data)
        if given.choose:
            print(json.dumps({name: choose(task, split.train, given.choose, given.seeds)}), flush=True)
            continue
        for local_steps in task.local_steps:
            for seed in range(given.seeds):
                _add(measured(name, task, split.train, split.test, local_steps, seed), given.out)


def _add(record: dict[str, Any], out: Path | None) -> None:
    """Print a record, and add it to a file."""
    line = json.dumps(record)
    print(line, flush=True)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
