"""The schema of a table, which all clients agree on: columns, ranges, words, missing values, label, scaling.

It is read from TOML, checked once, and has a digest that depends on what it means, not on how it is written.
Notation: F features, which are what the columns become.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np
import numpy.typing as npt

from dresfl.errors import UsageError

from .schema_toml import column_toml, label_toml, read_columns, read_label, read_table

Task = Literal["classification", "regression"]
Kind = Literal["number", "category", "date", "flag"]
Missing = Literal["refuse", "constant", "mean", "indicator"]
Encoding = Literal["one-hot", "ordinal"]


@final
@dataclass(frozen=True)
class Column:
    """One input column. Dates count in days since 1970-01-01, also in minimum, maximum, fill, mean and spread.

    >>> Column("age", "number", minimum=0, maximum=100).features
    ('age',)
    >>> Column("sex", "category", vocabulary=("f", "m"), missing="indicator").features
    ('sex=f', 'sex=m', 'sex missing')
    """

    name: str
    kind: Kind
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    clip: bool = False  # values out of range become the nearest bound; else they are refused
    vocabulary: tuple[str, ...] = ()  # of a category its words; of a flag, if given, the words for no and yes
    other: bool = False  # of a one-hot category: a feature for every word that is not in the vocabulary
    missing: Missing = "refuse"
    fill: float | str | None = None
    mean: float | None = None
    spread: float | None = None
    encoding: Encoding = "one-hot"

    def __post_init__(self) -> None:
        make_floats(self, "minimum", "maximum", "mean", "spread", "fill")
        self._check_choices()
        self._check_numbers()
        if self.kind == "category":
            self._check_category()
        else:
            self._check_no_category()

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features that the column becomes."""
        names: tuple[str, ...] = (self.name,)
        if self.kind == "category" and self.encoding == "one-hot":
            names = tuple(f"{self.name}={word}" for word in self.vocabulary)
            names += (f"{self.name} other",) if self.other else ()
        return (*names, f"{self.name} missing") if self.missing == "indicator" else names

    @property
    def scaling(self) -> tuple[float, float]:
        """(offset, factor): a value x becomes (x − offset)·factor. Ranges become [−1, 1]; flags stay 0 and 1."""
        if self.mean is not None and self.spread is not None:
            return self.mean, 1.0 / self.spread
        if self.kind == "flag":
            return 0.0, 1.0
        if self.minimum is None or self.maximum is None:
            raise UsageError(f"column {self.name!r} has no scaling", "give it minimum and maximum, or mean and spread")
        return (self.minimum + self.maximum) / 2, 2.0 / (self.maximum - self.minimum)

    @property
    def fill_value(self) -> float:
        """What stands for a missing number, date or flag, before scaling."""
        if isinstance(self.fill, float):
            return self.fill
        return self.mean if self.mean is not None else self.scaling[0]

    @property
    def reach(self) -> float | None:
        """The largest absolute feature that the schema allows; None if it sets no bound."""
        if self.kind == "category":
            return 1.0
        low, high = (0.0, 1.0) if self.kind == "flag" else (self.minimum, self.maximum)
        if low is None or high is None:
            return None
        offset, factor = self.scaling
        ends = [low, high] if self.missing == "refuse" else [low, high, self.fill_value]
        return max(1.0 if self.missing == "indicator" else 0.0, *(abs((end - offset) * factor) for end in ends))

    def check_complete(self) -> None:
        """Refuse what a draft may leave open: words and scaling."""
        if self.kind == "category" and not self.vocabulary:
            raise UsageError(
                f"column {self.name!r} is a category without a vocabulary",
                f"write its words, or draft the schema with --vocabulary {self.name}",
            )
        if self.kind != "category":
            _ = self.scaling

    def _refuse(self, message: str, hint: str = "") -> UsageError:
        return UsageError(f"column {self.name!r}: {message}", hint)

    def _check_choices(self) -> None:
        if not self.name:
            raise UsageError("a column has no name")
        for key, choices in (("kind", Kind), ("missing", Missing), ("encoding", Encoding)):
            if getattr(self, key) not in get_args(choices):
                raise self._refuse(
                    f"{key} = {getattr(self, key)!r} is not known", f"use one of {', '.join(get_args(choices))}"
                )
        if self.missing == "constant" and self.fill is None:
            raise self._refuse('missing = "constant" needs fill', "for example fill = 0")
        if self.missing == "mean" and self.mean is None:
            raise self._refuse('missing = "mean" needs mean', "agree on one, or use another rule")
        if self.fill is not None and self.missing not in ("constant", "indicator"):
            raise self._refuse(f"fill is not used with missing = {self.missing!r}", 'use missing = "constant"')
        if len(set(self.vocabulary)) != len(self.vocabulary) or "" in self.vocabulary:
            raise self._refuse("the vocabulary has an empty word, or one word twice")

    def _check_numbers(self) -> None:
        check_scale(f"column {self.name!r}", self.minimum, self.maximum, self.mean, self.spread, self.clip)

    def _check_category(self) -> None:
        numbers = ("minimum", "maximum", "mean", "spread")
        if given := [key for key in numbers if getattr(self, key) is not None] + ["clip"] * self.clip:
            raise self._refuse(f"a category has no {given[0]}")
        if self.other and self.encoding == "ordinal":
            raise self._refuse("an ordinal category has no place for other words", 'use encoding = "one-hot"')
        if self.encoding == "ordinal" and len(self.vocabulary) == 1:
            raise self._refuse("an ordinal category needs two words")
        if self.missing == "constant" and self.fill not in self.vocabulary:
            raise self._refuse("fill is not in the vocabulary")
        if self.missing == "indicator" and self.fill is not None:
            raise self._refuse("an indicator of a category takes no fill")

    def _check_no_category(self) -> None:
        if self.other or self.encoding != "one-hot":
            raise self._refuse(f"{'other' if self.other else 'encoding'} is of categories alone")
        if isinstance(self.fill, str):
            raise self._refuse(f"fill must be a {self.kind}, not text")
        if self.vocabulary and (self.kind != "flag" or len(self.vocabulary) != 2):
            raise self._refuse("a vocabulary is of categories, and of flags with two words: no, yes")
        if self.kind == "flag" and (self.minimum is not None or self.maximum is not None or self.clip):
            raise self._refuse("a flag has no range")
        if self.kind == "flag" and self.fill not in (None, 0.0, 1.0):
            raise self._refuse("fill of a flag is 0 or 1")
        bounds = (
            -math.inf if self.minimum is None else self.minimum,
            math.inf if self.maximum is None else self.maximum,
        )
        if isinstance(self.fill, float) and not bounds[0] <= self.fill <= bounds[1]:
            raise self._refuse("fill is out of range")


