"""predict, evaluate and export as a user runs them, from people's own tables to files."""

import csv
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from api.own_table import SCHEMA, cells, write_csv
from commands import Run, refused

CONFIG = """
name = "mine"
rounds = 40
threads = 1
[federation]
num_clients = 5
batch_size = 32
[data]
files = ["1.csv", "2.csv", "3.csv", "4.csv", "5.csv"]
schema = "schema.toml"
test_file = "known.csv"
[model]
layers = [{ kind = "dense", units = 4 }, { kind = "square" }, { kind = "dense", units = 2 }]
[optimizer]
method = "adam"
learning_rate = 0.05
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hospitals")
    for number in range(1, 6):
        write_csv(folder / f"{number}.csv", cells(40, seed=number))
    write_csv(folder / "known.csv", cells(60, seed=9))
    write_csv(folder / "new.csv", cells(60, seed=9), leave_out=("outcome",))
    (folder / "schema.toml").write_text(SCHEMA.to_toml())
    (folder / "mine.toml").write_text(CONFIG)
    return folder


@pytest.fixture
def trained(dresfl: Run, folder: Path) -> Path:
    if not (folder / "run" / "summary.json").exists():
        assert dresfl("train", "mine.toml", "--out", "run", cwd=folder).returncode == 0
    return folder


def test_from_own_tables_to_predictions(dresfl: Run, trained: Path):
    summary = json.loads((trained / "run" / "summary.json").read_text())
    arguments = ["run/model.safetensors", "new.csv", "--out", "p.csv", "--keep", "number", "--scores"]
    result = dresfl("predict", *arguments, cwd=trained)
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader((trained / "p.csv").read_text().splitlines()))
    assert list(rows[0]) == ["number", "prediction", "score ill", "score well"]
    assert [row["number"] for row in rows] == [cell[0] for cell in cells(60, seed=9)]
    right = [row["prediction"] == cell[-1] for row, cell in zip(rows, cells(60, seed=9), strict=True)]
    assert np.mean(right) == summary["test_accuracy"]
    evaluated = dresfl("evaluate", "run/model.safetensors", "known.csv", "--json", cwd=trained)
    report = json.loads(evaluated.stdout)
    assert report["accuracy"] == summary["test_accuracy"]
    assert sum(map(sum, report["confusion"])) == report["rows"] == 60
    shown = dresfl("evaluate", "run/model.safetensors", "known.csv", cwd=trained)
    assert all(word in shown.stdout for word in ("AUC", "confusion", "calibration", "ill", "well"))


def test_the_card_of_the_run(dresfl: Run, trained: Path):
    card = json.loads((trained / "run" / "model-card.json").read_text())
    assert card["model"]["feature_names"] == list(SCHEMA.feature_names)
    assert card["measured"]["test_rows"] == 60
    page = (trained / "run" / "model-card.md").read_text()
    assert "| age | years |" in page
    assert "| classes | ill, well |" in page


def test_export_and_use_elsewhere(dresfl: Run, trained: Path):
    result = dresfl("export", "run/model.safetensors", "--json", cwd=trained)
    assert json.loads(result.stdout)["file"] == "run/model.onnx"
    found = onnxruntime.InferenceSession(str(trained / "run" / "model.onnx"), providers=["CPUExecutionProvider"])
    assert [entry.name for entry in found.get_inputs()] == ["features"]
    result = dresfl("export", "run/model.safetensors", "--format", "safetensors", "--json", cwd=trained)
    assert json.loads(result.stdout)["file"] == "run/model-export.safetensors"
    refused(dresfl("export", "run/model.safetensors", "--format", "pickle", cwd=trained), 2, "'pickle'", "onnx")


def test_predict_refuses_by_name(dresfl: Run, trained: Path):
    model = "run/model.safetensors"
    refused(dresfl("predict", model, "new.csv", "--scores", cwd=trained), 2, "no --out")
    refused(dresfl("predict", model, "new.csv", "--out", "p.xls", cwd=trained), 2, "p.xls")
    refused(dresfl("predict", model, "new.csv", "--out", "p.csv", "--keep", "nothing", cwd=trained), 1, "nothing")
    refused(dresfl("evaluate", model, "new.csv", cwd=trained), 1, "outcome")
    refused(dresfl("predict", model, "absent.csv", cwd=trained), 1, "absent.csv")
