"""`dresfl train` and `dr.simulate` on people's own files: tables of several clients, one table for all, images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import dresfl as dr
from commands import Run, refused
from dresfl.errors import UsageError
from dresfl.experiments.config import load_config

CLIENTS = 3

CONFIG = """
name = "own"
rounds = 6
evaluate_every = 6
engine = "direct"
threads = 1

[data]
files = ["site-0.csv", "site-1.csv", "site-2.csv"]
schema = "schema.toml"

[federation]
num_clients = 3
batch_size = 8

[model]
layers = [{ kind = "dense", units = 2 }]
"""


@pytest.fixture
def tables(tmp_path: Path) -> pd.DataFrame:
    """A file for each client, one for all, and the schema; returns the one for all."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.random((60, 2)), columns=["height", "width"])
    frame["round"] = generator.choice(["yes", "no"], 60)
    frame["kind"] = np.where(frame.height > frame.width, "tree", "bush")
    frame["site"] = [f"site {place % CLIENTS}" for place in range(60)]
    for client in range(CLIENTS):
        part = frame[frame.site == f"site {client}"].drop(columns="site")
        part.to_csv(tmp_path / f"site-{client}.csv", index=False)
    frame.to_parquet(tmp_path / "all.parquet")
    columns = (
        dr.Column("height", "number", unit="m", minimum=0, maximum=1),
        dr.Column("width", "number", unit="m", minimum=0, maximum=1),
        dr.Column("round", "flag"),
    )
    schema = dr.Schema("classification", columns, dr.Label("kind", ("bush", "tree")))
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    (tmp_path / "own.toml").write_text(CONFIG)
    return frame


def train(dresfl: Run, out: str, *settings: str, config: str = "own.toml") -> dict[str, Any]:
    given = [part for setting in settings for part in ("--set", setting)]
    result = dresfl("train", config, "--out", out, "--json", *given)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


ONE_FILE = ('data.files=["all.parquet"]', "data.client_column=site")


def test_files_and_one_file_with_a_client_column_are_the_same_run(tables: pd.DataFrame, dresfl: Run) -> None:
    by_files, by_column = train(dresfl, "a"), train(dresfl, "b", *ONE_FILE)
    assert by_files["weights_sha256"] == by_column["weights_sha256"]
    assert (by_files["train_rows"], by_files["test_rows"]) == (48, 12)


def test_the_coded_run_is_the_direct_one(tables: pd.DataFrame, dresfl: Run) -> None:
    assert train(dresfl, "a", "engine=coded")["weights_sha256"] == train(dresfl, "b")["weights_sha256"]


def test_the_hidden_mode_trains_on_tables(tables: pd.DataFrame, dresfl: Run) -> None:
    five_clients = ('data.files=["all.parquet"]', "federation.num_clients=5", "data.partition=iid")
    found = train(dresfl, "a", "mode=hidden", "optimizer.learning_rate=0.05", *five_clients)
    assert (found["mode"], found["train_rows"]) == ("hidden", 48)


def test_the_run_folder_knows_classes_and_schema(tables: pd.DataFrame, tmp_path: Path, dresfl: Run) -> None:
    train(dresfl, "a")
    assert dr.load_model(tmp_path / "a" / "model.safetensors").classes == ("bush", "tree")
    schema = dr.load_schema(tmp_path / "schema.toml")
    assert dr.load_schema(tmp_path / "a" / "schema.toml").digest() == schema.digest()
    assert load_config(str(tmp_path / "a" / "config.toml")).data.files == ("site-0.csv", "site-1.csv", "site-2.csv")


def test_simulate_gives_the_same_weights(tables: pd.DataFrame, tmp_path: Path, dresfl: Run) -> None:
    summary = train(dresfl, "a", "data.test_file=all.parquet")
    schema = dr.load_schema(tmp_path / "schema.toml")
    network = dr.mlp((schema.num_features, schema.num_classes), input_bits=4, weight_bits=10)
    settings = {"rounds": 6, "batch_size": 8, "engine": "direct", "schema": schema}
    paths = [tmp_path / f"site-{client}.csv" for client in range(CLIENTS)]
    frames = [tables[tables.site == f"site {client}"] for client in range(CLIENTS)]
    for clients in (paths, frames):
        run = dr.simulate(network, clients, test=tables, **settings)
        assert run.summary.weights_sha256 == summary["weights_sha256"]
        assert run.summary.test_accuracy == summary["test_accuracy"]
        assert run.model.classes == ("bush", "tree")
    one_value = dr.simulate(dr.mlp((3, 1), input_bits=4, weight_bits=10), frames, **settings)
    assert one_value.model.classes == ("bush", "tree")
    with pytest.raises(UsageError, match="3 features and 2 classes"):
        dr.simulate(dr.mlp((4, 2), input_bits=4, weight_bits=10), frames, **settings)
    numbers = dr.Network((dr.Dense(1),), (3,), input_bits=4, target_bits=8)
    with pytest.raises(UsageError, match="the network of a regression"):
        dr.simulate(numbers, frames, **settings)


@pytest.fixture
def heights(tables: pd.DataFrame, tmp_path: Path) -> dr.Schema:
    """The tables with a regression's schema: the height from the rest, which tells something about it."""
    columns = (
        dr.Column("width", "number", minimum=0, maximum=1),
        dr.Column("kind", "category", vocabulary=("bush", "tree")),
    )
    schema = dr.Schema("regression", columns, dr.Label("height", unit="m", minimum=0, maximum=1))
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    return schema