@final
@dataclass(frozen=True)
class Label:
    """The column that a model learns: a class, or in a regression a number.

    >>> Label("outcome", classes=("no", "yes")).classes
    ('no', 'yes')
    """

    column: str
    classes: tuple[str, ...] = ()
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    clip: bool = False
    mean: float | None = None
    spread: float | None = None

    def __post_init__(self) -> None:
        make_floats(self, "minimum", "maximum", "mean", "spread")
        if not self.column:
            raise UsageError("the label has no column", 'write column = "NAME" into [label]')
        check_scale("the label", self.minimum, self.maximum, self.mean, self.spread, self.clip)
        if len(set(self.classes)) != len(self.classes) or "" in self.classes:
            raise UsageError("the label has an empty class, or one class twice")

    @property
    def as_number(self) -> Column:
        """The target of a regression, as a column that may not be missing."""
        limits = self.minimum, self.maximum, self.clip
        return Column(self.column, "number", self.unit, *limits, mean=self.mean, spread=self.spread)


def make_floats(made: object, *names: str) -> None:
    """Let 0, 0.0 and -0.0 mean the same, in a dataclass that is being made."""
    for name in names:
        value = getattr(made, name)
        if isinstance(value, int | float):
            object.__setattr__(made, name, float(value) + 0.0)


def check_scale(
    what: str, minimum: float | None, maximum: float | None, mean: float | None, spread: float | None, clip: bool
) -> None:
    """Refuse a range or a scaling that is none."""
    if minimum is not None and maximum is not None and not minimum < maximum:
        raise UsageError(f"{what}: minimum {minimum:g} is not below maximum {maximum:g}")
    if clip and minimum is None and maximum is None:
        raise UsageError(f"{what}: clip needs minimum or maximum")
    if spread is not None and (mean is None or spread <= 0):
        raise UsageError(f"{what}: spread must be positive, and needs mean")


