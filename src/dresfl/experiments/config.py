"""A run's configuration: TOML in, frozen and checked once, TOML out.

Every key is a field of a dataclass here (or of a layer, or of `Optimizer`): docs/reference/configuration.md lists them.
"""

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, final

from dresfl.errors import UsageError
from dresfl.features import Features
from dresfl.model import Layer, Network, layer_kinds
from dresfl.optimizers import Optimizer
from dresfl.runtimes.local import Engine


@final
@dataclass(frozen=True)
class Data:
    """Which data set, and how it is spread over the clients."""

    dataset: str = "digits"
    partition: Literal["label-sorted", "dirichlet", "iid"] = "label-sorted"
    alpha: float = 0.5  # of the Dirichlet partition: smaller is more skewed


@final
@dataclass(frozen=True)
class Federation:
    """N, K, T and the batch."""

    num_clients: int = 20
    num_shards: int = 1
    max_colluders: int = 1
    batch_size: int = 64


@final
@dataclass(frozen=True)
class Model:
    """The network and its fixed point."""

    layers: tuple[Layer, ...] = ()
    input_bits: int = 4
    weight_bits: int = 10
    shift: float = 0.0


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
    federation: Federation = field(default_factory=Federation)
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    dropout: Dropout = field(default_factory=Dropout)
    features: Features = field(default_factory=Features)
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        for name in ("rounds", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.threads < 0:
            raise UsageError(f"threads must not be negative, not {self.threads}")
        if not self.model.layers:
            raise UsageError("the model has no layers", 'give [model] a list: layers = [{ kind = "dense", … }]')


# -- TOML in ---------------------------------------------------------------------------------------------------

_T = TypeVar("_T")


def closest(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word nearest to `word`."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(names)


def presets() -> list[str]:
    """The names of the presets that come with the package."""
    folder = resources.files(__package__) / "presets"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_config(source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """A preset's name or a TOML file, with `key=value` overrides (dotted keys, TOML values).

    >>> load_config("digits", ["optimizer.learning_rate=0.5"]).optimizer.learning_rate
    0.5
    """
    table = load_table(source)
    for override in overrides:
        _override(table, override)
    return parse(RunConfig, table)


def load_table(source: str) -> dict[str, Any]:
    """The TOML table of a preset or a file."""
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {source}: {error}") from error
    elif source in presets():
        text = (resources.files(__package__) / "presets" / f"{source}.toml").read_text(encoding="utf-8")
    else:
        raise UsageError(f"{source!r} is neither a preset nor a TOML file", closest(source, presets()))
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is not valid TOML: {error}") from error


def _override(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UsageError(f"--set {override!r} is not key=value", "for example --set optimizer.learning_rate=0.05")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *parents, last = key.strip().split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {override!r}: {parent} is not a table")
    table[last] = value


def parse(kind: type[_T], table: object, where: str = "") -> _T:
    """A dataclass from a TOML table: unknown keys, missing keys and wrong types are named."""
    if not isinstance(table, Mapping):
        raise UsageError(f"{where or 'the configuration'} must be a table, not {table!r}")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise UsageError(f"unknown key {_dotted(where, key)!r}", closest(key, fields))
    values = {key: _value(hints[key], value, _dotted(where, key)) for key, value in table.items()}
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise UsageError(f"the key {_dotted(where, name)!r} is missing")
    return kind(**values)


def parse_layer(table: object, where: str) -> Layer:
    """One layer from its inline table: { kind = "dense", units = 64 }."""
    kinds = layer_kinds()
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        raise UsageError(f"{where} needs a kind", "known: " + ", ".join(kinds))
    if table["kind"] not in kinds:
        raise UsageError(f"{where}: unknown kind {table['kind']!r}", closest(table["kind"], kinds))
    return parse(kinds[table["kind"]], {k: v for k, v in table.items() if k != "kind"}, where)


def parse_model(path: Path, *, input_bits: int, weight_bits: int) -> Network:
    """The network of a TOML file's [model] table, which here also needs its input_shape.

    The file's own input_bits and weight_bits win over the arguments. An agreement's input_bound is understood too.
    """
    table = load_table(str(path)).get("model")
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


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _value(hint: Any, value: object, where: str) -> Any:
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if hint == tuple[Layer, ...]:
        if not isinstance(value, list):
            raise UsageError(f"{where} must be a list of layers")
        return tuple(parse_layer(entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if hint == tuple[int, ...]:
        if not isinstance(value, list) or any(type(entry) is not int for entry in value):
            raise UsageError(f"{where} must be a list of integers, not {value!r}")
        return tuple(value)
    if origin in (types.UnionType, typing.Union):  # `int | None`: TOML has no null, so the other one
        (hint,) = (choice for choice in choices if choice is not types.NoneType)
        return _value(hint, value, where)
    if origin is Literal:
        if value not in choices:
            raise UsageError(f"{where} = {value!r} is not known", closest(str(value), map(str, choices)))
        return value
    if dataclasses.is_dataclass(hint):
        return parse(typing.cast(type, hint), value, where)
    if hint is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not hint:
        raise UsageError(f"{where} = {value!r} must be of type {hint.__name__}, not {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{where} = {value!r} must be finite")
    return value


# -- TOML out --------------------------------------------------------------------------------------------------


def to_toml(config: object) -> str:
    """The whole configuration, defaults included; `parse` reads it back to an equal one."""
    scalars: list[str] = []
    tables: list[str] = []
    for name, value in _items(config):
        if dataclasses.is_dataclass(value):
            entries = [f"{key} = {_literal(entry)}" for key, entry in _items(value)]
            tables.append("\n".join([f"\n[{name}]", *entries]))
        else:
            scalars.append(f"{name} = {_literal(value)}")
    return "\n".join([*scalars, *tables]) + "\n"


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]


def _literal(value: Any) -> str:
    if isinstance(value, Layer):
        entries = [f"{key} = {_literal(entry)}" for key, entry in value.to_dict().items() if entry is not None]
        return "{ " + ", ".join(entries) + " }"
    if isinstance(value, tuple):
        return "[\n" + "".join(f"    {_literal(entry)},\n" for entry in value) + "]"
    # TOML's numbers and booleans are JSON's, and so are its strings, but for surrogate pairs and DEL
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
