"""Plain gradient descent."""

from typing import ClassVar, final

from torch import Tensor

from .optimizer import Factors, Method, Moments, Optimizer, State


@final
class Sgd(Method):
    """The direction is the gradient."""

    name: ClassVar[str] = "sgd"
    moments: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def direction(settings: Optimizer, state: Moments, factors: Factors, gradient: Tensor) -> tuple[Tensor, State]:
        return gradient, {}
