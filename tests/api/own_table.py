"""A small table of all kinds of columns, and a model that was trained on it: what tests of using a model need."""

import csv

import numpy as np

import dresfl as dr
from dresfl.api.model import Model
from dresfl.storage.model_file import with_schema
from dresfl.tables import Column, Encoder, Label, Schema, batches

SCHEMA = Schema(
    "classification",
    (
        Column("age", "number", unit="years", minimum=0, maximum=100, clip=True, mean=50, spread=20),
        Column("dose", "number", unit="mg", minimum=0, maximum=8, missing="indicator"),
        Column("ward", "category", vocabulary=("a", "b"), other=True),
        Column("smokes", "flag"),
    ),
    Label("outcome", classes=("ill", "well")),
)
HEAD = ("number", "age", "dose", "ward", "smokes", "outcome")


def cells(rows, seed=0):
    """Rows of the table, as texts; some ages are out of range, and some doses are missing."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(rows):
        age, dose = generator.uniform(-10, 120), generator.uniform(0, 8)
        outcome = "ill" if age + 6 * dose > 80 else "well"
        dose_text = "" if number % 7 == 3 else repr(float(dose))
        found.append((f"n{number}", repr(float(age)), dose_text, "abc"[number % 3], ("yes", "no")[number % 2], outcome))
    return found


def write_csv(path, found, leave_out=()):
    """Write rows as a CSV file, without some columns."""
    places = [place for place, name in enumerate(HEAD) if name not in leave_out]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([HEAD[place] for place in places])
        writer.writerows([[row[place] for place in places] for row in found])
    return path


def encoded(path, schema=SCHEMA):
    """A file's features (m,F) and labels (m,), by the encoder that clients use."""
    encoder = Encoder(schema)
    parts = [(encoder.inputs(batch), encoder.labels(batch)) for batch in batches(path, encoder.columns)]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def trained(path, rounds=60, schema=SCHEMA):
    """A model of the table in a file, which carries the schema."""
    inputs, labels = encoded(path, schema)
    network = dr.Network(
        (dr.Dense(4), dr.Square(), dr.Dense(2)), (schema.num_features,), input_bits=4, input_magnitude=2.0
    )
    rate = dr.Optimizer("adam", learning_rate=0.05)
    run = dr.simulate(network, [(inputs, labels)] * 5, rounds=rounds, optimizer=rate, engine="direct", threads=1)
    return Model(with_schema(run.model._stored, schema))
