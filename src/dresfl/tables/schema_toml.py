"""TOML in and out for schemas: keys and types are checked here, what they mean in `schema`."""

import datetime
import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from dresfl.errors import UsageError

if TYPE_CHECKING:
    from .schema import Column, Label

EPOCH = datetime.date(1970, 1, 1)

_TEXT, _NUMBER, _YES_OR_NO, _WORDS = "text", "a number", "true or false", "a list of texts"
_COLUMN = {
    "name": _TEXT,
    "kind": _TEXT,
    "unit": _TEXT,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "clip": _YES_OR_NO,
    "vocabulary": _WORDS,
    "other": _YES_OR_NO,
    "missing": _TEXT,
    "fill": "a number or text",
    "mean": _NUMBER,
    "spread": _NUMBER,
    "encoding": _TEXT,
}
_LABEL = {
    "column": _TEXT,
    "classes": _WORDS,
    "unit": _TEXT,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "clip": _YES_OR_NO,
    "mean": _NUMBER,
    "spread": _NUMBER,
}
_POINTS_IN_TIME = ("minimum", "maximum", "fill", "mean")  # of a date column, written as dates


def read_table(text: str, source: str) -> dict[str, Any]:
    """The TOML table of a schema's text, with no keys but its own."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not valid TOML: {error}") from error
    _check_keys(table, ("task", "label", "columns"), source)
    return table


def read_columns(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The values of every [[columns]]."""
    found = table.get("columns", [])
    if not isinstance(found, list):
        raise UsageError("columns must be a list of tables", "begin each column with [[columns]]")
    columns = []
    for place, column in enumerate(found, 1):
        name = column.get("name") if isinstance(column, dict) else None
        where = f"column {name!r}" if isinstance(name, str) else f"column number {place}"
        values = _values(column, _COLUMN, where)
        for key in ("name", "kind"):
            if key not in values:
                raise UsageError(f"{where} has no {key}")
        columns.append(values)
    return columns


def read_label(table: Mapping[str, Any]) -> dict[str, Any]:
    """The values of [label]."""
    values = _values(table.get("label", {}), _LABEL, "[label]")
    if "column" not in values:
        raise UsageError("[label] has no column", 'write column = "NAME" into [label]')
    return values


def _values(table: object, kinds: Mapping[str, str], where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise UsageError(f"{where} must be a table")
    _check_keys(table, kinds, where)
    is_date = table.get("kind") == "date"
    return {key: _value(value, kinds[key], f"{where}: {key}", is_date) for key, value in table.items()}


def _value(value: object, wanted: str, where: str, is_date: bool) -> object:
    if is_date and isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return float((value - EPOCH).days)
    if type(value) in (int, float) and "number" in wanted:
        number = float(value)  # type: ignore[arg-type]
        if not math.isfinite(number):
            raise UsageError(f"{where} must be finite")
        return number
    if wanted == _WORDS and isinstance(value, list) and all(type(word) is str for word in value):
        return tuple(value)
    if (wanted == _YES_OR_NO and type(value) is bool) or ("text" in wanted and type(value) is str):
        return value
    hint = "write dates as 1950-01-31, without quotes" if is_date and wanted == _NUMBER else ""
    raise UsageError(f"{where} must be {wanted}", hint)


def _check_keys(table: Mapping[str, object], known: Any, where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, list(known), 1, 0.5)
            raise UsageError(
                f"{where}: unknown key {key!r}", f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(known)
            )


def column_toml(column: "Column", comment: str = "") -> str:
    """One [[columns]] table; defaults are left out, but what a draft leaves open is shown."""
    lines = [f"# {line}" for line in comment.splitlines()] + ["[[columns]]"]
    for one in fields(column):
        value = getattr(column, one.name)
        open_words = one.name == "vocabulary" and column.kind == "category"
        if one.default is MISSING or value != one.default or open_words:
            lines.append(f"{one.name} = {_literal(value, column.kind == 'date' and one.name in _POINTS_IN_TIME)}")
    return "\n".join(lines) + "\n"


def label_toml(label: "Label", comment: str = "") -> str:
    """The table [label]."""
    lines = [f"# {line}" for line in comment.splitlines()] + ["[label]"]
    for one in fields(label):
        value = getattr(label, one.name)
        if one.default is MISSING or value != one.default:
            lines.append(f"{one.name} = {_literal(value)}")
    return "\n".join(lines) + "\n"


def _literal(value: object, as_date: bool = False) -> str:
    if as_date and isinstance(value, float) and value.is_integer():
        return (EPOCH + datetime.timedelta(days=int(value))).isoformat()
    if isinstance(value, tuple):
        return "[" + ", ".join(_literal(entry) for entry in value) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    # TOML writes the rest as JSON does, except for the character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
