"""One case with one seed: a real run of the protocol, with what the bounds speak of measured before every step."""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, final

from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.data import integer_rows, load, partition
from dresfl.errors import DresError
from dresfl.kernels.threads import torch_threads
from dresfl.model import weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, Training
from dresfl.quantize import Quantizer
from dresfl.runtimes.local import Engine, LocalFederation, bernoulli
from dresfl.runtimes.local.plain_rows import PlainRows

from .cases import DATASET, DROPOUT_RATE, EVERY, INPUT_BITS, MAX_COLLUDERS, NUM_CLIENTS, Case
from .measure import Moments, Problem, curvature, least_squares_constants, rounding_variance, step_curvature

_MOST_ROUNDS = 100  # for each step: a round in which half of the clients answer is skipped far less often
_CURVATURES = 16  # Hessians that are looked at in a run of a network

Watch = Callable[[int], None]


def play(case: Case, seed: int, engine: Engine = "coded", watch: Watch = lambda steps: None) -> dict[str, Any]:
    """Run a case with one seed and return its record. `watch` is called after every step."""
    start = time.perf_counter()
    with torch_threads(1):
        found = _play(case, seed, engine, watch)
    return {**asdict(case), "case": case.name, "seed": seed, **found, "seconds": round(time.perf_counter() - start, 1)}


def _play(case: Case, seed: int, engine: Engine, watch: Watch) -> dict[str, Any]:
    session, data = _federation(case, seed)
    training = Training(session, Optimizer("sgd", case.learning_rate, "constant"), _MOST_ROUNDS * case.steps)
    federation = LocalFederation(session, training, data, bernoulli(NUM_CLIENTS, DROPOUT_RATE, seed), engine)
    problem = Problem(session, PlainRows(session, data))
    tally, curvatures = _Tally(case, problem.grid), _Curvatures(case, problem)
    while training.steps < case.steps:
        weights = training.weights
        gradients = problem.row_gradients(weights)
        now = problem.moments(weights, gradients)
        curvatures.look(weights, now, problem.expected_gradient(gradients))
        number = _step(federation)
        tally.count(now, problem.batch_gradient(gradients, number))
        watch(training.steps)
    smoothness, least = least_squares_constants(problem) if case.is_least_squares else (curvatures.largest, 0.0)
    return {
        "engine": engine,
        "num_weights": session.network.num_parameters,
        "grid": problem.grid,
        "constants": "known" if case.is_least_squares else "estimated",
        "smoothness": smoothness,
        "least_loss": least,
        "start_loss": tally.start_loss,
        "skipped_rounds": training.round_number - training.steps,
        **{f"max_{name}": value for name, value in tally.most.items()},
        "curve": tally.curve,
        "weights_sha256": weights_sha256(training.weights),
    }


def _federation(case: Case, seed: int) -> tuple[Session, list[tuple[Tensor, Tensor]]]:
    """The session and each client's integer rows, sorted by label over the clients."""
    train = load(DATASET, None).train
    train = replace(train, inputs=train.inputs[::EVERY], labels=train.labels[::EVERY])
    parts = partition(train.labels, NUM_CLIENTS, "label-sorted")
    session = Session(
        network=case.network(),
        parameters=CodeParameters(NUM_CLIENTS, case.num_shards, MAX_COLLUDERS, case.batch_size),
        client_rows=tuple(len(rows) for rows in parts),
        seed=seed,
    )
    return session, [integer_rows(train, Quantizer(INPUT_BITS), rows) for rows in parts]


def _step(federation: LocalFederation) -> int:
    """Play rounds until one steps, and return its number."""
    while not federation.training.done:
        record, _ = federation.run_round()
        if record.outcome == "stepped":
            return record.round_number
        if record.outcome == "refused":
            raise DresError(f"round {record.round_number} was refused: {record.reason}", "use a smaller rate")
    raise DresError("too few clients answered in too many rounds")


@final
class _Tally:
    """Sums and maxima over the steps so far."""

    def __init__(self, case: Case, grid: float) -> None:
        self._rate, self._grid, self._last = case.learning_rate, grid, case.steps
        self._steps = 0
        self.start_loss = 0.0
        names = ("squared_gradient", "batch_variance", "row_variance", "rounding_variance")
        self._totals = dict.fromkeys(names, 0.0)
        self.most = dict.fromkeys(("batch_variance", "shard_variance", "absolute_gradient", "gamma_squared"), 0.0)
        self.curve: list[dict[str, float]] = []

    def count(self, now: Moments, batch: Tensor) -> None:
        """Count a step from weights with these moments by this batch's gradient (P,)."""
        self.start_loss = self.start_loss if self._steps else now.loss
        self._steps += 1
        rounding = rounding_variance(batch, self._rate, self._grid)
        update = self._rate**2 * float(batch @ batch)
        summed = now.squared_gradient, now.batch_variance, now.row_variance, rounding
        for name, value in zip(self._totals, summed, strict=True):
            self._totals[name] += value
        gamma = rounding / update if update else 0.0
        largest = now.batch_variance, now.shard_variance, float(batch.abs().sum()), gamma
        for name, value in zip(self.most, largest, strict=True):
            self.most[name] = max(self.most[name], value)
        if self._steps & (self._steps - 1) == 0 or self._steps == self._last:
            means = {f"mean_{name}": value / self._steps for name, value in self._totals.items()}
            self.curve.append(
                {"steps": self._steps, "loss": now.loss, "squared_gradient": now.squared_gradient, **means}
            )


@final
class _Curvatures:
    """The largest curvature that a run of a network met: an estimate of L, from below."""

    def __init__(self, case: Case, problem: Problem) -> None:
        self._problem, self._idle = problem, case.is_least_squares
        self._every = max(1, case.steps // _CURVATURES)
        self._before: tuple[Tensor, float, Tensor] | None = None
        self._seen = 0
        self.largest = 0.0

    def look(self, weights: Tensor, now: Moments, slope: Tensor) -> None:
        """Look at the last step, and at some points also at the whole Hessian."""
        if self._idle:
            return
        if self._before is not None:
            before, loss, old_slope = self._before
            along = step_curvature(self._problem, before, weights, now.loss - loss, old_slope)
            self.largest = max(self.largest, along)
        if self._seen % self._every == 0:
            self.largest = max(self.largest, curvature(self._problem, weights))
        self._before = weights, now.loss, slope
        self._seen += 1
