"""TOML in and out, for frozen dataclasses: every key is a field, checked once and named if it is wrong."""

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from dresfl.errors import UsageError
from dresfl.model import Layer, layer_kinds

_T = TypeVar("_T")


def closest(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word nearest to `word`."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(names)


def load_table(path: Path) -> dict[str, Any]:
    """The TOML table of a file."""
    try:
        return parse_table(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error


def parse_table(text: str, source: str) -> dict[str, Any]:
    """The TOML table of a text that came from `source`."""
    try:
        return _loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError; so is an impossible date
        raise UsageError(f"{source} is not valid TOML: {error}") from error


def _loads(text: str) -> dict[str, Any]:
    table = tomllib.loads(text)
    _check_integers(table)
    return table


def _check_integers(value: object) -> None:
    """TOML has integers of 64 bits. Python reads longer ones, but cannot even write them into an error."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an integer does not fit 64 bits")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_integers(part)


def override(table: dict[str, Any], settings: Sequence[str]) -> None:
    """Change a table by settings of the form key=value, with dotted keys and TOML values.

    >>> table = {"optimizer": {"method": "sgd"}}
    >>> override(table, ["optimizer.method=adam", "rounds=10"])
    >>> table == {"optimizer": {"method": "adam"}, "rounds": 10}
    True
    """
    for setting in settings:
        _override(table, setting)


def _override(table: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise UsageError(f"--set {setting!r} is not key=value", "for example --set optimizer.learning_rate=0.05")
    try:
        value = _loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a bare word is a string
    *parents, last = key.strip().split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {setting!r}: {parent} is not a table")
    table[last] = value


def parse(kind: type[_T], table: object, where: str = "", default: object = None) -> _T:
    """A dataclass from a TOML table: unknown keys, missing keys and wrong types are named.

    default: an instance whose values stand for keys that the table leaves out.
    A field's metadata may have a `hint`: what to write, if the key is missing or has a value that is not known.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"{where or 'the configuration'} must be a table, not {table!r}")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise UsageError(f"unknown key {_dotted(where, key)!r}", closest(key, fields))
    values = {}
    for key, value in table.items():
        f = fields[key]
        values[key] = _value(hints[key], value, _dotted(where, key), f.default, f.metadata.get("hint", ""))
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if name not in values and isinstance(default, kind):
            values[name] = getattr(default, name)
        elif name not in values and required:
            raise UsageError(f"the key {_dotted(where, name)!r} is missing", f.metadata.get("hint", ""))
    return kind(**values)


def parse_layer(table: object, where: str) -> Layer:
    """One layer from its inline table: { kind = "dense", units = 64 }."""
    kinds = layer_kinds()
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        raise UsageError(f"{where} needs a kind", "known: " + ", ".join(kinds))
    if table["kind"] not in kinds:
        raise UsageError(f"{where}: unknown kind {table['kind']!r}", closest(table["kind"], kinds))
    return parse(kinds[table["kind"]], {k: v for k, v in table.items() if k != "kind"}, where)


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _value(hint: Any, value: object, where: str, default: object = None, advice: str = "") -> Any:
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if hint == tuple[Layer, ...]:
        if not isinstance(value, list):
            raise UsageError(f"{where} must be a list of layers")
        return tuple(parse_layer(entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if hint in (tuple[int, ...], tuple[str, ...]):
        entry_type, words = (int, "integers") if hint == tuple[int, ...] else (str, "strings")
        if not isinstance(value, list) or any(type(entry) is not entry_type for entry in value):
            raise UsageError(f"{where} must be a list of {words}, not {value!r}")
        return tuple(value)
    if origin in (types.UnionType, typing.Union):  # `int | None`: TOML has no null, so the other one
        (hint,) = (choice for choice in choices if choice is not types.NoneType)
        return _value(hint, value, where)
    if origin is Literal:
        if value not in choices:
            raise UsageError(f"{where} = {value!r} is not known", advice or closest(str(value), map(str, choices)))
        return value
    if dataclasses.is_dataclass(hint):
        return parse(typing.cast(type, hint), value, where, default)
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
    # TOML writes numbers, booleans and strings as JSON does. Two differences: surrogate pairs, and the character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
