"""`dresfl reproduce complexity`: bytes of phases and of whole runs agree, fits and crossings, a tiny run, the page.

No time is asserted: machines differ.
"""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from commands import Run, refused
from dresfl.errors import UsageError
from dresfl.experiments import complexity
from dresfl.experiments.complexity.accuracy import compare_accuracy
from dresfl.experiments.complexity.growth import ENTRIES, Cost, Entry, Total, cheaper_after, growth, total
from dresfl.experiments.complexity.page import compared
from dresfl.experiments.complexity.phases import EXTRAS, METHOD_NAMES, PHASES
from dresfl.experiments.complexity.settings import FULL, Plan, Setting, Sweep
from dresfl.experiments.complexity.whole_runs import whole_run

ROOT = Path(__file__).parents[2]
SMALL = Setting((6, 4, 3), num_clients=6, global_batch=12, rows_per_client=5)
NINE = dataclasses.replace(SMALL, num_clients=9)
TINY = Plan(
    sweeps=(
        Sweep("clients", (5, 6), SMALL),
        Sweep("shards", (1, 2), NINE),
        Sweep("colluders", (1, 2), NINE),
        Sweep("parameters", (2, 4), SMALL),
        Sweep("batch", (6, 12), SMALL),
        Sweep("answers", (3, 5), SMALL),
    ),
    cases={"small": SMALL},
    whole=SMALL,
    rounds=(1, 2),
    accuracy_rounds=2,
    seconds=0.0,
)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    path = tmp_path_factory.mktemp("costs") / "complexity.jsonl"
    return complexity.measure(TINY, path, quick=True, threads=1, note=lambda text: None)


# -- bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHOD_NAMES)
@pytest.mark.parametrize(
    "setting",
    [
        SMALL,
        dataclasses.replace(NINE, num_shards=2, rows_per_client=7, mask_answers=6),
        dataclasses.replace(SMALL, rows_per_client=120),  # three blocks
    ],
)
def test_whole_runs_send_what_their_phases_say(method: str, setting: Setting) -> None:
    works = [(phase, phase.make(setting)) for phase in PHASES if phase.method == method and phase.name not in EXTRAS]
    records = [
        {"method": phase.method, "party": phase.party, "per": phase.per, "phase": phase.name, **vars(work)}
        for phase, work in works
    ]
    for rounds in (1, 3):
        counted = whole_run(setting, method, rounds)
        for party in ("client", "coordinator"):
            for quantity in ("sent", "received"):
                expected = total(records, method, party, [quantity]).after(rounds)
                assert counted[f"{party}_{quantity}"] == expected, f"{party} {quantity}"


def test_bytes_follow_the_formulas_of_the_code() -> None:
    """Without their few bytes of heads, and with N(N−1) for N²: exactly as many as the formula, times a constant."""
    settings = [SMALL, NINE, dataclasses.replace(NINE, num_shards=2), dataclasses.replace(NINE, layers=(6, 8, 3))]
    for entry in ENTRIES:
        if entry.table != "communication":
            continue
        phase = next(phase for phase in PHASES if (phase.method, phase.name) == (entry.method, entry.phase))
        constants = []
        for setting in settings:
            wide = dataclasses.replace(setting, rows_per_client=4000, layers=(6, 400 * setting.layers[1], 3))
            work = phase.make(wide)
            record = {"method": entry.method, "phase": entry.phase, "setting": wide.to_dict(), **vars(work)}
            constants.append(entry.value(record) / entry.code(Cost.of(record)))
        assert max(constants) / min(constants) < 1.03, entry.column


# -- fits and crossings ----------------------------------------------------------------------------------------


def made_up(entry: Entry, sweep: Sweep, formula: str) -> list[dict]:
    """Records of costs that follow one of an entry's formulas exactly."""
    found = []
    for size in sweep.sizes:
        setting = sweep.at(size)
        record = {"sweep": sweep.name, "size": sweep.measured_size(size), "method": entry.method, "phase": entry.phase}
        record["setting"] = setting.to_dict()
        times = {"all clients": setting.num_clients, "R clients": record["setting"]["mask_answers"]}
        record[entry.quantity] = getattr(entry, formula)(Cost.of(record)) / times.get(entry.counted, 1)
        found.append(record)
    return found


@pytest.mark.parametrize("formula", ["paper", "code"])
def test_costs_that_follow_a_formula_have_its_exponent(formula: str) -> None:
    for entry in ENTRIES:
        for sweep in FULL.sweeps:
            if sweep.name == "answers" and entry.method != "lightsecagg":
                continue
            fit = growth(made_up(entry, sweep, formula), entry, sweep.name)
            assert fit is not None
            assert math.isclose(fit.measured, getattr(fit, formula), abs_tol=1e-9), (entry.column, sweep.name)


def test_the_papers_exponents() -> None:
    """A few that can be told by heart."""

    def exponent(method: str, column: str, sweep: str) -> float:
        entry = next(e for e in ENTRIES if (e.method, e.column) == (method, column))
        chosen = next(s for s in FULL.sweeps if s.name == sweep)
        fit = growth(made_up(entry, chosen, "paper"), entry, sweep)
        assert fit is not None
        return round(fit.paper, 6)

    assert exponent("dresfl", "data sharing", "clients") == 2
    assert exponent("dresfl", "data sharing", "shards") == -1
    assert exponent("dresfl", "Lagrange coding", "clients") == 2
    assert exponent("dresfl", "local update", "batch") == 1
    assert exponent("fedavg", "local update", "clients") == -1
    assert exponent("lightsecagg", "coded masks, sharing", "parameters") == 1
    assert exponent("lightsecagg", "aggregation", "clients") == 0  # though N vectors are added


