"""The baselines on a prepared run's data, rounds and dropouts, and the picture of all curves."""

import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from dresfl import baselines
from dresfl.baselines import BLOCK_ROUNDS, Loss, Method
from dresfl.data import DataSet, flat_inputs
from dresfl.field import PublicStream
from dresfl.files import write_atomic
from dresfl.kernels.threads import torch_threads
from dresfl.quantize import weight_reals
from dresfl.storage.run_folder import read_metrics

from .config import RunConfig
from .prepare import Prepared, prepare
from .published import METHOD_LABELS

PERTURBATION = 1e-9  # how far a perturbed run's first weights lie from those of its twin, at most
_EVALUATED_AT_A_TIME = 2048


@final
@dataclass(frozen=True)
class BaselineSettings:
    """What a baseline has beside the settings of a run.

    start: the first weights. "torch": as torch initialises its layers. "dresfl": those that DReS-FL starts from.
    """

    loss: Loss = "cross-entropy"
    start: Literal["torch", "dresfl"] = "torch"


@final
@dataclass(frozen=True)
class Curve:
    """Test accuracy over rounds, and what else is told of a run."""

    evaluations: list[dict[str, Any]]  # round, test_accuracy and seconds of each, as metrics.jsonl has them
    mean_survivors: float = 0.0  # answering clients a round
    skipped_rounds: int = 0  # nobody answered
    weights_sha256: str = ""
    precision: str = ""  # "float32" or "float64", of a baseline

    @property
    def rounds(self) -> list[int]:
        return [line["round"] for line in self.evaluations]

    @property
    def accuracies(self) -> list[float]:
        return [line["test_accuracy"] for line in self.evaluations]

    @property
    def final(self) -> float:
        return self.accuracies[-1]

    @property
    def seconds(self) -> float:
        return float(self.evaluations[-1]["seconds"])


