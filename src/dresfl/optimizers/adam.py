"""Adam (Kingma and Ba, 2015)."""

from typing import ClassVar, final

from torch import Tensor

from .optimizer import Factors, Method, Moments, Optimizer, State


@final
class Adam(Method):
    """The corrected first moment, divided by the root of the corrected second moment plus epsilon."""

    name: ClassVar[str] = "adam"
    moments: ClassVar[tuple[str, ...]] = ("first", "second")

    @staticmethod
    def factors(settings: Optimizer, steps: int) -> tuple[float, ...]:
        """The corrections of the two moments, 1/(1 − β^steps)."""
        return 1 / (1 - settings.beta1**steps), 1 / (1 - settings.beta2**steps)

    @staticmethod
    def direction(settings: Optimizer, state: Moments, factors: Factors, gradient: Tensor) -> tuple[Tensor, State]:
        first_correction, second_correction = factors
        first = state["first"] * settings.beta1 + gradient * (1 - settings.beta1)
        second = state["second"] * settings.beta2 + (gradient * gradient) * (1 - settings.beta2)
        spread = (second * second_correction).sqrt() + settings.epsilon
        return (first * first_correction) / spread, {"first": first, "second": second}
