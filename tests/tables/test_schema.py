"""Schemas: what they mean, what they refuse, and that their digest is of the meaning alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import UsageError
from dresfl.tables import Column, Label, Schema, load_schema, parse_schema
from tables.ward import FEATURES, SCHEMA, SCHEMA_TEXT


def test_features_are_named_in_order() -> None:
    assert SCHEMA.feature_names == FEATURES
    assert (SCHEMA.num_features, SCHEMA.num_classes, SCHEMA.input_bound) == (11, 2, 1.0)


def test_a_written_schema_reads_back() -> None:
    again = parse_schema(SCHEMA.to_toml())
    assert again == SCHEMA
    assert again.digest() == SCHEMA.digest()


def test_the_digest_is_of_the_meaning() -> None:
    written_otherwise = SCHEMA_TEXT.replace("minimum = 0\n", "clip = false # the default\nminimum = 0.0\n")
    assert parse_schema(written_otherwise).digest() == SCHEMA.digest()
    changes = [
        ("maximum = 100", "maximum = 101"),
        ('"A", "B"', '"B", "A"'),
        ("other = true\n", ""),
        ('unit = "years"', 'unit = "months"'),
        ('["home", "ward"]', '["ward", "home"]'),
        ('missing = "indicator"', 'missing = "refuse"'),
        ("2020-12-31", "2020-12-30"),
    ]
    digests = {parse_schema(SCHEMA_TEXT.replace(*change, 1)).digest() for change in changes}
    assert len(digests | {SCHEMA.digest()}) == len(changes) + 1


def test_the_digest_stays(tmp_path: Path) -> None:
    """Agreements name it: a change of the canonical form needs a new format name in it."""
    schema = Schema("classification", (Column("x", "number", minimum=0, maximum=1),), Label("y", ("a", "b")))
    assert schema.digest().hex() == "857b547851733327247b023042e1c6478f7c994adb7ed92e7c6d9ab6902df42f"


words = st.text(st.sampled_from("aé=\"'\\\x7f\n\t#\U0001f600 "), min_size=1, max_size=8)
finite = st.floats(-1e9, 1e9)


@given(
    name=words, vocabulary=st.lists(words, min_size=2, max_size=5, unique=True), low=finite, unit=st.text(max_size=5)
)
def test_any_words_survive_toml(name: str, vocabulary: list[str], low: float, unit: str) -> None:
    columns = (
        Column(name + "1", "category", vocabulary=tuple(vocabulary)),
        Column(name + "2", "number", unit, low, low + 1 + abs(low)),
    )
    schema = Schema("classification", columns, Label(name, tuple(vocabulary)))
    assert parse_schema(schema.to_toml()) == schema


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('task = "classification"', "", "task is missing"),
        ('task = "classification"', 'task = "ranking"', "'ranking' is not known"),
        ('column = "outcome"', "", "[label] has no column"),
        ('column = "outcome"', 'column = "age"', "the column 'age' twice"),
        ('kind = "flag"', 'kind = "boolean"', "column 'smoker': kind = 'boolean'"),
        ('kind = "flag"\n', "", "column 'smoker' has no kind"),
        ("maximum = 100", "maximun = 100", "unknown key 'maximun'"),
        ("maximum = 100", 'maximum = "100"', "maximum must be a number"),
        ("maximum = 100", "maximum = inf", "must be finite"),
        ("maximum = 100", "maximum = 0", "not below maximum"),
        ("maximum = 100", "", "'age' has no scaling"),
        ('vocabulary = ["A", "B", "AB"]', "vocabulary = []", "without a vocabulary"),
        ('vocabulary = ["A", "B", "AB"]', 'vocabulary = ["A", "A"]', "one word twice"),
        ('encoding = "ordinal"', 'encoding = "ordinal"\nother = true', "no place for other words"),
        ("minimum = 2020-01-01", 'minimum = "2020-01-01"', "minimum must be a number"),
        ("fill = 0", "", "needs fill"),
        ("fill = 0", "fill = 2", "0 or 1"),
        ('classes = ["home", "ward"]', 'classes = ["home"]', "has 1 classes"),
        ("clip = true", "clip = 1", "clip must be true or false"),
        ('[label]', "[label", "not valid TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SCHEMA_TEXT
    path = tmp_path / "schema.toml"
    path.write_text(SCHEMA_TEXT.replace(old, new, 1))
    with pytest.raises(UsageError) as refused:
        load_schema(path)
    assert message in str(refused.value)


def test_scaling_by_mean_and_spread() -> None:
    column = Column("x", "number", mean=10, spread=4, minimum=2, maximum=30, missing="mean")
    assert column.scaling == (10.0, 0.25)
    assert column.fill_value == 10.0
    assert column.reach == 5.0
    assert replace(column, minimum=None).reach is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no\.toml"):
        load_schema(tmp_path / "no.toml")
