"""The configuration of one training run: frozen dataclasses, read from TOML and checked once.

Every key is a field of a dataclass here (or of a layer, or of `Optimizer`): docs/reference/configuration.md lists them.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, final

from dresfl.coding import CodeParameters
from dresfl.data import Partition
from dresfl.deploy.toml import closest, load_table, override, parse, parse_table
from dresfl.errors import UsageError
from dresfl.features import Features
from dresfl.federation.agreement import Mode
from dresfl.model import Layer, Network
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.plan import check_optimizer, refuse_local_steps
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.local import Engine

from .presets import preset_names, preset_text

PAPER_CODE = CodeParameters(num_clients=20)


@final
@dataclass(frozen=True)
class Data:
    """Which data set, and how it is spread over the clients."""

    dataset: str = "digits"
    partition: Partition = "label-sorted"
    alpha: float = 0.5  # of the Dirichlet partition: smaller is more skewed
    class_weights: tuple[int, ...] = ()  # how often clients repeat their rows of each class; empty: once


@final
@dataclass(frozen=True)
class Model:
    """The network and its fixed point."""

    layers: tuple[Layer, ...] = ()
    input_bits: int = 4
    weight_bits: int = 10
    shift: float = 0.0
    target_bits: int = 0  # scale of a regression's targets; 0: 10 bits for a regression, and none for classes


@final
@dataclass(frozen=True)
class Dropout:
    """Who goes missing in a simulation."""

    model: Literal["none", "bernoulli", "paper", "trace"] = "none"
    rate: float = 0.1  # of the bernoulli model
    trace: str = ""  # the trace model's file
    seed: int = 0


@final
@dataclass(frozen=True)
class RunConfig:
    """One training run."""

    name: str
    rounds: int
    seed: int = 0
    engine: Engine = "coded"
    evaluate_every: int = 100
    checkpoint_every: int = 100
    threads: int = 0  # 0: as torch chooses
    data: Data = field(default_factory=Data)
    federation: CodeParameters = PAPER_CODE
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    dropout: Dropout = field(default_factory=Dropout)
    features: Features = field(default_factory=Features)
    device: Literal["cpu", "cuda"] = "cpu"
    mode: Mode = "open"
    hidden: HiddenSettings = field(default_factory=HiddenSettings)  # of the hidden mode

    def __post_init__(self) -> None:
        for name in ("rounds", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.threads < 0:
            raise UsageError(f"threads must not be negative, not {self.threads}")
        if self.mode == "open" and self.hidden != HiddenSettings():
            raise UsageError("[hidden] has settings, but the mode is open", 'set mode = "hidden"')
        if self.mode == "hidden":
            check_optimizer(self.optimizer)
            refuse_local_steps(self.federation)
        if not self.model.layers:
            raise UsageError("the model has no layers", 'give [model] a list: layers = [{ kind = "dense", … }]')


def load_config(source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """A preset's name or a TOML file, with `key=value` overrides (dotted keys, TOML values).

    >>> load_config("digits", ["optimizer.learning_rate=0.5"]).optimizer.learning_rate
    0.5
    """
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        table = load_table(path)
    elif source in preset_names():
        table = parse_table(preset_text(source), source)
    else:
        raise UsageError(f"{source!r} is neither a preset nor a TOML file", closest(source, preset_names()))
    override(table, overrides)
    return parse(RunConfig, table)


def differences(one: RunConfig, other: RunConfig, ignored: Collection[str]) -> list[str]:
    """The keys in which two configurations differ, without those that are ignored."""
    names = [f.name for f in fields(one) if f.name not in ignored]
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def parse_model(path: Path, *, input_bits: int, weight_bits: int) -> Network:
    """The network of a TOML file's [model] table, which here also needs its input_shape.

    The file's own input_bits and weight_bits win over the arguments. An agreement's input_bound is understood too.
    """
    table = load_table(path).get("model")
    if not isinstance(table, dict):
        raise UsageError(f"{path} has no [model] table")
    shape = table.pop("input_shape", None)
    if not isinstance(shape, list) or not shape or any(type(n) is not int or n < 1 for n in shape):
        raise UsageError(f"{path}: [model] needs input_shape", "for example input_shape = [28, 28, 1] or [784]")
    bound = table.pop("input_bound", 1.0)
    if type(bound) not in (int, float) or not 0 < bound < math.inf:
        raise UsageError(f"{path}: input_bound must be a positive number, not {bound!r}")
    model = parse(Model, {"input_bits": input_bits, "weight_bits": weight_bits, **table}, "model")
    magnitude = max(0.0, math.log2(bound))
    return Network(model.layers, tuple(shape), model.input_bits, model.weight_bits, input_magnitude=magnitude)
