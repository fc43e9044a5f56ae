"""Runs of the hidden mode that diverge: do the guards stop them before a product outgrows its mask?

    python -m dresfl.experiments.guards results/hidden_guards.jsonl
    python -m dresfl.experiments.guards results/hidden_guards.jsonl --page docs/results/hidden-guards.md

The first plays short runs at many learning rates, on clear values in float64, and writes a line for each. A run ends
well if it goes on to its last round, or if a guard ends it (`Diverged`). It ends badly if a product passes the bits
that are planned for it (`HeadroomAlarm`). Rates above the one that the plan vouches for are played, too, and marked.
The second makes a page of what was found.
"""

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.errors import Diverged, HeadroomAlarm
from dresfl.field import PublicStream
from dresfl.kernels.threads import torch_threads
from dresfl.model import Conv2d, Dense, Flatten, Layer, Network, Quadratic, Square, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.clear_rounds import RealRing, StreamDither, play_round
from dresfl.protocol.hidden.plan import HiddenPlan, Item, make_plan
from dresfl.protocol.hidden.settings import HiddenSettings, Schedule

Rows = Literal["digits", "classes", "uniform", "white"]
Kind = Literal["mlp", "conv", "head"]

_NUM_ROWS = 600
_CLASSES = 10
_INPUT_BITS = 4


@final
@dataclass(frozen=True)
class Trial:
    """One short run at a constant rate."""

    sizes: tuple[int, ...]
    schedule: Schedule
    learning_rate: float
    rows: Rows
    seed: int
    momentum: float = 0.9
    rounds: int = 40
    batch_size: int = 64
    num_clients: int = 20
    num_shards: int = 1
    kind: Kind = "mlp"
    magnitude: int = 0  # log2 of the largest input

    def network(self) -> Network:
        """The network. A convolution has sizes[1] channels, a head begins with weights of 0.1."""
        inputs, input_bits = self.sizes[0], _INPUT_BITS - self.magnitude
        if self.kind == "mlp":
            return replace(mlp(self.sizes, input_bits=input_bits, weight_bits=10), input_magnitude=self.magnitude)
        channels, *widths, classes = self.sizes[1:]
        first: tuple[Layer, ...]
        if self.kind == "conv":
            first = Conv2d(channels, kernel=3, stride=2), Square(), Flatten()
        else:
            first = Dense(channels, init=0.1 * math.sqrt(inputs)), Quadratic()
        after = [
            layer for width in widths for layer in (Dense(width), Square() if self.kind == "conv" else Quadratic())
        ]
        shape = (math.isqrt(inputs), math.isqrt(inputs), 1) if self.kind == "conv" else (inputs,)
        return Network((*first, *after, Dense(classes)), shape, input_bits, input_magnitude=self.magnitude)

    def plan(self) -> HiddenPlan:
        """The plan, whether it vouches for the rate or not."""
        method = "momentum" if self.momentum else "sgd"
        optimizer = Optimizer(method, self.learning_rate, "constant", momentum=self.momentum)
        parameters = CodeParameters(self.num_clients, self.num_shards, 1, self.batch_size)
        settings = HiddenSettings(schedule=self.schedule)
        return make_plan(self.network(), parameters, settings, optimizer, self.rounds, any_rate=True)


@final
@dataclass(frozen=True)
class Outcome:
    """How a trial ended, and the least number of planned bits that a product had left."""

    ended: Literal["finished", "stopped", "overflow"]
    round_number: int
    bits_left: float
    tightest: str  # the item with the fewest bits left
    vouched: bool