def test_a_cell_that_was_measured_once_has_no_growth() -> None:
    entry = ENTRIES[0]
    assert growth(made_up(entry, Sweep("clients", (9,), NINE), "paper"), entry, "clients") is None


@pytest.mark.parametrize(
    ("ours", "theirs", "rounds"),
    [
        (Total(100, 2), Total(0, 5), 34),
        (Total(99, 2), Total(0, 5), 34),
        (Total(98, 2), Total(0, 5), 33),
        (Total(0, 2), Total(0, 5), 1),
        (Total(1, 5), Total(0, 5), None),
        (Total(1, 6), Total(0, 5), None),
        (Total(0, 5), Total(1, 5), 0),
        (Total(0, 6), Total(1, 5), None),
    ],
)
def test_crossings(ours: Total, theirs: Total, rounds: int | None) -> None:
    assert cheaper_after(ours, theirs) == rounds
    if rounds:
        assert ours.after(rounds) < theirs.after(rounds)
        assert ours.after(rounds - 1) >= theirs.after(rounds - 1)


def test_times_of_a_round_that_hardly_differ_are_not_told_apart() -> None:
    def case(ours: float, theirs: float) -> list[dict]:
        common = {"party": "client", "sent": 0, "received": 0}
        return [
            {**common, "method": "dresfl", "phase": "coded rows", "per": "once", "seconds": 10.0},
            {**common, "method": "dresfl", "phase": "local update", "per": "round", "seconds": ours},
            {**common, "method": "lightsecagg", "phase": "coded masks", "per": "round", "seconds": theirs},
        ]

    found = [compared(case(*times), "client", ["seconds"], False)["cheaper_after"] for times in ((95, 100), (80, 100))]
    assert found == ["alike", 1]
    assert compared(case(120, 100), "client", ["seconds"], False)["cheaper_after"] is None


# -- the command -----------------------------------------------------------------------------------------------


def test_a_tiny_run_measures_everything(records: list[dict]) -> None:
    header, *lines = records
    assert header["format"] == complexity.FORMAT
    assert header["machine"]["cpu"]
    phases = {(line["method"], line["phase"]) for line in lines if line.get("sweep") == "clients"}
    assert phases == {(phase.method, phase.name) for phase in PHASES}
    assert {line["method"] for line in lines if line.get("sweep") == "answers"} == {"lightsecagg"}
    timed = [line for line in lines if "phase" in line]
    assert all(line["seconds"] > 0 and line["runs"] >= 5 for line in timed)
    assert len([line for line in lines if line["part"] == "whole runs"]) == 6
    assert any("whole_coding_seconds" in line for line in lines)
    summary = complexity.summary(records)
    assert set(summary["cheaper_after"]) == {"small"}
    assert len(summary["growth"]) == len(ENTRIES)


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path, records: list[dict]) -> None:
    path, said = tmp_path / "complexity.jsonl", []
    kept = [line for line in records if line.get("part") not in ("accuracy", "sweep batch")]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    found = complexity.measure(TINY, path, quick=True, threads=1, note=said.append)
    assert found[: len(kept)] == kept
    assert {line["part"] for line in found[len(kept) :]} == {"accuracy", "sweep batch"}
    assert len([text for text in said if text.endswith("measured before")]) == len(said) - 2
    assert complexity.read_records(path) == found
    for plan, quick in ((TINY, False), (dataclasses.replace(TINY, seconds=0.1), True)):
        with pytest.raises(UsageError, match="measured with other settings"):
            complexity.measure(plan, path, quick=quick, threads=1, note=said.append)


def test_the_command_renders_records(
    dresfl: Run, tmp_path: Path, records: list[dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "complexity.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in records))
    done = dresfl("reproduce", "complexity", "--out", str(tmp_path), "--render-only", "--page", "pages.md")
    assert done.returncode == 0, done.stderr
    assert "DReS-FL costs less" in done.stdout
    assert (tmp_path / "pages.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "pages.md").read_text()
    assert "## Growth: computation" in page
    assert page == complexity.page(records, tmp_path / "pages.md", path, "pages.png")
    monkeypatch.setattr(complexity, "plot", lambda *_: None)  # drawn once already
    done = dresfl("reproduce", "complexity", "--out", str(tmp_path), "--render-only", "--json")
    assert json.loads(done.stdout)["header"] == records[0]


def test_what_is_no_record_is_refused(dresfl: Run, tmp_path: Path) -> None:
    run = ("reproduce", "complexity", "--out", str(tmp_path), "--render-only")
    refused(dresfl(*run), 2, "holds no measured costs", "dresfl reproduce complexity")
    for text in ("", "{}\n", "[]\n", '{"format": "another"}\n', "{"):
        (tmp_path / "complexity.jsonl").write_text(text)
        refused(dresfl(*run), 2, "holds no measured costs")


def test_secure_sums_learn_what_plain_ones_do() -> None:
    secured, plain, skipping = compare_accuracy(12)
    assert [run["method"] for run in (secured, plain)] == ["lightsecagg", "fedavg"]
    assert secured["skipped_rounds"] == skipping["skipped_rounds"]
    assert abs(secured["test_accuracy"] - skipping["test_accuracy"]) < 0.02


# -- what is in the repository ---------------------------------------------------------------------------------


def test_the_page_is_made_from_the_records() -> None:
    source, path = ROOT / "results" / "complexity.jsonl", ROOT / "docs" / "results" / "complexity.md"
    records = complexity.read_records(source)
    assert not records[0]["quick"]
    assert path.read_text(encoding="utf-8") == complexity.page(records, path, source, "complexity.png")
    parts = {record.get("part") for record in records[1:]}
    assert parts >= {f"sweep {sweep.name}" for sweep in FULL.sweeps} | {f"case {name}" for name in FULL.cases}
