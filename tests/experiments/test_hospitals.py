"""Hospitals: skewed clients, honest choosing, records that go on, and a page that says what the records say."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from dresfl.experiments import hospitals

ROOT = Path(__file__).parents[2]


@pytest.fixture
def quick(monkeypatch):
    """One candidate, so that a split takes a second."""
    monkeypatch.setattr(hospitals, "_CANDIDATES", ({"weight_decay": 2.0, "clip": 2.0},))


def test_hospitals_differ_in_size_and_in_classes():
    inputs, labels = load_breast_cancer(return_X_y=True)
    keys = hospitals.hospital_of(inputs[:, 0])
    sizes = np.bincount(keys)
    assert len(sizes) == 9
    assert sizes.max() > 5 * sizes.min() > 0
    benign = [labels[keys == hospital].mean() for hospital in range(9)]
    assert max(benign) > 0.95
    assert min(benign) < 0.05
    assert all(inputs[keys == h, 0].max() <= inputs[keys == h + 1, 0].min() for h in range(8))


def test_test_rows_play_no_part_in_the_choice_and_the_training(quick, monkeypatch):
    """Other labels of the test rows change the score, and neither the choice nor the weights."""
    table = hospitals.TABLES[0]
    inputs, labels = load_breast_cancer(return_X_y=True)
    before = hospitals.play(table, 0, rounds=3)
    split = {"test_size": 0.25, "random_state": hospitals._FIRST_SPLIT, "stratify": labels}
    _, tested = hospitals.train_test_split(np.arange(len(labels)), **split)
    turned = inputs.copy()
    turned[tested] = inputs[tested][::-1]
    changed = hospitals.Table(table.name, lambda return_X_y: (turned, labels), 0, table.estimator, True, table.pooled)
    after = hospitals.play(changed, 0, rounds=3)
    assert (after["weights_sha256"], after["chosen"]) == (before["weights_sha256"], before["chosen"])
    assert after["score"] != before["score"]
    assert before["engine"] == "coded"
    assert len(before["absent"]) == 3


def test_a_stopped_run_goes_on(quick, tmp_path, monkeypatch):
    said: list[str] = []
    first = hospitals.measure(tmp_path, 1, 2, said.append)
    assert [record["table"] for record in first] == ["breast cancer", "diabetes"]
    monkeypatch.setattr(hospitals, "play", lambda *args: pytest.fail("a finished split ran again"))
    assert hospitals.measure(tmp_path, 1, 2, said.append) == json.loads(json.dumps(first))
    assert len(said) == 2


def test_gaps_are_those_of_pooled_rows():
    records = [
        {"table": "diabetes", "split": split, "score": score, "pooled": {"Ridge": 0.5}}
        for split, score in enumerate((0.5, 0.4, 0.6))
    ]
    (line,) = hospitals.results(records)
    assert (line["mean_gap"], line["largest_gap"]) == (pytest.approx(0), pytest.approx(0.1))
    assert line["standard_error"] == pytest.approx(0.1 / 3**0.5)
    assert hospitals.rows(records[:1])[0][6] == "one split"


def test_the_page_has_the_table_of_the_records():
    records = hospitals.read_records(ROOT / "results")
    page = (ROOT / "docs" / "results" / "hospitals.md").read_text(encoding="utf-8")
    assert hospitals.markdown(records) in page
    reached = {(line["table"], line["beside"]): line["mean_gap"] for line in hospitals.results(records)}
    assert max(gap for (table, _), gap in reached.items() if table == "breast cancer") <= 0.01
    assert reached["diabetes", "Ridge"] <= 0.03
    assert all(line["splits"] == 20 for line in hospitals.results(records))
    assert all(record["engine"] == "coded" for record in records)
