"""The committed results: every record is a recipe's cell, and what people read was made from the records."""

import importlib.util
import json
from pathlib import Path

import pytest

from dresfl.experiments import reproduce
from dresfl.experiments.reproduce.cells import finished

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
RECORDS = reproduce.read_records(RESULTS)
TABLE = reproduce.table(RECORDS)


def test_every_record_is_a_cell_as_the_recipes_have_it_today() -> None:
    cells = reproduce.matrix(reproduce.TABLE_DATASETS, reproduce.METHODS, seeds=5, with_infeasible=True)
    done = [cell for cell in cells if finished(cell, RESULTS)]  # refuses a record with other settings
    assert {cell.jsonl(RESULTS).name for cell in done} == {path.name for path in (RESULTS / "jsonl").iterdir()}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("table1.md", reproduce.markdown(RECORDS)),
        ("table1.csv", reproduce.spreadsheet(RECORDS)),
        ("table1.json", json.dumps(TABLE, indent=2) + "\n"),
    ],
)
def test_the_tables_are_made_from_the_records(name: str, text: str) -> None:
    assert (RESULTS / name).read_text(encoding="utf-8") == text


def test_the_page_of_attacks_is_made_from_what_they_found() -> None:
    spec = importlib.util.spec_from_file_location("attacks_table", ROOT / "tools" / "attacks_table.py")
    assert spec is not None
    assert spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    lines = (RESULTS / "attacks.jsonl").read_text(encoding="utf-8").splitlines()
    assert table.PAGE.read_text(encoding="utf-8") == table.page([json.loads(line) for line in lines])


def test_the_readme_shows_the_table() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("<!-- table1 -->")[1].split("<!-- /table1 -->")[0]
    rows = [line.strip("|").split("|")[1:] for line in text.strip().splitlines()[2:]]
    methods = [method for method in reproduce.METHODS if method != "fedavg-is-unbiased"]
    assert len(rows) == len(methods)
    for method, row in zip(methods, rows, strict=True):
        wanted = [f"{TABLE[name][method]['mean']:.1f}" if method in TABLE[name] else "–" for name in TABLE]
        assert [value.split("(")[0].strip(" *") for value in row] == wanted, method


@pytest.mark.parametrize("dataset", ["mnist", "fashion"])
def test_a_full_length_run_went_through_the_whole_protocol(dataset: str) -> None:
    coded = [r for r in RECORDS if r.dataset == dataset and r.header["engine"] == "coded" and r.header["feasible"]]
    assert [record.header["rounds"] for record in coded] == [70_000]
    assert 0 < coded[0].result["skipped_rounds"] < 70_000
    lines = (RESULTS / "trials" / "direct-beside-coded.jsonl").read_text(encoding="utf-8").splitlines()
    (direct,) = (line for line in map(json.loads, lines) if line["dataset"] == dataset)
    assert (direct["engine"], direct["rounds"]) == ("direct", 70_000)
    assert direct["weights_sha256"] == coded[0].result["weights_sha256"]
