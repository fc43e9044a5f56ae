"""The committed results: every record is a recipe's cell, and what people read was made from the records."""

import functools
import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import typer

import claims
from dresfl.cli.commands import app
from dresfl.experiments import guards, reproduce
from dresfl.experiments.bench.page import page, read_results
from dresfl.experiments.reproduce.cells import other_settings

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
RECORDS = reproduce.read_records(RESULTS)
TABLE = reproduce.table(RECORDS)
LIST = (RESULTS / "README.md").read_text(encoding="utf-8")


def test_every_record_is_a_cell_as_the_recipes_have_it_today_or_is_said_to_be_older() -> None:
    cells = reproduce.matrix(
        reproduce.TABLE_DATASETS, reproduce.METHODS, seeds=5, with_infeasible=True, perturbations=3
    )
    done = [cell for cell in cells if cell.jsonl(RESULTS).exists()]
    assert {cell.jsonl(RESULTS).name for cell in done} == {path.name for path in (RESULTS / "jsonl").iterdir()}
    older: dict[tuple[str, str], set[str]] = {}
    for cell in done:
        differing = other_settings(reproduce.read_record(cell.jsonl(RESULTS)), cell)
        if differing:
            older.setdefault((cell.dataset, cell.method), set()).update(differing)
    assert claims.earlier_recipes(LIST) == older


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


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines_of(record: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (RESULTS / record).read_text(encoding="utf-8").splitlines()]


def test_the_page_of_attacks_is_made_from_what_they_found() -> None:
    table = tool("attacks_table")
    assert table.PAGE.read_text(encoding="utf-8") == table.page(lines_of("attacks.jsonl"))


@pytest.mark.parametrize("name", ["cpu", "xeon", "cuda"])
def test_the_pages_of_benchmarks_are_made_from_their_records(name: str) -> None:
    made = page(read_results(RESULTS / "speed" / f"bench-{name}.json"))
    assert (ROOT / "docs" / "results" / f"benchmark-{name}.md").read_text(encoding="utf-8") == made


def test_the_page_of_guards_is_made_from_its_record() -> None:
    made = guards.page(lines_of("hidden_guards.jsonl"))
    assert (ROOT / "docs" / "results" / "hidden-guards.md").read_text(encoding="utf-8") == made


def test_the_readme_shows_the_tables() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert tool("readme_table").filled(text, TABLE) == text, "run python tools/readme_table.py"


# -- the list of claims ----------------------------------------------------------------------------------------

SECTIONS = claims.sections(LIST)


@functools.cache
def page_text(name: str) -> str:
    return claims.flat((ROOT / name).read_text(encoding="utf-8"))


@functools.cache
def record_lines(name: str) -> list[claims.Row]:
    return claims.rows(RESULTS / name)


@pytest.mark.parametrize(
    "claim",
    [claim for section in SECTIONS for claim in section.claims],
    ids=lambda claim: f"{claim.page}: {claim.words[:60]}",
)
def test_the_record_gives_the_numbers_of_a_claim(claim: claims.Claim) -> None:
    assert claim.words in page_text(claim.page), f"{claim.page} does not say it"
    given = [number for query in claim.queries for number in claims.computed(query, record_lines(claim.record))]
    for number in claims.NUMBER.findall(claim.words):
        assert number in given, f"{claim.record} gives {given}, {claim.page} says {number}"
    for number in given:
        assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d]|[.,]\d)", claim.words), f"the words lack {number}"


def test_every_record_is_in_the_list_with_its_command_and_commit() -> None:
    kept = {
        str(path.relative_to(RESULTS))
        for path in RESULTS.rglob("*.json*")
        if path.parent.name != "jsonl" and path.name != "table1.json"
    }
    assert kept | {"jsonl/"} <= {section.record for section in SECTIONS}
    for section in SECTIONS:
        assert (RESULTS / section.record).exists(), section.record
        assert section.command, section.record
        assert re.search(r"\b[0-9a-f]{7}\b|in its header", section.commit), section.record


