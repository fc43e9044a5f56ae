"""Plain gradient descent."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, final

from torch import Tensor

from .method import Method, State

if TYPE_CHECKING:
    from .optimizer import Optimizer


@final
class Sgd(Method):
    """The direction is the gradient."""

    name: ClassVar[str] = "sgd"
    moments: ClassVar[tuple[str, ...]] = ()
    linear: ClassVar[bool] = True

    @staticmethod
    def factors(settings: "Optimizer", steps: int) -> tuple[float, ...]:
        return ()

    @staticmethod
    def direction(
        settings: "Optimizer", state: Mapping[str, Tensor], factors: Sequence[float | Tensor], gradient: Tensor
    ) -> tuple[Tensor, State]:
        return gradient, {}