@final
@dataclass(frozen=True)
class Schema:
    """What a table must look like, and what becomes of it. Every client has the same.

    >>> age = Column("age", "number", unit="years", minimum=0, maximum=100)
    >>> schema = Schema("classification", (age,), Label("ill", classes=("no", "yes")))
    >>> schema.num_features, parse_schema(schema.to_toml()) == schema
    (1, True)
    """

    task: Task
    columns: tuple[Column, ...]
    label: Label
    comments: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)  # of a draft, by column

    def __post_init__(self) -> None:
        if self.task not in get_args(Task):
            raise UsageError(f"task = {self.task!r} is not known", f"use one of {', '.join(get_args(Task))}")
        if not self.columns:
            raise UsageError("the schema has no columns", "give it at least one [[columns]]")
        names = [*(column.name for column in self.columns), self.label.column]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"the schema has the column {twice!r} twice", "a label is not an input")
        if len(set(self.feature_names)) != self.num_features:
            raise UsageError("two features of the schema have the same name", "rename a column or a word")
        if self.task == "regression" and self.label.classes:
            raise UsageError("the label of a regression has no classes", 'use task = "classification"')

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the inputs (F,)."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def num_features(self) -> int:
        """F, the inputs of a network for this table."""
        return len(self.feature_names)

    @property
    def num_classes(self) -> int:
        """C, the outputs of a network for this table: 1 of a regression."""
        return len(self.label.classes) if self.task == "classification" else 1

    @property
    def input_bound(self) -> float | None:
        """No |input| is larger; None if a column has no bound."""
        reaches = [column.reach for column in self.columns]
        return None if None in reaches else max(reach for reach in reaches if reach is not None)

    def real_targets(self, outputs: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
        """A regression's outputs in the label's own unit: the way back from the scale in which a network learns them.

        >>> schema = Schema("regression", (Column("x", "flag"),), Label("y", minimum=0, maximum=10))
        >>> schema.real_targets(np.array([-1.0, 0.5])).tolist()
        [0.0, 7.5]
        """
        offset, factor = self.label.as_number.scaling
        return np.asarray(outputs, np.float64) / factor + offset

    def check_complete(self) -> "Schema":
        """This schema, if nothing is left open that encoding needs."""
        for column in self.columns:
            column.check_complete()
        if self.task == "classification" and len(self.label.classes) < 2:
            raise UsageError(
                f"the label {self.label.column!r} has {len(self.label.classes)} classes, at least 2 are wanted",
                'write classes = ["no", "yes"] into [label]',
            )
        if self.task == "regression":
            self.label.as_number.check_complete()
        return self

    def to_toml(self) -> str:
        """The schema as TOML; `parse_schema` reads it back."""
        head = f"task = {json.dumps(self.task)}\n"
        parts = [head, label_toml(self.label, self.comments.get("", ""))]
        parts += [column_toml(column, self.comments.get(column.name, "")) for column in self.columns]
        return "\n".join(parts)

    def digest(self) -> bytes:
        """SHA-256 of what the schema means. Comments, the order of keys and spelled-out defaults do not change it.

        >>> schema = Schema("regression", (Column("x", "flag"),), Label("y", minimum=0, maximum=1))
        >>> schema.digest() == parse_schema("# a remark\\n" + schema.to_toml()).digest()
        True
        """
        meaning = {
            "format": "dresfl schema 1",
            "task": self.task,
            "columns": [asdict(column) for column in self.columns],
            "label": asdict(self.label),
        }
        return hashlib.sha256(json.dumps(meaning, sort_keys=True, separators=(",", ":")).encode()).digest()


def load_schema(path: str | Path) -> Schema:
    """The schema of a TOML file, complete: a draft that leaves words or ranges open is refused.

    >>> import tempfile
    >>> schema = Schema("classification", (Column("x", "flag"),), Label("y", classes=("no", "yes")))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "schema.toml").write_text(schema.to_toml())
    ...     load_schema(Path(folder, "schema.toml")) == schema
    True
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "dresfl schema init FILE drafts a schema") from error
    return parse_schema(text, str(path)).check_complete()


def parse_schema(text: str, source: str = "the schema") -> Schema:
    """The schema of a TOML text; unknown keys and wrong types are named. It may leave words and ranges open."""
    table = read_table(text, source)
    try:
        columns = tuple(Column(**values) for values in read_columns(table))
        label = Label(**read_label(table))
        task = table.get("task")
        if not isinstance(task, str):
            raise UsageError("task is missing", 'write task = "classification" or task = "regression"')
        return Schema(task, columns, label)  # type: ignore[arg-type]
    except UsageError as error:
        raise UsageError(f"{source}: {error}", error.hint) from None