@pytest.mark.parametrize("command", sorted({section.command for section in SECTIONS}))
def test_the_command_of_a_record_can_be_given(command: str) -> None:
    """It names a target, a module, or a command with options that exist; it is not run here."""
    words = shlex.split(command)
    if words[0] == "make":
        assert f"\n{words[1]}: " in (ROOT / "Makefile").read_text(encoding="utf-8")
    elif words[0] == "python" and words[1].startswith("tools/"):
        assert (ROOT / words[1]).exists()
    elif words[0] in ("python", "torchrun"):
        assert importlib.util.find_spec(words[words.index("-m") + 1])
    elif words[0] == "dresfl":
        found = typer.main.get_command(app)
        rest = words[1:]
        while hasattr(found, "commands") and not rest[0].startswith("--"):  # `bench` alone measures, too
            found = found.commands[rest.pop(0)]
        known = {name for parameter in found.params for name in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known
    else:
        assert command == "no command"


@pytest.mark.parametrize(
    "name", ["README.md", "docs/explanation/deviations-from-the-paper.md", "docs/explanation/threat-model.md"]
)
def test_every_number_with_a_unit_is_a_claim_or_said_to_have_no_record(name: str) -> None:
    text = page_text(name)
    known = [claim.words for section in SECTIONS for claim in section.claims if claim.page == name]
    without = [words for page_name, words in claims.without_record(LIST) if page_name == name]
    for words in without:
        assert words in text, f"{name} does not say {words!r} any more"
    covered = [found.span() for words in known + without for found in re.finditer(re.escape(words), text)]
    open_numbers = [
        text[max(0, found.start() - 40) : found.end() + 20]
        for found in claims.measured(text)
        if not any(start <= found.start() and found.end() <= end for start, end in covered)
    ]
    assert not open_numbers, "add a line to results/README.md for each"


def test_queries_compute_what_they_say() -> None:
    lines = [{"a": 1086.0, "b": {"c": 0.5}, "kind": "x"}, {"a": 2.5, "b": {"c": [0.25, 0.75]}, "kind": "y"}]
    for query, wanted in {
        "n(a[kind=x])": ["1,086"],
        "f1(a[kind=y])": ["2.5"],
        "p0(b.c[kind=x])": ["50"],
        "p1(mean b.c)": ["50.0"],
        "f2(max b.c[kind=y] - min b.c[kind=y])": ["0.50"],
        "f0(a[kind=x] / a[kind=y] * 2)": ["869"],
        "n(count a)": ["2"],
        "n(count a[kind!=x])": ["1"],
        "given(1,437, 8)": ["1,437", "8"],
    }.items():
        assert claims.computed(query, lines) == wanted, query
    for wrong in ("f0(a)", "f0(a[kind=z])", "f0(missing)"):
        with pytest.raises(AssertionError):
            claims.computed(wrong, lines)
    words = "T = 1: in 2^−41 of 64×784×64, 1,086 of 70,000 rounds, 97.81 %, version v0.1, 784-64-64-10"
    assert claims.NUMBER.findall(words) == ["1", "1,086", "70,000", "97.81"]
    page_of = "about 20 clients `5 s` and 96.7 % in 96 s, or 30 and 24 times; <!-- table1 -->5 %<!-- /table1 -->"
    assert [found[1] for found in claims.measured(page_of)] == ["96.7", "96", "30"]


# -- coded and direct ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", ["mnist", "fashion"])
def test_a_full_length_run_went_through_the_whole_protocol(dataset: str) -> None:
    coded = [r for r in RECORDS if r.dataset == dataset and r.header["engine"] == "coded" and r.header["feasible"]]
    assert [record.header["rounds"] for record in coded] == [70_000]
    assert 0 < coded[0].result["skipped_rounds"] < 70_000
    lines = (RESULTS / "trials" / "direct-beside-coded.jsonl").read_text(encoding="utf-8").splitlines()
    (direct,) = (line for line in map(json.loads, lines) if line["dataset"] == dataset)
    assert (direct["engine"], direct["rounds"]) == ("direct", 70_000)
    assert direct["weights_sha256"] == coded[0].result["weights_sha256"]
