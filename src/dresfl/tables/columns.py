"""One column's cells -> numbers, with a mask for every way in which a cell can be wrong.

Notation: B rows of a batch. A cell that is wrong or missing is NaN among numbers, and −1 among places of words.
"""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt

from .reading import library
from .schema import Column

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_DAY = 86400.0
_FLAG_WORDS = ("0", "1", "false", "true", "no", "yes")  # of a flag that names no words: no, yes, no, yes, …


@final
@dataclass(eq=False)
class Cells:
    """What a batch of a column's cells is: values (B,), and masks (B,) by what is wrong, missing or clipped."""

    values: Floats
    wrong: dict[str, Mask] = field(default_factory=dict)
    missing: Mask | None = None
    clipped: Mask | None = None


def read_numbers(array: Any, column: Column) -> Cells:
    """Numbers, dates (as days since 1970) or flags (0 and 1), clipped if the column says so."""
    read = {"number": _numbers, "date": _dates, "flag": _flags}[column.kind]
    values, bad = read(array, column)
    cells = Cells(values)
    if len(values) == 0:
        return cells
    low, high = values.min(), values.max()  # NaN reaches both, so that one pass tells whether a row needs a look
    if not (np.isfinite(low) and np.isfinite(high)):
        nothing = np.isnan(values)
        cells.missing = nothing if bad is None else nothing & ~bad
        endless = np.isinf(values)
        if endless.any():
            cells.wrong["is not finite"] = endless
        if bad is not None:
            cells.wrong[f"is not a {column.kind}"] = bad
    _keep_in_range(cells, column, float(low), float(high))
    return cells


def _keep_in_range(cells: Cells, column: Column, low: float, high: float) -> None:
    values = cells.values
    for bound, words, outside in (
        (column.minimum, "is below the minimum", np.less),
        (column.maximum, "is above the maximum", np.greater),
    ):
        if bound is None or (not np.isnan(low) and not outside(low, bound) and not outside(high, bound)):
            continue
        mask = outside(values, bound) & np.isfinite(values)
        if not mask.any():
            continue
        if column.clip:
            cells.values = values = np.where(mask, bound, values)
            cells.clipped = mask if cells.clipped is None else cells.clipped | mask
        else:
            cells.wrong[words] = mask


def read_words(array: Any, words: Sequence[str], other: bool = False) -> tuple[Places, Mask, Mask]:
    """Places of the cells' words (B,), those that are missing and those that are no word.

    other: a word that is not among them has the place after the last.
    """
    arrow, compute = library("pyarrow"), library("pyarrow.compute")
    texts = as_text(array)
    places = compute.index_in(texts, value_set=arrow.array(list(words), arrow.string()), skip_nulls=True)
    missing = np.asarray(texts.is_null())
    found: Places = places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    unknown = (found < 0) & ~missing
    if other:
        found[unknown] = len(words)
        unknown = np.zeros_like(unknown)
    return found, missing, unknown


def as_text(array: Any) -> Any:
    """A column as texts without spaces around them; an empty one is missing. Whole numbers have no decimal point."""
    arrow, compute = library("pyarrow"), library("pyarrow.compute")
    kind = array.type
    if arrow.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if arrow.types.is_floating(kind):
        numbers = array.to_numpy(zero_copy_only=False).astype(np.float64)
        return arrow.array([None if np.isnan(x) else _number_text(x) for x in numbers.tolist()], arrow.string())
    texts = array if arrow.types.is_string(kind) else compute.cast(array, arrow.string())
    trimmed = compute.utf8_trim_whitespace(texts)
    return compute.if_else(compute.equal(trimmed, ""), arrow.scalar(None, arrow.string()), trimmed)


def missing_cells(array: Any) -> Mask:
    """The cells (B,) that hold nothing."""
    if library("pyarrow").types.is_floating(array.type):
        nothing: Mask = np.isnan(array.to_numpy(zero_copy_only=False).astype(np.float64))
        return nothing
    return np.asarray(as_text(array).is_null())


def _number_text(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)


def _is_text(array: Any) -> bool:
    types = library("pyarrow").types
    kind = array.type.value_type if types.is_dictionary(array.type) else array.type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _numbers(array: Any, column: Column) -> tuple[Floats, Mask | None]:
    arrow, compute = library("pyarrow"), library("pyarrow.compute")
    if _is_text(array):
        texts = as_text(array)
        try:
            return _to_numpy(compute.cast(texts, arrow.float64())), None
        except arrow.ArrowInvalid:
            return _one_by_one(texts, _number)
    types, kind = arrow.types, array.type
    if types.is_boolean(kind):
        array = compute.cast(array, arrow.uint8())
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)):
        return _nothing(array)
    return _to_numpy(compute.cast(array, arrow.float64(), safe=False)), None


def _number(text: str) -> float:
    if "_" in text:  # Python's alone
        raise ValueError
    return float(text)


def _dates(array: Any, column: Column) -> tuple[Floats, Mask | None]:
    arrow, compute = library("pyarrow"), library("pyarrow.compute")
    types, kind = arrow.types, array.type
    if _is_text(array):
        texts = as_text(array)
        try:
            return _seconds(compute.cast(texts, arrow.timestamp("s"))) / _DAY, None
        except arrow.ArrowInvalid:
            return _one_by_one(texts, _days)
    if types.is_date(kind) or types.is_timestamp(kind):
        return _seconds(compute.cast(array, arrow.timestamp("us"), safe=False), 1e-6) / _DAY, None
    if types.is_null(kind):
        return np.full(len(array), np.nan), None
    return _nothing(array)


def _seconds(stamps: Any, unit: float = 1.0) -> Floats:
    arrow, compute = library("pyarrow"), library("pyarrow.compute")
    return _to_numpy(compute.cast(compute.cast(stamps, arrow.int64()), arrow.float64(), safe=False)) * unit


def _days(text: str) -> float:
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp() / _DAY


def _flags(array: Any, column: Column) -> tuple[Floats, Mask | None]:
    arrow, compute = library("pyarrow"), library("pyarrow.compute")
    types = arrow.types
    if types.is_null(array.type):
        return np.full(len(array), np.nan), None
    if not column.vocabulary and (types.is_boolean(array.type) or types.is_integer(array.type)):
        values = _to_numpy(compute.cast(compute.cast(array, arrow.int64()), arrow.float64(), safe=False))
        bad = ~np.isin(values, (0.0, 1.0)) & ~np.isnan(values)
    else:
        texts = as_text(array)
        words = column.vocabulary
        if not words:
            texts, words = compute.utf8_lower(texts), _FLAG_WORDS
        places, missing, bad = read_words(texts, words)
        values = np.where(missing, np.nan, (places % 2).astype(np.float64))
    if not bad.any():
        return values, None
    return np.where(bad, np.nan, values), bad


def _one_by_one(texts: Any, read: Callable[[str], float]) -> tuple[Floats, Mask]:
    """Texts among which some are wrong: only Python says which."""
    values, bad = np.full(len(texts), np.nan), np.zeros(len(texts), np.bool_)
    for place, text in enumerate(texts.to_pylist()):
        if text is None:
            continue
        try:
            values[place] = read(text)
        except (ValueError, OverflowError):
            bad[place] = True
    return values, bad


def _nothing(array: Any) -> tuple[Floats, Mask]:
    """Of a type that is none of the wanted: every cell that is there is wrong."""
    return np.full(len(array), np.nan), ~np.asarray(array.is_null())


def _to_numpy(array: Any) -> Floats:
    """float64 (B,), NaN where a cell is missing."""
    found: Floats = array.to_numpy(zero_copy_only=False)
    return found
