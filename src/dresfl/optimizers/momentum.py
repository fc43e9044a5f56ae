"""Gradient descent with momentum."""

from typing import ClassVar, final

from torch import Tensor

from .optimizer import Factors, Method, Moments, Optimizer, State


@final
class Momentum(Method):
    """The direction is the velocity v ← μ·v + g, as in torch.optim.SGD without dampening."""

    name: ClassVar[str] = "momentum"
    moments: ClassVar[tuple[str, ...]] = ("velocity",)

    @staticmethod
    def direction(settings: Optimizer, state: Moments, factors: Factors, gradient: Tensor) -> tuple[Tensor, State]:
        velocity = state["velocity"] * settings.momentum + gradient
        return velocity, {"velocity": velocity}
