"""What a server does with a gradient: schedules, clipping, SGD, momentum, Adam, weight decay.

Everything is a pure function of (settings, state, round, gradient, weights) in float64, made of single IEEE
operations in a fixed order, so that every device and thread count gives the same bits. The schedule's cosine and
powers come from the host's C library, once a round.
"""

import math
from collections.abc import Sequence
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
        if not all(map(math.isfinite, (self.weight_decay, self.max_norm, self.epsilon, self.learning_rate))):
            raise UsageError("learning_rate, weight_decay, max_norm and epsilon must be finite")
        if not self.learning_rate > 0:
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

    def initial_state(self, size: int, device: str = "cpu") -> State:
        """Moments (P,), and the number of steps taken, which stays on the host."""
        names = {"sgd": (), "momentum": ("velocity",), "adam": ("first", "second")}[self.method]
        state = {name: torch.zeros(size, dtype=torch.float64, device=device) for name in names}
        return {**state, "steps": torch.zeros(1, dtype=torch.int64)}

    def factors(self, rate: float, steps: int) -> tuple[float, float, float]:
        """What step number `steps` multiplies by: the rate, and Adam's two corrections of its moments."""
        return rate, 1 / (1 - self.beta1**steps), 1 / (1 - self.beta2**steps)

    def update(self, state: State, rate: float, gradient: Tensor, weights: Tensor) -> tuple[Tensor, State]:
        """The real update to subtract from the real weights, and the state after it."""
        steps = state["steps"] + 1
        update, moments = self.direction(state, self.factors(rate, int(steps)), gradient, weights)
        return update, {**moments, "steps": steps}

    def direction(
        self, state: State, factors: Sequence[float] | Tensor, gradient: Tensor, weights: Tensor
    ) -> tuple[Tensor, State]:
        """`update` with its `factors` given, as numbers or as a tensor (3,): no step here looks at the host.

        Multiplications by reciprocals instead of divisions by numbers: devices round the latter differently.
        """
        rate, first_correction, second_correction = factors
        gradient = self._clipped(gradient)
        after: State = {}
        if self.method == "sgd":
            direction = gradient
        elif self.method == "momentum":
            direction = after["velocity"] = state["velocity"] * self.momentum + gradient
        else:
            first = after["first"] = state["first"] * self.beta1 + gradient * (1 - self.beta1)
            second = after["second"] = state["second"] * self.beta2 + (gradient * gradient) * (1 - self.beta2)
            spread = (second * second_correction).sqrt() + self.epsilon
            direction = (first * first_correction) / spread
        if self.weight_decay:
            direction = direction + weights * self.weight_decay
        return direction * rate, after

    def _clipped(self, gradient: Tensor) -> Tensor:
        if not self.max_norm:
            return gradient
        norm = squared_norm(gradient).sqrt()
        limit = torch.full_like(norm, self.max_norm)
        return gradient * torch.where(norm > limit, limit / norm, torch.ones_like(norm))


def squared_norm(values: Tensor) -> Tensor:
    """The sum of squares, a 0-dimensional tensor, as a balanced tree of fixed shape: the same bits on any machine."""
    squares = values * values
    size = 1 << max(0, (squares.numel() - 1).bit_length())
    squares = torch.nn.functional.pad(squares, (0, size - squares.numel()))
    while size > 1:
        size //= 2
        squares = squares[:size] + squares[size:]
    return squares[0]


def l2_norm(values: Tensor) -> float:
    """The L2 norm of `squared_norm`'s sum."""
    return math.sqrt(float(squared_norm(values)))
