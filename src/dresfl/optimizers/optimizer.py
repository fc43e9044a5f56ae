"""The coordinator's optimiser: its settings, and the parts that all methods share (rate, clipping, weight decay).

Everything is a pure function of (settings, state, round, gradient, weights) in float64. It is made of single IEEE
operations in a fixed order, so that every device and thread count gives the same bits. The schedule's cosine and powers
come from the host's C library, once a round.
"""

import importlib
import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, final, get_args

import torch
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.kernels import squares_by_sixteen

State = dict[str, Tensor]
Moments = Mapping[str, Tensor]
Factors = Sequence[float | Tensor]
Schedule = Literal["constant", "step", "cosine"]


@final
@dataclass(frozen=True)
class Optimizer:
    """The settings of the coordinator's optimiser. The defaults are the paper's: SGD, ×0.65 every 1500 rounds."""

    method: str = "sgd"  # or "momentum", or "adam": `methods` lists them
    learning_rate: float = 0.1
    schedule: Schedule = "step"
    decay_factor: float = 0.65
    decay_every: int = 1500
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float = 0.0  # L2 clipping of the mean gradient; 0: none

    def __post_init__(self) -> None:
        for name, known in (("method", methods()), ("schedule", get_args(Schedule))):
            if getattr(self, name) not in known:
                raise UsageError(f"unknown {name} {getattr(self, name)!r}", f"use one of {', '.join(sorted(known))}")
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

    @cached_property
    def _method(self) -> type["Method"]:
        return methods()[self.method]

    def rate(self, round_number: int, rounds: int) -> float:
        """The learning rate of a round. Skipped rounds count, as in the paper.

        >>> Optimizer().rate(1500, 70_000) == 0.1 * 0.65
        True
        """
        if self.schedule == "step":
            return self.learning_rate * self.decay_factor ** (round_number // self.decay_every)
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, round_number / rounds)))
        return self.learning_rate

    def initial_state(self, size: int, device: str = "cpu") -> State:
        """The method's moments (P,), and the number of steps taken, which stays on the host."""
        state = {name: torch.zeros(size, dtype=torch.float64, device=device) for name in self._method.moments}
        return {**state, "steps": torch.zeros(1, dtype=torch.int64)}

    @property
    def num_factors(self) -> int:
        """How many numbers `factors` gives."""
        return len(self.factors(1.0, 1))

    def factors(self, rate: float, steps: int) -> tuple[float, ...]:
        """What step number `steps`, counted from 1, multiplies by: the rate, then what the method declares."""
        return rate, *self._method.factors(self, steps)

    def update(
        self,
        state: Moments,
        factors: Sequence[float] | Tensor,
        gradient: Tensor,
        weights: Tensor,
        squares: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """The real update to subtract from the real weights, and the moments after it.

        factors: from `factors`, as numbers or as a tensor. squares: the whole gradient's `squared_norm`, for callers
        that have it; needed if `gradient` is a part of it. Nothing here looks at a value on the host.
        """
        rate, *others = factors
        direction, moments = self._method.direction(self, state, others, self._clipped(gradient, squares))
        if self.weight_decay:
            direction = direction + weights * self.weight_decay
        return direction * rate, moments

    def _clipped(self, gradient: Tensor, squares: Tensor | None) -> Tensor:
        if not self.max_norm:
            return gradient
        norm = (squared_norm(gradient) if squares is None else squares).sqrt()
        limit = torch.full_like(norm, self.max_norm)
        return gradient * torch.where(norm > limit, limit / norm, torch.ones_like(norm))


class Method(ABC):
    """One method, as functions of the settings and of the method's state. Its classes are never instantiated.

    `direction` runs on any device, also inside a captured graph: it does not look at values, and it takes every number
    that changes from step to step from `factors`. It is made of single IEEE operations in a fixed order, so that every
    device and thread count gives the same bits. It multiplies by reciprocals, since devices round divisions by a
    number differently.
    """

    name: ClassVar[str]
    moments: ClassVar[tuple[str, ...]]  # the state's tensors (P,), all zero at the beginning

    @staticmethod
    def factors(settings: Optimizer, steps: int) -> tuple[float, ...]:
        """The numbers that step number `steps`, counted from 1, needs; always equally many. Most methods need none."""
        return ()

    @staticmethod
    @abstractmethod
    def direction(settings: Optimizer, state: Moments, factors: Factors, gradient: Tensor) -> tuple[Tensor, State]:
        """The direction to go against, and the moments after this step."""


def methods() -> dict[str, type[Method]]:
    """Every method by its name: those that the files of this folder define.

    >>> sorted(methods())
    ['adam', 'momentum', 'sgd']
    """
    package = importlib.import_module(__package__)
    files = pkgutil.iter_modules(package.__path__)
    modules = (importlib.import_module(f"{__package__}.{file.name}") for file in files)
    return {
        thing.name: thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Method) and "name" in vars(thing)
    }


def squared_norm(values: Tensor) -> Tensor:
    """The sum of squares, a 0-dimensional tensor, added as a balanced tree of fixed shape: the same bits everywhere."""
    summed = squares_by_sixteen(values)  # the first four levels of the tree, where a GPU adds them in one pass
    if summed is not None:
        return _tree_sum(torch.nn.functional.pad(summed, (0, _power_of_two(summed.numel()) - summed.numel())))
    return squared_norm_of(lambda first, last: values[first:last], values.numel(), max(1, values.numel()))


def squared_norm_of(part: Callable[[int, int], Tensor], count: int, block: int) -> Tensor:
    """`squared_norm` of `count` values that are made a block at a time: part(first, last).

    The tree adds value i and value i + half first, half being the largest power of two below `count`; then the sums i
    and i + half/2; and so on. Values beyond the last one count as zero.
    """
    half = max(1, _power_of_two(count) // 2)
    squares = part(0, 0).new_zeros(half)
    for first in range(0, half, block):
        for start in (first, first + half):
            values = part(start, max(start, min(start + block, start - first + half, count)))
            squares[first : first + values.numel()] += values * values
    return _tree_sum(squares)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << max(0, count - 1).bit_length()


def _tree_sum(squares: Tensor) -> Tensor:
    """The sum of a power of two of values: the second half is added to the first, and so on. It overwrites them."""
    half = squares.numel()
    while half > 1:
        half //= 2
        squares[:half] += squares[half : 2 * half]
    return squares[0]
