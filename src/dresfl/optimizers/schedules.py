"""How the learning rate changes from round to round. Skipped rounds count, as in the paper."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from .optimizer import Optimizer

Schedule = Literal["constant", "step", "cosine"]


def _constant(settings: "Optimizer", round_number: int, rounds: int) -> float:
    return settings.learning_rate


def _step(settings: "Optimizer", round_number: int, rounds: int) -> float:
    return settings.learning_rate * settings.decay_factor ** (round_number // settings.decay_every)


def _cosine(settings: "Optimizer", round_number: int, rounds: int) -> float:
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, round_number / rounds)))


SCHEDULES: Final[dict[str, Callable[["Optimizer", int, int], float]]] = {
    "constant": _constant,
    "step": _step,
    "cosine": _cosine,
}
