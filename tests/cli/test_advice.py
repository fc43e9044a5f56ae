"""`dresfl plan --goal` on the command line."""

import json
from pathlib import Path

from commands import Run

SMALL = ("plan", "--clients", "8", "--layers", "16,8,4", "--batch", "8", "--rows", "80")


def test_settings_that_reach_a_goal(dresfl: Run, tmp_path: Path) -> None:
    goal = ("--goal", "dropouts=2,colluders=1")
    result = dresfl(*SMALL, *goal, "--plot", "trade-off.png", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert all(choice["max_dropouts"] >= 2 for choice in found)
    assert {choice["mode"] for choice in found} == {"open", "hidden"}
    assert (tmp_path / "trade-off.png").read_bytes().startswith(b"\x89PNG")


def test_a_goal_out_of_reach(dresfl: Run, tmp_path: Path) -> None:
    result = dresfl(*SMALL, "--goal", "dropouts=7,colluders=3", cwd=tmp_path)
    assert result.returncode == 2
    assert "error: no setting of 8 clients bears 7 missing" in result.stderr
    assert "hint: at most 1 may be missing" in result.stderr


def test_a_goal_beside_numbers_of_its_own(dresfl: Run, tmp_path: Path) -> None:
    result = dresfl(*SMALL, "--goal", "dropouts=1", "--shards", "2", cwd=tmp_path)
    assert result.returncode == 2
    assert "error: --goal takes no --shards" in result.stderr
    result = dresfl(*SMALL, "--plot", "x.png", cwd=tmp_path)
    assert result.returncode == 2
    assert "error: --plot draws what --goal found" in result.stderr
