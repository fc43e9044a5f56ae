"""What a method of optimisation declares: its name, its moments, its factors, and its direction."""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from .optimizer import Optimizer

State = dict[str, Tensor]


class Method(ABC):
    """One method, as functions of the settings and of the method's state. Its classes are never instantiated.

    `direction` runs on any device, also inside a captured graph: it does not look at values, and it takes every number
    that changes from step to step from `factors`. It is made of single IEEE operations in a fixed order, so that every
    device and thread count gives the same bits. It multiplies by reciprocals, since devices round divisions by a
    number differently.
    """

    name: ClassVar[str]
    moments: ClassVar[tuple[str, ...]]  # the state's tensors (P,), all zero at the beginning
    linear: ClassVar[bool]  # whether the direction is linear in the gradients, so that it can be taken of shares

    @staticmethod
    @abstractmethod
    def factors(settings: "Optimizer", steps: int) -> tuple[float, ...]:
        """The numbers that step number `steps`, counted from 1, needs; always equally many."""

    @staticmethod
    @abstractmethod
    def direction(
        settings: "Optimizer", state: Mapping[str, Tensor], factors: Sequence[float | Tensor], gradient: Tensor
    ) -> tuple[Tensor, State]:
        """The direction to go against, and the moments after this step."""


def methods() -> dict[str, type[Method]]:
    """Every method by its name: those that the files of this folder define.

    >>> sorted(methods())
    ['adam', 'momentum', 'sgd']
    """
    package = importlib.import_module(__name__.rpartition(".")[0])
    files = pkgutil.iter_modules(package.__path__)
    modules = (importlib.import_module(f"{package.__name__}.{file.name}") for file in files)
    return {
        thing.name: thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Method) and "name" in vars(thing)
    }
