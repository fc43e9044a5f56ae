"""`dresfl reproduce` on digits: the matrix, its records, tables and figures; stops, failures and resuming."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from commands import Run, refused
from dresfl.data import load
from dresfl.deploy.toml import to_toml
from dresfl.errors import CheckpointError, DresError, UsageError
from dresfl.experiments import reproduce as paper
from dresfl.experiments.config import load_config
from dresfl.experiments.published import METHOD_LABELS
from dresfl.experiments.reproduce import cells as cells_module
from dresfl.experiments.reproduce import figures, runner
from dresfl.experiments.reproduce.matrix import NEEDED, feasible_draws, infeasible_draw
from dresfl.experiments.reproduce.records import read_record
from dresfl.model import Conv2d, Network
from dresfl.runtimes.local import paper as paper_dropouts

SMALL = ("--datasets", "digits", "--rounds", "4", "--seeds", "2")
ALL_CELLS = [f"digits-{method}-seed{seed}" for method in paper.METHODS for seed in (0, 1)]


class Quiet:
    """A watch that only remembers."""

    def __init__(self) -> None:
        self.skipped: list[str] = []
        self.finished: list[str] = []
        self.failed: list[paper.Failure] = []
        self.rounds: dict[str, int] = {}

    def skip(self, cell: paper.Cell) -> None:
        self.skipped.append(cell.name)

    def advance(self, cell: paper.Cell, done: int, accuracy: float) -> None:
        self.rounds[cell.name] = done

    def finish(self, cell: paper.Cell, record: paper.Record) -> None:
        self.finished.append(cell.name)

    def fail(self, failure: paper.Failure) -> None:
        self.failed.append(failure)


def small(methods: Sequence[str] = ("fedavg", "dresfl"), seeds: int = 1, rounds: int = 4) -> list[paper.Cell]:
    return paper.matrix(["digits"], methods, seeds=seeds, rounds=rounds)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small matrix of every method, finished."""
    out = tmp_path_factory.mktemp("done")
    cells = paper.matrix(["digits"], paper.METHODS, seeds=2, rounds=4, with_infeasible=True)
    assert paper.run_matrix(cells, data=None, out=out, watch=Quiet()) == []
    return out


