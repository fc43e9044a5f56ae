"""What a server does with a gradient: schedules, clipping, SGD, momentum, Adam, weight decay.

Everything is a pure function of (settings, state, round, gradient, weights) in float64, made of single IEEE
operations in a fixed order, so that every machine and thread count gives the same bits.
"""

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from dresfl.errors import UsageError

State = dict[str, Tensor]


@final
@dataclass(frozen=True)
class Optimizer:
    """Settings of the server's optimiser. The defaults are the paper's: SGD, ×0.65 every 1500 rounds."""

    method: Literal["sgd", "momentum", "adam"] = "sgd"
    learning_rate: float = 0.1
    schedule: Literal["constant", "step", "cosine"] = "step"
    decay_factor: float = 0.65
    decay_every: int = 1500
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float = 0.0  # L2 clipping of the mean gradient; 0: none

    def __post_init__(self) -> None:
        if self.method not in ("sgd", "momentum", "adam"):
            raise UsageError(f"unknown method {self.method!r}", "use sgd, momentum or adam")
        if self.schedule not in ("constant", "step", "cosine"):
            raise UsageError(f"unknown schedule {self.schedule!r}", "use constant, step or cosine")
        if not self.learning_rate > 0 or not math.isfinite(self.learning_rate):
            raise UsageError(f"learning_rate must be positive, not {self.learning_rate}")
        if self.decay_every < 1 or not 0 < self.decay_factor <= 1:
            raise UsageError("decay_every must be at least 1 and decay_factor lie in (0, 1]")
        if not (0 <= self.momentum < 1 and 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise UsageError("momentum, beta1 and beta2 must lie in [0, 1)")
        if self.weight_decay < 0 or self.max_norm < 0 or self.epsilon <= 0:
            raise UsageError("weight_decay and max_norm must not be negative, epsilon must be positive")

    def rate(self, round_number: int, rounds: int) -> float:
        """The learning rate of a round; skipped rounds count, as in the paper.

        >>> Optimizer().rate(1500, 70_000) == 0.1 * 0.65
        True
        """
        if self.schedule == "step":
            return self.learning_rate * self.decay_factor ** (round_number // self.decay_every)
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, round_number / rounds)))
        return self.learning_rate

    def initial_state(self, size: int) -> State:
        """Moments (P,) and the number of steps taken."""
        names = {"sgd": (), "momentum": ("velocity",), "adam": ("first", "second")}[self.method]
        state = {name: torch.zeros(size, dtype=torch.float64) for name in names}
        return {**state, "steps": torch.zeros(1, dtype=torch.int64)}

    def update(self, state: State, rate: float, gradient: Tensor, weights: Tensor) -> tuple[Tensor, State]:
        """The real update to subtract from the real weights, and the state after it."""
        gradient = self._clipped(gradient)
        steps = state["steps"] + 1
        after: State = {"steps": steps}
        if self.method == "sgd":
            direction = gradient
        elif self.method == "momentum":
            direction = after["velocity"] = state["velocity"] * self.momentum + gradient
        else:
            first = after["first"] = state["first"] * self.beta1 + gradient * (1 - self.beta1)
            second = after["second"] = state["second"] * self.beta2 + (gradient * gradient) * (1 - self.beta2)
            taken = int(steps)
            mean = first / (1 - self.beta1**taken)
            spread = second / (1 - self.beta2**taken)
            direction = mean / (spread.sqrt() + self.epsilon)
        if self.weight_decay:
            direction = direction + weights * self.weight_decay
        return direction * rate, after

    def _clipped(self, gradient: Tensor) -> Tensor:
        norm = l2_norm(gradient)
        if not self.max_norm or norm <= self.max_norm:
            return gradient
        return gradient * (self.max_norm / norm)


def l2_norm(values: Tensor) -> float:
    """The L2 norm, summed as a balanced tree of fixed shape: the same bits on any machine."""
    squares = values * values
    size = 1 << max(0, (squares.numel() - 1).bit_length())
    squares = torch.nn.functional.pad(squares, (0, size - squares.numel()))
    while size > 1:
        size //= 2
        squares = squares[:size] + squares[size:]
    return math.sqrt(float(squares[0]))
