"""`dresfl reproduce convergence`: short runs, their records, going on after a stop; and the committed results."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commands import Run, refused
from dresfl.errors import DataError
from dresfl.experiments import convergence
from dresfl.experiments.convergence import CASES, play, run
from dresfl.experiments.convergence.records import by_case
from dresfl.experiments.convergence.tables import sides

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "explanation" / "convergence.md"
SHORT = ("reproduce", "convergence", "--steps", "2", "--seeds", "1")


def short(group: str, steps: int = 4) -> convergence.Case:
    return replace(next(case for case in CASES if case.group == group), steps=steps)


@pytest.mark.parametrize("group", ["batch noise", "network"])
def test_a_coded_run_is_the_direct_one(group: str) -> None:
    case = short(group)
    coded, direct = (play(case, 1, engine) for engine in ("coded", "direct"))
    different = {"engine", "seconds"}
    assert {k: v for k, v in coded.items() if k not in different} == {
        k: v for k, v in direct.items() if k not in different
    }
    assert [point["steps"] for point in coded["curve"]] == [1, 2, 4]
    assert coded["curve"][0]["loss"] == coded["start_loss"] > coded["least_loss"]
    assert coded["curve"][0]["squared_gradient"] == coded["curve"][0]["mean_squared_gradient"]
    assert json.loads(json.dumps(coded))["weights_sha256"] == direct["weights_sha256"]
    assert sides(case, [coded])[-1]["measured"] <= sides(case, [coded])[-1]["bound_along"]


def test_the_command_runs_renders_and_goes_on(dresfl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    horizons = [case for case in CASES if case.group == "rate and steps"]
    few = (short("batch noise"), short("rounding"), horizons[0], horizons[-1], short("network"))
    monkeypatch.setattr(convergence, "CASES", few)
    first = dresfl(*SHORT, "--out", "out")
    assert first.returncode == 0, first.stderr
    path = tmp_path / "out" / "convergence.jsonl"
    kept = path.read_text()
    assert len(kept.splitlines()) == len(few)
    assert "bound along" in first.stdout
    assert "convergence.png" in first.stdout
    assert "step" in first.stderr or "round" in first.stderr
    pictures = [(tmp_path / "out" / f"convergence.{kind}").read_bytes() for kind in ("svg", "png")]
    path.write_text("\n".join(kept.splitlines()[:-1]) + "\n")  # stopped before the last run
    played = []
    monkeypatch.setattr(convergence, "play", lambda case, seed, *rest: played.append(case) or run.play(case, seed))
    again = dresfl(*SHORT, "--out", "out", "--json")
    assert [case.group for case in played] == ["network"]
    rows = json.loads(again.stdout)
    assert [row["group"] for row in rows] == [case.group for case in few]
    rendered = dresfl("reproduce", "convergence", "--render-only", "--out", "out")
    assert rendered.returncode == 0
    assert pictures == [(tmp_path / "out" / f"convergence.{kind}").read_bytes() for kind in ("svg", "png")]


def test_mistakes_are_explained(dresfl: Run, tmp_path: Path) -> None:
    refused(dresfl(*SHORT, "--out", "out", "--engine", "fast"), 2, "engine 'fast' is not known", "coded, direct")
    refused(dresfl("reproduce", "convergence", "--render-only", "--out", "none"), 1, "no finished run", "render-only")
    (tmp_path / "convergence.jsonl").write_text("{")
    with pytest.raises(DataError, match="cannot read"):
        convergence.read_records(tmp_path)


# -- what was run ----------------------------------------------------------------------------------------------------


def test_every_case_was_run_with_three_seeds() -> None:
    records = convergence.read_records(RESULTS)
    assert {(r["case"], r["seed"], r["engine"]) for r in records} == {
        (case.name, seed, "coded") for case in CASES for seed in range(3)
    }


def test_a_record_can_be_made_again() -> None:
    case = min(CASES, key=lambda case: case.steps)
    (kept,) = (r for r in convergence.read_records(RESULTS) if (r["case"], r["seed"]) == (case.name, 2))
    again = play(case, 2)
    assert again["weights_sha256"] == kept["weights_sha256"]
    for new, old in zip(again["curve"], kept["curve"], strict=True):
        assert new == pytest.approx(old, rel=1e-9)


def test_the_bound_holds_at_every_point_and_the_printed_one_does_not() -> None:
    found = by_case(convergence.read_records(RESULTS))
    for case, runs in found.items():
        for point in sides(case, runs):
            assert point["measured"] <= point["bound_along"] <= point["bound"] * (1 + 1e-9), case.name
    ends = {case: sides(case, runs)[-1] for case, runs in found.items()}
    for case, end in ends.items():
        if case.group in ("batch noise", "rounding"):
            assert end["paper_without_gamma"] < end["measured"], case.name
        if case.group == "rounding":
            assert end["paper_with_gamma"] is None


def test_the_page_is_made_from_the_records() -> None:
    shown = convergence.markdown(convergence.read_records(RESULTS))
    text = PAGE.read_text(encoding="utf-8").split("<!-- convergence -->\n")[1].split("<!-- /convergence -->")[0]
    assert text == shown
    assert (RESULTS / "convergence.md").read_text(encoding="utf-8") == shown
