"""`dresfl schema init` and `dresfl schema check` as a user runs them."""

import json
from pathlib import Path

from commands import Run, refused
from tables.ward import CSV, SCHEMA_TEXT, write_csv


def test_from_a_table_to_an_agreed_schema(tmp_path: Path, dresfl: Run) -> None:
    write_csv(tmp_path)
    asked = [part for name in ("outcome", "stage", "blood") for part in ("--vocabulary", name)]
    drafted = dresfl(
        "schema", "init", "ward.csv", "--label", "outcome", *asked, "--leave-out", "patient", "--out", "s.toml"
    )
    assert (drafted.returncode, drafted.stdout) == (0, "")
    assert "not complete" not in drafted.stderr
    checked = dresfl("schema", "check", "ward.csv", "--schema", "s.toml")
    assert checked.returncode == 0, checked.stderr
    assert "3 rows, fits the schema" in checked.stdout


def test_a_draft_is_printed_and_says_what_is_open(tmp_path: Path, dresfl: Run) -> None:
    write_csv(tmp_path)
    drafted = dresfl("schema", "init", "ward.csv", "--label", "outcome")
    assert drafted.returncode == 0
    assert 'name = "age"' in drafted.stdout
    assert "not complete" in drafted.stderr
    (tmp_path / "s.toml").write_text(drafted.stdout)
    refused(
        dresfl("schema", "check", "ward.csv", "--schema", "s.toml"), 2, "without a vocabulary", "--vocabulary blood"
    )


def test_an_existing_schema_is_not_overwritten(tmp_path: Path, dresfl: Run) -> None:
    write_csv(tmp_path)
    (tmp_path / "s.toml").write_text("mine")
    result = dresfl("schema", "init", "ward.csv", "--label", "outcome", "--out", "s.toml")
    refused(result, 2, "s.toml")
    assert (tmp_path / "s.toml").read_text() == "mine"


def test_problems_are_listed_and_exit_with_1(tmp_path: Path, dresfl: Run) -> None:
    write_csv(tmp_path, CSV.replace("4712,0,", "4712,-5,"))
    (tmp_path / "s.toml").write_text(SCHEMA_TEXT)
    result = dresfl("schema", "check", "ward.csv", "--schema", "s.toml")
    refused(result, 1, "ward.csv")
    assert "is below the minimum" in result.stdout
    assert "-5" not in result.stdout
    shown = dresfl("schema", "check", "ward.csv", "--schema", "s.toml", "--show-values")
    assert "2 ('-5')" in shown.stdout
    listed = json.loads(dresfl("schema", "check", "ward.csv", "--schema", "s.toml", "--json").stdout)
    (problem,) = listed["tables"][0]["problems"]
    assert problem == {"column": "age", "what": "is below the minimum", "count": 1, "rows": [2], "values": []}


def test_a_label_that_is_not_there(tmp_path: Path, dresfl: Run) -> None:
    write_csv(tmp_path)
    refused(dresfl("schema", "init", "ward.csv", "--label", "result"), 2, "no column 'result'", "'outcome'")
    refused(dresfl("schema", "init", "ward.csv", "--label", "outcome", "--task", "sorting"), 2, "'sorting'")
