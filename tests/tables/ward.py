"""A small table about patients, and the schema that fits it."""

from pathlib import Path

from dresfl.tables import Column, Label, Schema, parse_schema

SCHEMA_TEXT = """
task = "classification"

[label]
column = "outcome"
classes = ["home", "ward"]

[[columns]]
name = "age"
kind = "number"
unit = "years"
minimum = 0
maximum = 100

[[columns]]
name = "pressure"
kind = "number"
minimum = 50
maximum = 250
clip = true
missing = "indicator"

[[columns]]
name = "blood"
kind = "category"
vocabulary = ["A", "B", "AB"]
other = true
missing = "indicator"

[[columns]]
name = "stage"
kind = "category"
vocabulary = ["low", "middle", "high"]
encoding = "ordinal"

[[columns]]
name = "admitted"
kind = "date"
minimum = 2020-01-01
maximum = 2020-12-31

[[columns]]
name = "smoker"
kind = "flag"
missing = "constant"
fill = 0
"""

SCHEMA = parse_schema(SCHEMA_TEXT)

CSV = """patient,age,pressure,blood,stage,admitted,smoker,outcome
4711,50,150,A,low,2020-01-01,yes,home
4712,0,300,O,middle,2020-07-01,no,ward
4713,100,,,high,2020-12-31,,ward
"""

FEATURES = (
    "age",
    "pressure",
    "pressure missing",
    "blood=A",
    "blood=B",
    "blood=AB",
    "blood other",
    "blood missing",
    "stage",
    "admitted",
    "smoker",
)

# by hand: [-1, 1] over the range; the pressure of 300 is clipped; 2020-07-01 is day 182 of 365
INPUTS = [
    [0, 0, 0, 1, 0, 0, 0, 0, -1, -1, 1],
    [-1, 1, 0, 0, 0, 0, 1, 0, 0, 2 * 182 / 365 - 1, 0],
    [1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 0],
]


def write_csv(folder: Path, text: str = CSV, name: str = "ward.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def numbers_schema(columns: int, classes: tuple[str, ...] = ("0", "1")) -> Schema:
    """Columns x0, x1, … in [0, 1] and a label."""
    inputs = tuple(Column(f"x{place}", "number", minimum=0, maximum=1) for place in range(columns))
    return Schema("classification", inputs, Label("labels", classes))
