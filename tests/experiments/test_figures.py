"""What the figures show: which methods, which bands, where labels stand."""

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.collections import PolyCollection

from dresfl.experiments.reproduce import Record, figures, tables


def record(method: str, seed: int, percents: list[float], dataset: str = "mnist", **header: Any) -> Record:
    lines = [
        {"round": 100 * (number + 1), "test_accuracy": percent / 100, "skipped_rounds": 2 * number, "alarms": 0}
        for number, percent in enumerate(percents)
    ]
    rounds = 100 * len(percents)
    head = {"dataset": dataset, "method": method, "seed": seed, "feasible": True, "rounds": rounds, "config": {},
            "dropout_seed": seed, "train_rows": 60_000, "test_rows": 10_000, **header}  # fmt: skip
    result = {"test_accuracy": percents[-1] / 100, "decoded_share": 0.5 if "dresfl" in method else None,
              "reliable_clients": 11}  # fmt: skip
    return Record(head, lines, result)


@pytest.fixture(autouse=True)
def plain_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records here have no configuration to compare."""

    def grouped(records: list[Record]) -> dict[str, dict[str, list[Record]]]:
        found: dict[str, dict[str, list[Record]]] = {}
        for one in records:
            if one.feasible and not one.perturbation:
                found.setdefault(one.dataset, {}).setdefault(one.method, []).append(one)
        return found

    monkeypatch.setattr(figures, "grouped", grouped)
    monkeypatch.setattr(figures, "LIKE_FOR_LIKE", tables.LIKE_FOR_LIKE | {"like-fedavg", "dresfl-linear"})


def test_methods_like_for_like_have_a_picture_of_their_own(tmp_path: Path):
    ours = [record("dresfl", seed, [97, 99]) for seed in (0, 1)]
    paper = [record("fedavg", seed, [80, 90]) for seed in (0, 1)]
    like = [record("like-fedavg", 0, [80, 95]), record("dresfl-linear", 0, [80, 90])]

    def names(*records: Record) -> list[str]:
        return [path.name for path in figures.draw("figure3", records, tmp_path) if path.suffix == ".svg"]

    assert names(*ours, *paper) == ["figure3.svg"]
    assert names(*ours, *paper, *like) == ["figure3.svg", "figure3-like.svg"]
    assert names(*ours, *paper, *[dataclasses.replace(one, header={**one.header, "dataset": "svhn"}) for one in like])


def test_a_wide_band_is_left_out_and_the_end_says_the_spread():
    steady = [record("fedavg-is", seed, [90 + seed / 100, 95 + seed / 10]) for seed in (0, 1)]
    wild = [record("scaffold", seed, [50, 30 + 60 * seed]) for seed in (0, 1)]
    figure = figures._figure3([*steady, *wild])["figure3"]
    (axes,) = figure.axes
    assert len([one for one in axes.collections if isinstance(one, PolyCollection) and one.get_paths()]) == 1
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["FedAvg-IS 95.05 ± 0.07 (97.1)", "SCAFFOLD 60.00 ± 42.43 (71.9)"]


def test_labels_keep_their_order_and_their_distance():
    finals = {"dresfl": 98.0, "fedavg": 97.99, "fedavg-is": 97.98, "scaffold": 97.97, "centralised": 60.0}
    close = [record(method, 0, [90, value]) for method, value in finals.items()]
    (axes,) = figures._figure3(close)["figure3"].axes
    places = [text.get_position()[1] for text in axes.texts]
    assert [text.get_text().split(" 9")[0] for text in axes.texts][:4] == [
        "DReS-FL, our recipe", "FedAvg", "FedAvg-IS", "SCAFFOLD",
    ]  # fmt: skip
    assert all(above - below >= figures._GAP - 1e-9 for above, below in pairwise(places))
    assert min(places) >= -1e-9
    assert "one seed" in axes.texts[0].get_text()


def test_perturbed_runs_are_dotted_and_named():
    runs = [record("scaffold", 0, [50, 60]), record("scaffold", 1, [70, 80])]
    runs.append(record("scaffold", 0, [50, 75], perturbation=1))
    (axes,) = figures._figure4(runs)["figure4"].axes
    assert [line.get_linestyle() for line in axes.lines].count(":") == 1
    texts = [text.get_text() for text in axes.texts]
    assert texts == [
        "seed 1: 80.00",
        "seed 0, again: 75.00",
        "the paper: 71.89 ± 3.92",
        "mean: 70.00 ± 14.14",
        "seed 0: 60.00",
    ]


def test_decoded_shares_are_those_between_evaluations():
    rounds, shares = figures._shares(record("dresfl", 0, [50, 60, 70]))
    assert (rounds, shares) == ([100, 200, 300], [1.0, 0.98, 0.98])
    runs = [record("dresfl", seed, [50, 60]) for seed in (0, 1)] + [record("fedavg", 0, [50, 60])]
    runs.append(record("dresfl-paper", 0, [10, 10], feasible=False, dropout_seed=9))
    with mpl.rc_context():
        figure = figures._decoded(runs)["decoded"]
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"draw {seed}: 11 of 20 clients are reliable" for seed in (0, 1)] + [
        "draw 9: 11 of 20 clients are reliable, too few"
    ]
    assert figures._decoded([record("fedavg", 0, [50, 60])]) == {}


def test_a_perfect_score_can_be_drawn(tmp_path: Path):
    assert figures.draw("figure3", [record("dresfl", 0, [0.0, 100.0])], tmp_path)
    assert figures.draw("figure4", [record("scaffold", 0, [100.0])], tmp_path)
