"""`dresfl bench prepare`: a tiny run has every key. No timing is asserted: machines differ."""

import json
from pathlib import Path

import pytest

from commands import Run, refused
from dresfl.experiments.bench import prepare


def test_both_readers_are_measured(tmp_path: Path, dresfl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_alone", lambda work, *given: work(*given))  # processes take seconds to start
    arguments = ("--rows", "1000", "--columns", "3", "--repeats", "1", "--threads", "1", "--folder", ".", "--json")
    result = dresfl("bench", "prepare", *arguments, "--out", "prepare.jsonl")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["time_ratio"] > 0
    head, ours, theirs = [json.loads(line) for line in (tmp_path / "prepare.jsonl").read_text().splitlines()]
    assert (head["rows"], ours["rows"], theirs["rows"]) == (1000, 1000, 1000)
    assert (ours["reader"], theirs["reader"]) == ("dresfl", "pandas")
    assert ours["result_bytes"] == 1000 * (3 * 2 + 8)
    assert list(tmp_path.iterdir()) == [tmp_path / "prepare.jsonl"]


def test_nothing_to_measure(dresfl: Run) -> None:
    refused(dresfl("bench", "prepare", "--rows", "0"), 2, "at least 1")
