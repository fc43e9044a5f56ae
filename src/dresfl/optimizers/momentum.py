"""Gradient descent with momentum."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, final

from torch import Tensor

from .method import Method, State

if TYPE_CHECKING:
    from .optimizer import Optimizer


@final
class Momentum(Method):
    """The direction is the velocity v ← μ·v + g, as in torch.optim.SGD without dampening."""

    name: ClassVar[str] = "momentum"
    moments: ClassVar[tuple[str, ...]] = ("velocity",)
    linear: ClassVar[bool] = True

    @staticmethod
    def factors(settings: "Optimizer", steps: int) -> tuple[float, ...]:
        return ()

    @staticmethod
    def direction(
        settings: "Optimizer", state: Mapping[str, Tensor], factors: Sequence[float | Tensor], gradient: Tensor
    ) -> tuple[Tensor, State]:
        velocity = state["velocity"] * settings.momentum + gradient
        return velocity, {"velocity": velocity}