@final
class RealRows:
    """A data set's rows on a device, for baselines: moved there once, for all runs that use the same split."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[DataSet, str, Tensor, Tensor]] = {}

    def on(self, part: str, data: DataSet, device: str) -> tuple[Tensor, Tensor]:
        """Inputs (m,F) and labels (m,) of "train" or "test"."""
        kept = self._kept.get(part)
        if kept is None or kept[0] is not data or kept[1] != device:
            self._kept.pop(part, None)  # first: both may not fit
            kept = data, device, flat_inputs(data).to(device), torch.from_numpy(data.labels).to(device)
            self._kept[part] = kept
        return kept[2:]

    def release(self) -> None:
        """Forget all rows: somebody else needs the memory."""
        self._kept.clear()


def run_baseline(
    prepared: Prepared,
    method: Method,
    watch: Callable[[int, float], None],
    settings: BaselineSettings | None = None,
    *,
    perturbation: int = 0,
    rows: RealRows | None = None,
) -> Curve:
    """Train the ReLU network that the run's network is compared with.

    Sizes, data, rounds, batch size, optimiser and dropouts are the run's. float64 on a CPU, float32 on a GPU; SCAFFOLD
    is chaotic, so it gets float64 there too. `watch` gets each round's number and the latest accuracy. perturbation:
    above 0, the first weights are moved by up to 1e-9, each number another way. rows: keeps rows on the device.
    """
    settings, rows = settings or BaselineSettings(), rows or RealRows()
    config, device, draws = prepared.config, prepared.config.device, Draws(prepared, method)
    dtype = torch.float32 if device == "cuda" and method != "scaffold" else torch.float64
    network = prepared.session.network
    problem = baselines.Problem(network, method, settings.loss, config.optimizer, draws.num_clients)
    state = baselines.initial_state(problem, _first_weights(prepared, settings, perturbation), device, dtype)
    train, test = prepared.split.train, prepared.split.test
    most = draws.most_answers() if device == "cuda" else 0
    training = baselines.BaselineTraining(problem, state, *rows.on("train", train, device), most_answers=most)
    test_inputs, test_labels = rows.on("test", test, device)

    def accuracy() -> float:
        right = torch.zeros((), dtype=torch.int64, device=device)
        for start in range(0, test.num_rows, _EVALUATED_AT_A_TIME):
            part = slice(start, start + _EVALUATED_AT_A_TIME)
            found = baselines.outputs(network, training.state.weights, test_inputs[part].to(dtype))
            right += (found.argmax(1) == test_labels[part]).sum()
        return int(right) / test.num_rows

    started, done, latest = time.monotonic(), 0, 0.0
    evaluations: list[dict[str, Any]] = []
    while done < config.rounds:
        until_evaluation = config.evaluate_every - done % config.evaluate_every
        first, done = done, min(done + until_evaluation, done + BLOCK_ROUNDS, config.rounds)
        training.play(draws.turns(range(first, done)))
        for number in range(first + 1, done):
            watch(number, latest)
        if done % config.evaluate_every == 0 or done == config.rounds:
            latest = accuracy()
            evaluations.append({"round": done, "test_accuracy": latest, "seconds": time.monotonic() - started})
        watch(done, latest)
    digest = hashlib.sha256(training.state.weights.cpu().numpy().tobytes()).hexdigest()
    precision = str(dtype).removeprefix("torch.")
    return Curve(evaluations, draws.answers / config.rounds, draws.skipped, digest, precision)


def _first_weights(prepared: Prepared, settings: BaselineSettings, perturbation: int) -> Tensor:
    network, stream = prepared.session.network, PublicStream(prepared.config.seed)
    if settings.start == "dresfl":
        weights = weight_reals(network.initial_weights(stream), network.weight_scales)
    else:
        weights = baselines.torch_weights(network, stream)
    if perturbation:
        generator = torch.Generator().manual_seed(perturbation)
        weights += PERTURBATION * (2 * torch.rand(len(weights), dtype=torch.float64, generator=generator) - 1)
    return weights


@final
class Draws:
    """What a baseline's rounds draw: the run's dropouts, and rows from one generator, the same on every device."""

    def __init__(self, prepared: Prepared, method: Method) -> None:
        self._config, self._dropouts, self._method = prepared.config, prepared.dropouts, method
        self._generator = torch.Generator().manual_seed(prepared.config.seed)
        self._rows = torch.from_numpy(np.concatenate(prepared.parts))  # client by client
        sizes = [len(rows) for rows in prepared.parts]
        self._sizes = [sum(sizes)] if method == "centralised" else sizes
        self._starts = [0, *itertools.accumulate(self._sizes)]
        self.answers = self.skipped = 0

    @property
    def num_clients(self) -> int:
        """Those of the method: one that has all rows if it is centralised."""
        return len(self._sizes)

    def most_answers(self) -> int:
        """How many clients answer together at most in the whole run."""
        if self._method == "centralised":
            return 1
        return max(1, *map(len, self._dropouts.answering_in(range(self._config.rounds))))

    def turns(self, rounds: range) -> list[baselines.Turn]:
        """The next rounds, without those that nobody answers; each round is to be drawn once, in order."""
        central = self._method == "centralised"
        answering = [[0]] * len(rounds) if central else self._dropouts.answering_in(rounds)
        self.answers += sum(map(len, answering))
        self.skipped += sum(not clients for clients in answering)
        rows = self._drawn([i for clients in answering for i in clients])
        config, rates, turns, start = self._config, self._dropouts.rates, [], 0
        for number, clients in zip(rounds, answering, strict=True):
            if clients:
                counted = baselines.shares(self._method, clients, self._sizes, rates)
                rate = config.optimizer.rate(number, config.rounds)
                turns.append(baselines.Turn(clients, counted, rows[start : start + len(clients)], rate))
                start += len(clients)
        return turns

    def _drawn(self, clients: list[int]) -> Tensor:
        """A mini-batch of each of these clients' rows, drawn one after the other: (S,B)."""
        batch, sizes = self._config.federation.batch_size, [self._sizes[i] for i in clients]
        drawn = [
            torch.randint(size, (len(list(equal)), batch), generator=self._generator)
            for size, equal in itertools.groupby(sizes)  # neighbours of one size in one call
        ]
        starts = torch.tensor([self._starts[i] for i in clients], dtype=torch.int64)
        return self._rows[torch.cat([torch.empty((0, batch), dtype=torch.int64), *drawn]) + starts.unsqueeze(1)]


def compare(config: RunConfig, out: Path, watch: Callable[[str, int, float], None]) -> dict[str, Curve]:
    """The curves of a finished DReS-FL run and of two baselines, drawn into `out`/curves.png."""
    curves = {"DReS-FL": Curve([line for line in read_metrics(out) if "test_accuracy" in line])}
    prepared = prepare(config, None)
    methods: tuple[Method, ...] = ("fedavg", "centralised")
    settings = BaselineSettings(loss="squared")
    with torch_threads(config.threads):
        for method in methods:
            label = METHOD_LABELS[method]
            curves[label] = run_baseline(prepared, method, functools.partial(watch, label), settings)
    plot_curves(curves, out / "curves.png", f"{config.name}: {config.federation.num_clients} clients")
    return curves


def plot_curves(curves: Mapping[str, Curve], path: Path, title: str) -> None:
    """Test accuracy over rounds as a PNG."""
    from matplotlib.figure import Figure  # here, since it takes half a second to import

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for (label, curve), style in zip(curves.items(), ("-", "--", ":", "-."), strict=False):
        percent = [100 * accuracy for accuracy in curve.accuracies]
        axes.plot(curve.rounds, percent, style, label=f"{label}: {percent[-1]:.1f} %", linewidth=1.8)
    axes.set(xlabel="round", ylabel="test accuracy (%)", title=title, ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    image = BytesIO()
    figure.savefig(image, format="png")
    write_atomic(path, image.getvalue())
