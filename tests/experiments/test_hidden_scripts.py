"""The scripts that measure the hidden mode's simulation, on small settings."""

import json

import numpy as np
import pytest

from dresfl.data import DataSet
from dresfl.experiments import guards
from dresfl.experiments.bench.hidden import NETWORKS, rounds_per_second, same_bits, session_of
from dresfl.experiments.guards import Trial, page, play
from dresfl.experiments.hidden_accuracy import Task, accuracy, held_out
from dresfl.model import mlp

SMALL = mlp((12, 4, 3), input_bits=4, weight_bits=10)


def test_the_simulations_speed_is_measured():
    found = rounds_per_second(SMALL, "S4", 3, "cpu")
    assert found["rounds"] == 3
    assert found["ms_per_round"] > 0
    assert json.loads(json.dumps(found)) == found


def test_the_check_of_a_device_compares_bits():
    assert same_bits(SMALL, "S4", 3, "cpu") == {"single": True, "blocks": True}


def test_the_measured_networks_have_plans():
    assert [session_of(network, "S4", 9, "cpu").hidden_plan.trips for network in NETWORKS.values()] == [5] * 4


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


@pytest.mark.parametrize(
    "trial",
    [
        Trial((64, 4, 16, 10), "S4", 1.25, "white", 5, kind="conv"),
        Trial((64, 8, 8, 10), "S4", 80.0, "white", 5, kind="head", magnitude=-3),
    ],
)
def test_guards_stop_convolutions_and_heads_at_the_largest_vouched_rate(trial):
    assert trial.plan().largest_rate == trial.learning_rate
    outcome = play(trial)
    assert (outcome.ended, outcome.vouched) == ("stopped", True)
    assert outcome.bits_left > 0


def test_a_sweep_that_was_stopped_goes_on(monkeypatch, tmp_path):
    small = [Trial((4, 3, 10), "S4", rate, "uniform", 1, rounds=1) for rate in (0.1, 0.2, 0.3)]
    out = tmp_path / "guards.jsonl"
    monkeypatch.setattr("sys.argv", ["guards", str(out)])
    for count in (2, 3):
        monkeypatch.setattr(guards, "trials", lambda count=count: small[:count])
        before = out.read_text() if out.exists() else ""
        guards.main()
        assert out.read_text().startswith(before)
        assert [json.loads(line)["learning_rate"] for line in out.read_text().splitlines()] == [0.1, 0.2, 0.3][:count]


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