def rows_of(trial: Trial, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs (m,F) as integers from 0 to 16, and labels (m,)."""
    width, full = trial.sizes[0], 2**_INPUT_BITS
    labels = torch.randint(0, _CLASSES, (_NUM_ROWS,), generator=generator)
    if trial.rows == "digits":
        from sklearn.datasets import load_digits

        inputs, found = load_digits(return_X_y=True)
        return torch.tensor(inputs).to(torch.float64), torch.tensor(found)
    if trial.rows == "white":
        return torch.full((_NUM_ROWS, width), float(full), dtype=torch.float64), labels
    if trial.rows == "uniform":
        return torch.randint(0, full + 1, (_NUM_ROWS, width), generator=generator).to(torch.float64), labels
    prototypes = torch.rand((_CLASSES, width), generator=generator) < 0.15
    noise = torch.rand((_NUM_ROWS, width), generator=generator) < 0.05
    return (prototypes[labels] | noise).to(torch.float64) * full, labels


def play(trial: Trial) -> Outcome:
    """Play a trial to its end."""
    plan, ring, generator = trial.plan(), RealRing(), torch.Generator().manual_seed(trial.seed)
    inputs, labels = rows_of(trial, generator)
    targets = torch.nn.functional.one_hot(labels, _CLASSES).to(torch.float64)
    shape = (1, trial.num_shards, trial.batch_size, -1)
    state = before = ring.arithmetic.embed(plan.initial_weights(PublicStream(trial.seed))).unsqueeze(1)
    dither, left = StreamDither(plan, trial.seed), dict[str, float]()

    def watch(hop: int, item: Item, product: Tensor) -> None:
        largest, name = float(product.abs().max()), f"{item.name} in hop {hop}"
        if item.shift is not None:
            left[name] = min(left.get(name, math.inf), item.bits - math.log2(max(1.0, largest)))

    ended: Literal["finished", "stopped", "overflow"] = "finished"
    number = 0
    for number in range(trial.rounds):
        drawn = torch.randint(0, len(inputs), (trial.num_shards * trial.batch_size,), generator=generator)
        rows = inputs[drawn].view(shape), targets[drawn].view(shape)
        try:
            played = play_round(plan, ring, number, rows, (state, before), dither, watch=watch)
        except Diverged:
            ended = "stopped"
            break
        except HeadroomAlarm:
            ended = "overflow"
            break
        state, before = played.state, state
    tightest = min(left, key=lambda name: left[name])
    vouched = trial.learning_rate <= plan.largest_rate
    return Outcome(ended, number, round(left[tightest], 1), tightest, vouched)


def trials() -> Iterator[Trial]:
    """The sweep: networks of 64 and of 784 inputs, both schedules, rates from harmless to absurd."""
    small, large = (64, 32, 32, 32, 32, 10), (784, 64, 64, 64, 64, 10)
    rates = (0.03, 0.1, 0.2, 0.24, 0.5, 1.0, 1.2, 1.5)
    for schedule, depth in itertools.product(("S4", "S2"), (2, 1, 0, 4)):
        seeds = range(3 if schedule == "S4" else 1)
        for rate, rows, seed in itertools.product((0.02, 0.04, 0.1), ("classes", "uniform", "white"), seeds):
            yield Trial((*large[: depth + 1], 10), schedule, rate, rows, seed, rounds=25)  # type: ignore[arg-type]
        for rate, rows, seed in itertools.product(rates, ("digits", "uniform", "white"), seeds):
            yield Trial((*small[: depth + 1], 10), schedule, rate, rows, seed)  # type: ignore[arg-type]
    for schedule, shards, rate, seed in itertools.product(("S4", "S2"), (1, 2), (0.1, 0.5), range(1)):
        yield Trial((64, 32, 32, 10), schedule, rate, "digits", seed, momentum=0.0, num_shards=shards)  # type: ignore[arg-type]
    yield from _networks_of_the_recipes()


def _networks_of_the_recipes() -> Iterator[Trial]:
    """Convolutions, and heads on rows of small inputs, up to the rates that plans vouch for."""
    kinds: tuple[Rows, ...] = ("classes", "uniform", "white")
    for schedule, rate, rows, seed in itertools.product(("S4", "S2"), (0.03, 0.1, 0.5, 1.25), kinds, range(2)):
        yield Trial((64, 4, 16, 10), schedule, rate, rows, seed, kind="conv")  # type: ignore[arg-type]
    for schedule, rate, rows, seed in itertools.product(("S4", "S2"), (0.2, 0.5, 1.0, 6.5), kinds, range(2)):
        sizes = 784, 64, 64, 10
        yield Trial(sizes, schedule, rate, rows, seed, rounds=25, kind="head", magnitude=-3)  # type: ignore[arg-type]


_PAGE = """# Runs of the hidden mode that diverge

In the hidden mode every product is opened under a mask of planned size. A training that diverges makes products grow.
Guards watch sums of squares and stop such a run ([the program](../../src/dresfl/model/program.py) says which and when).
The question is whether they stop it before a product passes the bits that are planned for it. `python -m
dresfl.experiments.guards` plays short runs to find out: {count} of them, on clear values, at constant learning rates,
with momentum 0.9 and without, 20 clients, T = 1, batches of 64. {convolutions} of them train a convolution, {heads} a
head like those on VGG19's features, with inputs of at most 1/8. Rows are scikit-learn's digits, noisy patterns of ten
classes, uniform noise, and rows that are white all over, which make the largest steps. Each line of
[the records](../../results/hidden_guards.jsonl) is a run; this page is made from them.

A plan vouches for a rate if rate · inputs · (largest input)² is at most the figure in the table, and refuses larger
ones. With S4 and two
or more activations it takes one prime more where that product is above 16.
*Bits left*: the least number of planned bits that any product had left in any of the runs.

{head}
{table}

What the guards tell. Each round opens, in the clear, the quotients ⌊Σ/2^t⌋ of the watched sums, rounded at random by
the masks' low parts. With 20 masks a limit is 40 units of 2^t. Whoever knows all masks but one, as the coordinator does
together with T clients, sees a sum to within one unit: a fortieth of its limit. Over many rounds everybody can follow
how large the weights and each layer's outputs are, and how the training error falls. It is one number a round for each
of them, over all rows of a batch.
"""


_HEAD = (
    "schedule",
    "activations",
    "vouched: rate · inputs",
    "runs at vouched rates",
    "finished",
    "stopped by a guard",
    "overflow",
    "bits left",
    "runs above",
    "overflow above",
)


def page(lines: Sequence[dict[str, Any]]) -> str:
    """The page of what was found."""
    rows = []
    head = "| " + " | ".join(_HEAD) + " |\n" + "|---" * len(_HEAD) + "|"
    for schedule, depth in itertools.product(("S4", "S2"), (0, 1, 2, 4)):
        own = [line for line in lines if line["schedule"] == schedule and len(line["sizes"]) - 2 == depth]
        vouched, above = ([line for line in own if line["vouched"] is kind] for kind in (True, False))
        ended = [sum(line["ended"] == how for line in vouched) for how in ("finished", "stopped", "overflow")]
        least = min(line["bits_left"] for line in vouched)
        over = sum(line["ended"] == "overflow" for line in above)
        plan = Trial((64, *(32,) * depth, 10), schedule, 0.01, "white", 0).plan()  # type: ignore[arg-type]
        cells = schedule, depth, round(plan.largest_rate * 64), len(vouched), *ended, least, len(above), over
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    kinds = [line.get("kind", "mlp") for line in lines]
    counts = {"convolutions": kinds.count("conv"), "heads": kinds.count("head")}
    return _PAGE.format(count=f"{len(lines):,}", head=head, table="\n".join(rows), **counts)


def main() -> None:
    """Play what is left of the sweep and add its lines, about ten minutes on one core; or make the page of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path, help="make this page of what was found, and play nothing")
    arguments = parser.parse_args()
    found = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    if arguments.page is not None:
        arguments.page.write_text(page(found))
        return
    played = {_trial_of(line) for line in found}
    with torch_threads(1), arguments.out.open("a") as file:
        for trial in trials():
            if trial not in played:
                file.write(json.dumps({**dataclasses.asdict(trial), **dataclasses.asdict(play(trial))}) + "\n")
                file.flush()


def _trial_of(line: dict[str, Any]) -> Trial:
    """The trial that a line is of. Lines of older versions lack settings that had one value then."""
    own = {field.name: line[field.name] for field in dataclasses.fields(Trial) if field.name in line}
    return Trial(**{**own, "sizes": tuple(own["sizes"])})


if __name__ == "__main__":
    main()
