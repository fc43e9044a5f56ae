"""The scripts that measure the hidden mode's simulation, on small settings."""

import json

import numpy as np

from dresfl.data import DataSet
from dresfl.experiments.bench.hidden import rounds_per_second
from dresfl.experiments.guards import Trial, page, play
from dresfl.experiments.hidden_accuracy import Task, accuracy, held_out


def test_the_simulations_speed_is_measured():
    found = rounds_per_second((12, 4, 3), "S4", 3, "cpu")
    assert found["rounds"] == 3
    assert found["ms_per_round"] > 0
    assert json.loads(json.dumps(found)) == {**found, "sizes": [12, 4, 3]}


def small_set():
    rng = np.random.default_rng(1)
    labels = np.arange(200, dtype=np.int64) % 2
    inputs = (rng.random((200, 2, 2, 1)) / 4 + labels[:, None, None, None] / 2).astype(np.float32)
    return DataSet(inputs, labels, 2, "small")


def test_both_modes_learn_what_is_easy():
    task, rows = Task("small", (4, 2), 60, 0.05), small_set()
    kept, judged = held_out(rows)
    assert (kept.num_rows, judged.num_rows) == (160, 40)
    for mode in ("open", "hidden"):
        assert accuracy(task, kept, judged, mode, 1) > 0.9


def test_the_page_of_guards_counts_its_runs():
    from dataclasses import asdict

    lines = []
    for schedule in ("S4", "S2"):
        for depth in (0, 1, 2, 4):
            trial = Trial((64, *(4,) * depth, 10), schedule, 0.05, "uniform", 1, rounds=2)
            lines.append({**asdict(trial), **asdict(play(trial))})
    text = page(lines)
    assert "8 of them" in text
    assert text.count("| S4 |") == text.count("| S2 |") == 4
