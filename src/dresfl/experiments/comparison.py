"""FedAvg and centralised training on a prepared run's data, rounds and dropouts, and the picture of all curves."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal, final

import torch
from torch import Tensor

from dresfl import baselines
from dresfl.checkpoint import write_atomic
from dresfl.errors import UsageError
from dresfl.field import PublicStream
from dresfl.model import Dense, Square

from .config import RunConfig
from .prepare import Prepared, flat_inputs, prepare
from .training import read_metrics, threads

Method = Literal["fedavg", "centralised"]


@final
@dataclass(frozen=True)
class Curve:
    """Test accuracy over rounds."""

    label: str
    rounds: tuple[int, ...]
    accuracies: tuple[float, ...]
    seconds: float

    @property
    def final(self) -> float:
        return self.accuracies[-1]


def run_baseline(prepared: Prepared, method: Method, label: str, watch: Callable[[int, float], None]) -> Curve:
    """Train the ReLU twin of the run's network: same sizes, data, rounds, batch size, optimiser and dropouts."""
    config, network = prepared.config, prepared.session.network
    if not all(isinstance(layer, Dense | Square) for layer in network.layers):
        raise UsageError("the baselines here are dense networks", "compare a preset of dense layers")
    units = [layer.units for layer in network.layers if isinstance(layer, Dense)]
    state = baselines.initial_state([network.input_size, *units], config.optimizer, PublicStream(config.seed))
    train, test = prepared.split.train, prepared.split.test
    inputs = flat_inputs(train).double()
    targets = torch.nn.functional.one_hot(torch.from_numpy(train.labels), train.num_classes).double()
    generator = torch.Generator().manual_seed(config.seed)
    parts = [torch.from_numpy(rows) for rows in prepared.parts]
    everything = torch.cat(parts)

    def batch(rows: Tensor) -> baselines.Batch:
        chosen = rows[torch.randint(len(rows), (config.federation.batch_size,), generator=generator)]
        return inputs[chosen], targets[chosen]

    def accuracy() -> float:
        predicted = baselines.outputs(state.sizes, state.weights, flat_inputs(test).double()).argmax(1)
        return float((predicted == torch.from_numpy(test.labels)).double().mean())

    points: dict[int, float] = {}
    started = time.monotonic()
    for round_number in range(config.rounds):
        rate = config.optimizer.rate(round_number, config.rounds)
        if method == "centralised":
            state = baselines.centralised_round(state, config.optimizer, rate, batch(everything))
        else:
            answering = prepared.dropouts.answering(round_number)
            batches = [batch(parts[j]) for j in answering]
            sizes = [len(parts[j]) for j in answering]
            state = baselines.fedavg_round(state, config.optimizer, rate, batches, sizes)
        if (round_number + 1) % config.evaluate_every == 0 or round_number + 1 == config.rounds:
            points[round_number + 1] = accuracy()
        watch(round_number + 1, next(reversed(points.values()), 0.0))
    return Curve(label, tuple(points), tuple(points.values()), time.monotonic() - started)


def compare(config: RunConfig, out: Path, watch: Callable[[str, int, float], None]) -> list[Curve]:
    """The curves of a finished DReS-FL run and of both baselines, drawn into `out`/curves.png."""
    evaluated = [line for line in read_metrics(out) if "test_accuracy" in line]
    ours = Curve(
        "DReS-FL",
        tuple(line["round"] for line in evaluated),
        tuple(line["test_accuracy"] for line in evaluated),
        evaluated[-1]["seconds"],
    )
    prepared = prepare(config, None)
    methods: tuple[tuple[Method, str], ...] = (("fedavg", "FedAvg"), ("centralised", "centralised"))
    curves = [ours]
    with threads(config.threads):
        for method, label in methods:
            curves.append(run_baseline(prepared, method, label, functools.partial(watch, label)))
    plot_curves(curves, out / "curves.png", f"{config.name}: {config.federation.num_clients} clients")
    return curves


def plot_curves(curves: Sequence[Curve], path: Path, title: str) -> None:
    """Test accuracy over rounds as a PNG."""
    from matplotlib.figure import Figure  # here, since it takes half a second to import

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for curve, style in zip(curves, ("-", "--", ":", "-."), strict=False):
        percent = [100 * accuracy for accuracy in curve.accuracies]
        axes.plot(curve.rounds, percent, style, label=f"{curve.label}: {percent[-1]:.1f} %", linewidth=1.8)
    axes.set(xlabel="round", ylabel="test accuracy (%)", title=title, ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    image = BytesIO()
    figure.savefig(image, format="png")
    write_atomic(path, image.getvalue())