# -- the matrix ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", paper.recipes())
@pytest.mark.parametrize("method", paper.METHODS)
def test_every_recipe_is_the_papers_setting(dataset: str, method: str):
    config = paper.recipe(dataset, method)
    federation = config.federation
    assert config.data.dataset == dataset
    assert (federation.num_clients, federation.num_shards, federation.max_colluders) == (20, 1, 1)
    assert (federation.batch_size, config.data.partition, config.dropout.model) == (64, "label-sorted", "paper")
    heads = method == "dresfl-paper" and config.features.extractor  # their evaluations take long
    assert config.evaluate_every == (250 if heads else max(1, config.rounds // 70))
    images = isinstance(config.model.layers[0], Conv2d)
    network = Network(config.model.layers, (28, 28, 1) if images else (64,), config.model.input_bits)
    assert network.gradient_degree + 1 == (3 if method == "dresfl-linear" else NEEDED)


def test_the_papers_recipe_is_as_the_paper_says():
    for dataset in ("mnist", "fashion", "emnist"):
        config = paper.recipe(dataset, "dresfl-paper")
        optimizer = config.optimizer
        assert (config.rounds, config.model.input_bits, optimizer.method) == (70_000, 4, "sgd")
        assert (optimizer.learning_rate, optimizer.decay_factor, optimizer.decay_every) == (0.1, 0.65, 1500)
        assert [getattr(layer, "units", 0) for layer in config.model.layers][::2][:2] == [64, 64]


def test_seeds_take_the_first_feasible_draws_and_name_the_others():
    draws = feasible_draws(8, 20)
    seen = [seed for seed, passed in draws for seed in (*passed, seed)]
    assert seen == list(range(draws[-1][0] + 1))
    for seed, passed in draws:
        assert paper_dropouts(20, seed).num_reliable >= NEEDED
        assert all(paper_dropouts(20, other).num_reliable < NEEDED for other in passed)
    assert paper_dropouts(20, infeasible_draw(20)).num_reliable < NEEDED
    cells = paper.matrix(["mnist"], ["fedavg", "dresfl"], seeds=8)
    for cell in cells:
        assert (cell.config.seed, cell.config.dropout.seed) == (cell.seed, draws[cell.seed][0])
        assert cell.passed_over == draws[cell.seed][1]


def test_one_infeasible_draw_is_shown_on_the_first_data_set():
    cells = paper.matrix(["mnist", "fashion"], paper.METHODS, seeds=2, with_infeasible=True)
    (shown,) = [cell for cell in cells if not cell.feasible]
    assert (shown.dataset, shown.method, shown.dropout_seed) == ("mnist", "dresfl-paper", infeasible_draw(20))
    assert shown.config.rounds < cells[0].config.rounds
    assert (
        len({cell.name for cell in cells})
        == len({cell.jsonl(Path()) for cell in cells})
        == 2 * len(paper.METHODS) * 2 + 1
    )


def test_options_win_over_recipes():
    (cell,) = paper.matrix(["mnist"], ["dresfl"], seeds=1, rounds=700, engine="direct", device="cuda")
    config = cell.config
    assert (config.rounds, config.evaluate_every, config.checkpoint_every) == (700, 10, 10)
    assert (config.engine, config.device) == ("direct", "cuda")


# -- running ---------------------------------------------------------------------------------------------------


def test_each_run_leaves_a_record_with_everything(done: Path):
    records = {path.stem: read_record(path) for path in (done / "jsonl").iterdir()}
    assert sorted(records) == sorted([*ALL_CELLS, f"digits-dresfl-paper-infeasible{infeasible_draw(20)}"])
    for name, record in records.items():
        assert (record.header["train_rows"], record.header["test_rows"]) == (1437, 360)
        assert record.header["commit"]
        assert record.header["data_sha256"] == load("digits").origin.data
        assert record.header["extractor_sha256"] is None
        assert [line["round"] for line in record.evaluations] == [1, 2, 3, 4]
        assert record.result["test_accuracy"] == record.evaluations[-1]["test_accuracy"]
        assert record.config.rounds == record.header["rounds"] == 4
        ours = "dresfl" in name
        assert record.header["engine"] == ("direct" if "hidden" in name else "coded" if ours else "real")
        assert (record.result["decoded_share"] is not None) == ours
        assert len(record.result["weights_sha256"]) == 64
    infeasible = next(record for record in records.values() if not record.feasible)
    assert infeasible.result["decoded_share"] == 0


def test_a_record_is_the_run_of_its_configuration(done: Path, tmp_path: Path, dresfl: Run):
    record = read_record(done / "jsonl" / "digits-dresfl-seed1.jsonl")
    config = str(done / "runs" / "digits" / "dresfl" / "seed-1" / "config.toml")
    assert load_config(config) == record.config
    again = dresfl("train", config, "--out", "again", "--engine", "direct", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["weights_sha256"] == record.result["weights_sha256"]


def test_finished_cells_are_not_run_again(done: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "run_cell", None)
    watch = Quiet()
    cells = paper.matrix(["digits"], paper.METHODS, seeds=2, rounds=4, engine="direct")  # the engine changes nothing
    assert paper.run_matrix(cells, data=None, out=done, watch=watch) == []
    assert len(watch.skipped) == len(cells)


def test_an_interrupted_matrix_goes_on_where_it_stopped(done: Path, tmp_path: Path):
    class Stop(Quiet):
        def advance(self, cell: paper.Cell, done: int, accuracy: float) -> None:
            if cell.is_dresfl and done == 3:
                raise KeyboardInterrupt

    cells = small()
    with pytest.raises(KeyboardInterrupt):
        paper.run_matrix(cells, data=None, out=tmp_path, watch=Stop())
    assert [path.name for path in (tmp_path / "jsonl").iterdir()] == ["digits-fedavg-seed0.jsonl"]
    watch = Quiet()
    assert paper.run_matrix(small(), data=None, out=tmp_path, watch=watch) == []
    assert (watch.skipped, watch.finished) == (["digits/fedavg/seed-0"], ["digits/dresfl/seed-0"])
    found, whole = (read_record(out / "jsonl" / "digits-dresfl-seed0.jsonl") for out in (tmp_path, done))
    assert found.result["weights_sha256"] == whole.result["weights_sha256"]
    assert len(found.evaluations) == 4


def test_an_interrupted_cell_keeps_its_engine(tmp_path: Path):
    (cell,) = small(["dresfl"])
    folder = cell.folder(tmp_path)
    folder.mkdir(parents=True)
    (direct,) = paper.matrix(["digits"], ["dresfl"], seeds=1, rounds=4, engine="direct")
    (folder / "config.toml").write_text(to_toml(direct.config))
    assert paper.run_matrix([cell], data=None, out=tmp_path, watch=Quiet()) == []
    assert read_record(cell.jsonl(tmp_path)).header["engine"] == "direct"


def test_an_interrupted_command_ends_with_its_workers(tmp_path: Path):
    options = ["--datasets", "digits", "--methods", "dresfl", "--seeds", "2", "--rounds", "7000", "--jobs", "2"]
    command = [sys.executable, "-m", "dresfl", "reproduce", "figure3", *options, "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folders = [tmp_path / "runs" / "digits" / "dresfl" / f"seed-{seed}" for seed in (0, 1)]
    while not all((folder / "checkpoint.safetensors").exists() for folder in folders) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "run it again" in errors
    stopped = [len((folder / "metrics.jsonl").read_text().splitlines()) for folder in folders]
    assert all(1 <= lines < 70 for lines in stopped)


def test_a_failing_cell_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(cells_module, "run_baseline", broken)
    watch = Quiet()
    (failure,) = paper.run_matrix(small(), data=None, out=tmp_path, watch=watch)
    assert (failure.cell.name, failure.message) == ("digits/fedavg/seed-0", "ZeroDivisionError: by zero")
    assert "broken" in (tmp_path / "runs" / "digits" / "fedavg" / "seed-0" / "error.txt").read_text()
    assert watch.finished == ["digits/dresfl/seed-0"]
    monkeypatch.undo()
    assert paper.run_matrix(small(), data=None, out=tmp_path, watch=Quiet()) == []


def test_workers_run_what_can_be_run(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    good = paper.matrix(["digits"], ["scaffold", "dresfl"], seeds=2, rounds=4)
    wide = dataclasses.replace(good[0].config.federation, num_clients=2000)  # more clients than rows
    bad = dataclasses.replace(good[0], seed=2, config=dataclasses.replace(good[0].config, federation=wide))
    without = dataclasses.replace(good[0].config, optimizer=None)  # type: ignore[arg-type]
    absurd = dataclasses.replace(good[0], seed=3, config=without)
    monkeypatch.setattr(runner, "_work", die_once)
    monkeypatch.setenv("DRESFL_TEST_MARK", str(tmp_path / "mark"))
    watch = Quiet()
    failures = paper.run_matrix([bad, *good, absurd], data=None, out=tmp_path, watch=watch, jobs=2)
    assert watch.failed == failures
    messages = {failure.cell.name: failure.message for failure in failures}
    (dead,) = [name for name, message in messages.items() if "exit code 9" in message]
    assert {"digits/scaffold/seed-2", "digits/scaffold/seed-3"} | {dead} == messages.keys()
    finished = [cell for cell in good if cell.name != dead]
    assert sorted(watch.finished) == sorted(cell.name for cell in finished)
    for cell in finished:
        here, there = (read_record(cell.jsonl(out)) for out in (done, tmp_path))
        assert here.result["weights_sha256"] == there.result["weights_sha256"]
        assert [line["test_accuracy"] for line in here.evaluations] == [
            line["test_accuracy"] for line in there.evaluations
        ]


_work = runner._work


def die_once(*arguments: object) -> None:
    """A process's life that ends at once if it is the first."""
    try:
        os.close(os.open(os.environ["DRESFL_TEST_MARK"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        _work(*arguments)  # type: ignore[arg-type]
        return
    os._exit(9)


def test_other_settings_are_refused_unless_replaced(done: Path, tmp_path: Path):
    cells = small(["fedavg"])
    assert paper.run_matrix(cells, data=None, out=tmp_path, watch=Quiet()) == []
    changed = small(["fedavg"], rounds=5)
    (failure,) = paper.run_matrix(changed, data=None, out=tmp_path, watch=Quiet())
    assert "other settings (rounds)" in failure.message
    assert "--replace" in failure.hint
    assert read_record(cells[0].jsonl(tmp_path)).header["rounds"] == 4
    assert paper.run_matrix(changed, data=None, out=tmp_path, watch=Quiet(), replace=True) == []
    assert read_record(cells[0].jsonl(tmp_path)).header["rounds"] == 5
    with pytest.raises(CheckpointError, match="rounds"):
        cells_module.finished(cells[0], tmp_path)


def test_a_mean_over_different_settings_is_refused(done: Path):
    records = paper.read_records(done)
    header = records[0].header
    other = dataclasses.replace(records[0], header={**header, "seed": 7, "config": {**header["config"], "rounds": 9}})
    with pytest.raises(DresError, match=r"different settings \(rounds\)"):
        paper.table([*records, other])


def test_a_mean_over_different_data_is_refused_and_records_without_digests_are_read(done: Path):
    records = paper.read_records(done)
    header = records[0].header
    older = {key: value for key, value in header.items() if key not in ("data_sha256", "extractor_sha256")}
    other = {**header, "seed": 8, "data_sha256": {**header["data_sha256"], "test_labels": "0"}}
    paper.table([*records, dataclasses.replace(records[0], header={**older, "seed": 7})])
    with pytest.raises(DresError, match=r"different settings \(data_sha256\)"):
        paper.table([*records, dataclasses.replace(records[0], header=other)])


# -- tables and figures ----------------------------------------------------------------------------------------


def test_table1_holds_what_the_records_say(done: Path):
    records = paper.read_records(done)
    found = paper.table(records)
    assert {"mean", "sd", "seeds", "rounds", "engine", "device", "commit"} <= found["digits"]["fedavg"].keys()
    for method in paper.METHODS:
        percents = [record.percent for record in records if record.method == method and record.feasible]
        entry = found["digits"][method]
        assert entry["mean"] == pytest.approx(sum(percents) / 2, abs=1e-4)
        assert entry["sd"] == pytest.approx(abs(percents[0] - percents[1]) / 2**0.5, abs=1e-4)
        assert (entry["seeds"], entry["rounds"], entry["device"]) == (2, 4, "cpu")


def posing_as(records: Sequence[paper.Record], dataset: str, **changes: object) -> list[paper.Record]:
    """The records as if they were of another data set."""
    return [dataclasses.replace(record, header={**record.header, "dataset": dataset, **changes}) for record in records]


def test_the_papers_figure_stands_beside_ours(done: Path):
    records = posing_as(paper.read_records(done), "emnist")
    page = paper.markdown(records)
    for figure in ("71.50 ± 0.28", "77.09 ± 0.34", "55.15 ± 5.95", "78.04 ± 0.29", "82.45 ± 0.23"):
        assert figure in page
    assert "not the official split" in page
    assert "not the official split" not in paper.markdown(
        posing_as(records, "emnist", train_rows=112_800, test_rows=18_800)
    )
    assert paper.table(records)["emnist"]["dresfl"]["paper"] == {"mean": 78.04, "sd": 0.29}
    assert "not the official split" in paper.table(records)["emnist"]["dresfl"]["note"]
    rows = list(csv.DictReader(paper.spreadsheet(records).splitlines()))
    theirs = ["71.5", "77.09", "77.09", "55.15", "78.04", "78.04", "82.45"]
    assert [row["paper_mean"] for row in rows] == [*theirs, *[""] * 6]


def test_the_page_tells_engines_draws_and_decoded_rounds(done: Path):
    records = paper.read_records(done)
    page = paper.markdown(records)
    assert "An infeasible draw" in page
    assert "Passed over as infeasible: none" in page
    linear = METHOD_LABELS["dresfl-linear"]
    assert f"| digits | DReS-FL, the paper's recipe; DReS-FL, our recipe; {linear} | 2 | 4 | coded |" in page
    mixed = [
        dataclasses.replace(record, header={**record.header, "engine": "direct", "passed_over": [7]})
        if record.seed == 1 and record.method == "dresfl"
        else record
        for record in records
    ]
    page = paper.markdown(mixed)
    assert "coded (seed 0); direct (seed 1)" in page
    assert "Passed over as infeasible: 7" in page
    assert paper.table(mixed)["digits"]["dresfl"]["engine"] == "coded+direct"


def test_figures_are_drawn_from_records_alone_and_the_same_again(done: Path, tmp_path: Path):
    records = paper.read_records(done)
    records += posing_as(records, "mnist") + posing_as(records, "emnist")
    for name in ("figure3", "figure4"):
        svg, png, *_ = figures.draw(name, records, tmp_path)
        assert png.read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in svg.read_text()
    first = svg.read_text()
    assert figures.draw("figure4", records, tmp_path)[0].read_text() == first
    curve = figures.curves(records)["mnist"]["dresfl"]
    assert (curve["rounds"], curve["seeds"]) == ([1, 2, 3, 4], 2)
    with pytest.raises(DresError, match="no finished run"):
        figures.draw("figure4", [], tmp_path)


@pytest.mark.parametrize("damage", ["", "{}\n", '{"kind": "header"}\n', "not json"])
def test_a_damaged_record_is_named(done: Path, tmp_path: Path, damage: str):
    path = tmp_path / "jsonl" / "digits-fedavg-seed0.jsonl"
    path.parent.mkdir()
    path.write_text(damage)
    with pytest.raises(DresError, match="digits-fedavg-seed0"):
        paper.read_records(tmp_path)


# -- the command -----------------------------------------------------------------------------------------------


def test_table1_from_the_command_line(dresfl: Run, tmp_path: Path):
    arguments = ("--methods", "fedavg,dresfl", "--out", "out", "--json")
    result = dresfl("reproduce", "table1", *SMALL, *arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found == json.loads((tmp_path / "out" / "table1.json").read_text())
    assert {method: entry["seeds"] for method, entry in found["digits"].items()} == {"fedavg": 2, "dresfl": 2}
    assert "digits/dresfl/seed-1" in result.stderr
    assert "[4/4] 100 % of all rounds" in result.stderr
    for name in ("table1.md", "table1.csv"):
        (tmp_path / "out" / name).unlink()
    again = dresfl("reproduce", "table1", "--render-only", "--out", "out", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "FedAvg" in again.stdout
    assert (tmp_path / "out" / "table1.csv").exists()
    figure = dresfl("reproduce", "figure3", "--render-only", "--out", "out", "--json", cwd=tmp_path)
    assert json.loads(figure.stdout)["curves"]["digits"]["dresfl"]["seeds"] == 2
    fourth = ("figure4", "--render-only", "--datasets", "digits", "--methods", "fedavg", "--out", "out")
    assert "figure4.svg" in dresfl("reproduce", *fourth, cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["table1", "--datasets", "minst"], "minst", "mnist"),
        (["table1", "--methods", "fedprox"], "fedprox", "known"),
        (["table1", "--datasets", "mnist"], "mnist need a folder", "--data"),
        (["figure4"], "mnist need a folder", "--data"),
        (["table1", "--datasets", "digits", "--device", "tpu"], "tpu", "cpu"),
        (["table1", "--datasets", "digits", "--engine", "fast"], "fast", "coded"),
        (["table1", "--seeds", "0"], "--seeds", ""),
        (["table1", "--datasets", ","], "no data set", "mnist"),
    ],
)
def test_wrong_usage_exits_2(dresfl: Run, tmp_path: Path, arguments: list[str], message: str, hint: str):
    refused(dresfl("reproduce", *arguments, "--out", "out", cwd=tmp_path), 2, message, hint)


def test_failed_cells_are_named_and_exit_1(dresfl: Run, tmp_path: Path):
    arguments = ("--datasets", "digits,mnist", "--methods", "fedavg", "--seeds", "1", "--rounds", "2")
    result = dresfl("reproduce", "figure3", *arguments, "--data", "nowhere", "--out", "out", cwd=tmp_path)
    refused(result, 1, "1 of 2 cells failed: mnist/fedavg/seed-0")
    assert "nowhere" in result.stderr
    assert (tmp_path / "out" / "figure3.png").exists()  # of what did run


def test_nothing_to_render_is_said(dresfl: Run, tmp_path: Path):
    result = dresfl("reproduce", "table1", "--render-only", "--out", "out", cwd=tmp_path)
    refused(result, 1, "no finished run", "--render-only")


def test_a_recipe_is_printed_and_trains(dresfl: Run, tmp_path: Path):
    result = dresfl("reproduce", "recipe", "digits", "dresfl", cwd=tmp_path)
    (tmp_path / "my.toml").write_text(result.stdout)
    assert load_config(str(tmp_path / "my.toml")) == small(["dresfl"], rounds=0)[0].config
    assert dresfl("train", "my.toml", "--set", "rounds=2", "--out", "run", cwd=tmp_path).returncode == 0
    refused(dresfl("reproduce", "recipe", "digits", "dres", cwd=tmp_path), 2, "dres", "dresfl")


@pytest.mark.parametrize("command", ["table1", "figure3", "figure4", "recipe"])
def test_help_has_an_example(dresfl: Run, tmp_path: Path, command: str):
    result = dresfl("reproduce", command, "--help", cwd=tmp_path)
    assert result.returncode == 0
    assert "Example" in result.stdout


def test_usage_of_the_functions():
    with pytest.raises(UsageError, match="recipe"):
        paper.recipe("imagenet", "dresfl")
    with pytest.raises(UsageError, match="jobs"):
        paper.run_matrix([], data=None, out=Path(), watch=Quiet(), jobs=0)


def test_of_one_seed_the_page_says_how_far_the_curve_still_rises(done: Path):
    one = next(record for record in paper.read_records(done) if record.method == "dresfl" and record.seed == 0)
    lines = [{"round": number, "test_accuracy": number / 100} for number in range(1, 13)]
    run = dataclasses.replace(one, header={**one.header, "rounds": 12}, evaluations=lines)
    page = paper.markdown([run])
    assert "| digits | DReS-FL, our recipe | 12 |" in page.partition("still rise?")[2]
    assert "| +2.00 | +2.00 |" in page
    assert "one seed" in page
    digest = load("digits").origin.data["train_inputs"]
    assert f"| digits | {digest[:16]} |" in page.partition("## Data")[2]
    assert paper.table([run])["digits"]["dresfl"]["sd"] is None
    assert "still rise?" not in paper.markdown(paper.read_records(done))
    (row,) = csv.DictReader(paper.spreadsheet([run]).splitlines())
    assert row["sd"] == ""