REGRESSION = ("rounds=100", "evaluate_every=100", 'model.layers=[{ kind = "dense", units = 1 }]')


def test_a_regression_on_tables(heights: dr.Schema, tables: pd.DataFrame, dresfl: Run) -> None:
    by_files = train(dresfl, "a", *REGRESSION, "engine=coded")
    by_column = train(dresfl, "b", *REGRESSION, *ONE_FILE)
    assert by_files["weights_sha256"] == by_column["weights_sha256"]
    assert by_files["test_r2"] == by_column["test_r2"]
    assert by_files["test_r2"] > 0.3
    dealt = train(dresfl, "c", *REGRESSION, ONE_FILE[0], "federation.num_clients=4")
    assert dealt["train_rows"] == 48
    frames = [tables[tables.site == f"site {client}"] for client in range(CLIENTS)]
    network = dr.Network((dr.Dense(1),), (3,), input_bits=4, weight_bits=10, target_bits=10)
    tested = train(dresfl, "d", *REGRESSION, "data.test_file=all.parquet")
    run = dr.simulate(network, frames, rounds=100, batch_size=8, engine="direct", schema=heights, test=tables)
    assert run.summary.weights_sha256 == tested["weights_sha256"]
    assert run.summary.test_r2 == tested["test_r2"]


def test_one_file_alone_is_dealt_out(tables: pd.DataFrame, dresfl: Run) -> None:
    found = train(dresfl, "a", ONE_FILE[0], "data.partition=iid", "federation.num_clients=4")
    assert found["train_rows"] == 48


def test_a_client_without_rows_helps(tables: pd.DataFrame, dresfl: Run) -> None:
    """It changes nothing in what the others' rows give."""
    files = 'data.files=["site-0.csv", "", "site-1.csv", "site-2.csv"]'
    found = train(dresfl, "a", files, "federation.num_clients=4", "engine=coded")
    assert found["train_rows"] == 48
    assert found["weights_sha256"] == train(dresfl, "b")["weights_sha256"]
    refused(dresfl("train", "own.toml", "--set", 'data.files=["", "", ""]'), 2, "names no file")


def test_files_below_the_data_folder(tables: pd.DataFrame, tmp_path: Path, dresfl: Run) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = dresfl("train", "../own.toml", "--data", "..", cwd=elsewhere)
    assert result.returncode == 0, result.stderr


def test_a_stopped_run_goes_on_only_with_its_own_rows(tables: pd.DataFrame, tmp_path: Path, dresfl: Run) -> None:
    train(dresfl, "a")
    (tmp_path / "a" / "summary.json").unlink()
    assert dresfl("train", "own.toml", "--out", "a", "--resume").returncode == 0
    (tmp_path / "a" / "summary.json").unlink()
    text = (tmp_path / "schema.toml").read_text()
    (tmp_path / "schema.toml").write_text(text.replace('unit = "m"', 'unit = "cm"'))
    refused(dresfl("train", "own.toml", "--out", "a", "--resume"), 1, "another schema")
    (tmp_path / "schema.toml").write_text(text)
    path = tmp_path / "site-0.csv"
    path.write_text(path.read_text().replace("yes", "no"))
    refused(dresfl("train", "own.toml", "--out", "a", "--resume"), 1, "other data")


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ("federation.num_clients=4", "data.files names 3 clients", "num_clients = 3"),
        ("data.dataset=mnist", "both given", ""),
        ("data.files=[]", "data.schema is of files", "files ="),
        ("data.files=[7]", "must be a list of strings", ""),
        ("data.schema=", "data.schema is empty", "schema init"),
        ("data.schema=none.toml", "cannot read none.toml", ""),
        ("data.client_column=site", "client_column is of one file", ""),
        ("data.test_share=1.0", "test_share", ""),
        ('model.layers=[{ kind = "dense", units = 3 }]', "2 classes", "units = 2"),
    ],
)
def test_what_does_not_fit_is_named(tables: pd.DataFrame, dresfl: Run, setting: str, message: str, hint: str) -> None:
    result = dresfl("train", "own.toml", "--set", setting)
    refused(result, result.returncode, message, hint)
    assert result.returncode in (1, 2)


def test_images_in_folders(tmp_path: Path, dresfl: Run) -> None:
    generator = np.random.default_rng(0)
    for client in range(CLIENTS):
        for name, light in (("dark", 0), ("light", 128)):
            folder = tmp_path / f"site-{client}" / name
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = generator.integers(light, light + 128, (4, 4), np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    text = CONFIG.replace(".csv", "").replace('schema = "schema.toml"\n', "")
    (tmp_path / "images.toml").write_text(text)
    found = train(dresfl, "a", "rounds=60", config="images.toml")
    assert (found["train_rows"], found["test_rows"], found["test_accuracy"]) == (30, 6, 1.0)
    assert dr.load_model(tmp_path / "a" / "model.safetensors").classes == ("dark", "light")
    smaller = train(dresfl, "b", "data.image_size=2", config="images.toml")
    assert smaller["weights_sha256"] != found["weights_sha256"]
