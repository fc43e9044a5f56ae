"""The right-hand sides: the bound that holds, and Theorem 2 of the paper, as plain formulas.

Notation: η rate, τ steps, L smoothness, V variance of the batch gradient, δ grid of the weights, P weights,
G a bound on E‖g‖₁, Ψ = 1 − ηL/2. Everything is in real units: a weight is an integer times δ = 2^−lw.
"""

from dataclasses import dataclass
from typing import final

from dresfl.errors import UsageError


@final
@dataclass(frozen=True)
class Constants:
    """What the bounds need to know of a problem and of a run's settings."""

    start_gap: float  # ℓ(w_0) − inf ℓ
    smoothness: float  # L
    rate: float  # η
    grid: float  # δ
    num_weights: int  # P
    batch_variance: float  # V ≥ E‖g_t − ∇ℓ(w_t)‖²
    absolute_gradient: float  # G ≥ E‖g_t‖₁

    def __post_init__(self) -> None:
        if not self.damping > 0:
            raise UsageError(f"the bound needs ηL < 2, not {self.rate * self.smoothness:.3g}", "use a smaller rate")

    @property
    def damping(self) -> float:
        """Ψ = 1 − ηL/2."""
        return 1 - self.rate * self.smoothness / 2

    @property
    def rounding_variance(self) -> float:
        """min(δ²P/4, δηG): no step's rounding has a larger variance."""
        return min(self.grid**2 * self.num_weights / 4, self.grid * self.rate * self.absolute_gradient)


def bound(known: Constants, steps: int) -> float:
    """The bound that holds: (ℓ(w_0) − inf ℓ)/(ητΨ) + L/(2Ψ)·(ηV + min(δ²P/4, δηG)/η).

    >>> bound(Constants(1.0, 1.0, 1.0, 0.5, 16, 2.0, 100.0), steps=4)
    3.5
    """
    return bound_along(known, steps, known.batch_variance, known.rounding_variance)


def bound_along(known: Constants, steps: int, batch_variance: float, rounding_variance: float) -> float:
    """The same with the means over the run's steps of both variances, before any constant stands for them."""
    start = known.start_gap / (known.rate * steps * known.damping)
    noise = known.rate * batch_variance + rounding_variance / known.rate
    return start + known.smoothness / (2 * known.damping) * noise


def paper_bound(
    known: Constants, steps: int, *, shard_variance: float, gamma_squared: float, batch_size: int, num_shards: int
) -> float | None:
    """Theorem 2 as printed, with its σ² and γ²; None if its condition Ψ > 0 fails, so that it says nothing.

    >>> known = Constants(1.0, 1.0, 1.0, 0.5, 16, 2.0, 100.0)
    >>> paper_bound(known, 4, shard_variance=2.0, gamma_squared=0.0, batch_size=2, num_shards=1)
    1.5
    >>> paper_bound(known, 4, shard_variance=2.0, gamma_squared=1.0, batch_size=2, num_shards=1) is None
    True
    """
    rate, smoothness = known.rate, known.smoothness
    damping = 1 - rate * smoothness / 2 - rate * gamma_squared * smoothness / 2
    if not damping > 0:
        return None
    start = known.start_gap / (rate * steps * damping)
    spread = rate**2 * smoothness * shard_variance / (2 * batch_size * num_shards * damping)
    return start + spread * (gamma_squared + 1)
