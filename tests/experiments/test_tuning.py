"""Like-for-like methods, tuning on held-out training rows, and what processes keep between cells."""

import dataclasses
import json
import tomllib
from collections import Counter
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import Run, refused
from dresfl import baselines
from dresfl.data import Split, load
from dresfl.errors import CheckpointError, Diverged, UsageError
from dresfl.experiments import reproduce as paper
from dresfl.experiments.comparison import PERTURBATION, BaselineSettings, RealRows, run_baseline
from dresfl.experiments.prepare import load_split, prepare
from dresfl.experiments.published import LIKE, TABLE_DATASETS
from dresfl.experiments.reproduce import cells as cells_module
from dresfl.experiments.reproduce import data_keeper, runner, tuning
from dresfl.experiments.reproduce.data_keeper import DataKeeper, held_out_rows
from dresfl.experiments.reproduce.matrix import PERTURBED, Cell, baseline_settings, packaged_choices
from dresfl.experiments.reproduce.records import read_record
from dresfl.field import PublicStream
from dresfl.quantize import weight_reals

ROOT = Path(__file__).parents[2]
LIKES = [method for method in paper.METHODS if method.startswith(LIKE)]


class Quiet:
    """A watch that only remembers what was run."""

    def __init__(self) -> None:
        self.finished: list[str] = []

    def skip(self, cell: Cell) -> None: ...

    def advance(self, cell: Cell, done: int, accuracy: float | None) -> None: ...

    def finish(self, cell: Cell, record: paper.Record) -> None:
        self.finished.append(cell.name)

    def fail(self, failure: paper.Failure) -> None: ...


def run(cells: list[Cell], out: Path, **options: object) -> Quiet:
    watch = Quiet()
    assert paper.run_matrix(cells, data=None, out=out, watch=watch, **options) == []  # type: ignore[arg-type]
    return watch


# -- like for like ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", paper.recipes())
@pytest.mark.parametrize("method", LIKES)
def test_like_for_like_is_our_recipe_with_relu_and_reals(dataset: str, method: str):
    ours, theirs = paper.recipe(dataset, "dresfl", tuned={}), paper.recipe(dataset, method, tuned={})
    assert dataclasses.replace(theirs, name=ours.name) == ours
    settings = baseline_settings(dataset, method, {})
    assert settings is not None
    assert settings.start == "dresfl"
    assert baseline_settings(dataset, "dresfl") is None


@pytest.mark.parametrize("dataset", ["mnist", "fashion", "emnist"])
def test_the_papers_baselines_see_the_pixels_of_the_papers_recipe(dataset: str):
    features = {paper.recipe(dataset, method).features for method in ("dresfl-paper", *baselines.METHODS)}
    assert len(features) == 1
    assert not features.pop().plain


@pytest.mark.parametrize("dataset", paper.recipes())
def test_one_layer_has_the_rest_of_our_recipe(dataset: str):
    ours, linear = paper.recipe(dataset, "dresfl", tuned={}), paper.recipe(dataset, "dresfl-linear", tuned={})
    assert len(linear.model.layers) == 1
    same = dataclasses.replace(linear.model, layers=ours.model.layers)
    assert dataclasses.replace(linear, name=ours.name, model=same) == ours


def test_first_weights_are_those_of_dresfl_and_move_by_a_billionth():
    config = paper.recipe("digits", "dresfl", rounds=1)
    prepared = prepare(config, None)
    network = prepared.session.network
    wanted = weight_reals(network.initial_weights(PublicStream(config.seed)), network.weight_scales)
    still = dataclasses.replace(
        prepared,
        config=dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, learning_rate=1e-30)),
    )
    seen: list[torch.Tensor] = []

    def first(problem: baselines.Problem, start: torch.Tensor, *rest: object) -> baselines.State:
        seen.append(start.clone())
        return original(problem, start, *rest)  # type: ignore[arg-type]

    original = baselines.initial_state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "initial_state", first)
        for number in (0, 1, 1, 2):
            run_baseline(still, "scaffold", lambda *_: None, BaselineSettings(start="dresfl"), perturbation=number)
    assert torch.equal(seen[0], wanted)
    assert torch.equal(seen[1], seen[2])
    assert not torch.equal(seen[1], seen[3])
    assert 0 < float((seen[1] - seen[0]).abs().max()) <= PERTURBATION


def test_chaotic_methods_run_again_from_perturbed_weights(tmp_path: Path):
    cells = paper.matrix(["digits"], ["fedavg", "like-scaffold"], seeds=2, rounds=3, perturbations=2)
    assert Counter(cell.method for cell in cells if cell.perturbation) == {"like-scaffold": 2}
    assert len({cell.jsonl(tmp_path) for cell in cells}) == len(cells) == 6
    run(cells, tmp_path)
    records = paper.read_records(tmp_path)
    found = paper.table(records)["digits"]
    assert {method: entry["seeds"] for method, entry in found.items()} == {"fedavg": 2, "like-scaffold": 2}
    assert len({record.result["weights_sha256"] for record in records if record.method in PERTURBED}) == 4
    assert "over 3 runs of one seed" in paper.markdown(records)


def test_scaffold_is_in_float64_and_older_records_do_not_count(tmp_path: Path):
    (cell,) = paper.matrix(["digits"], ["scaffold"], seeds=1, rounds=2)
    run([cell], tmp_path)
    path = cell.jsonl(tmp_path)
    assert read_record(path).header["precision"] == "float64"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace('"precision": "float64"', '"precision": "float32"'), *lines[1:]]))
    with pytest.raises(CheckpointError, match="precision"):
        cells_module.finished(cell, tmp_path)


def test_another_loss_is_another_run(tmp_path: Path):
    tuned = {"digits": {"like-fedavg": {"baseline": {"loss": "squared"}}}}
    (plain,) = paper.matrix(["digits"], ["like-fedavg"], seeds=1, rounds=2)
    (changed,) = paper.matrix(["digits"], ["like-fedavg"], seeds=1, rounds=2, tuned=tuned)
    run([plain], tmp_path)
    with pytest.raises(CheckpointError, match="baseline"):
        cells_module.finished(changed, tmp_path)
    run([changed], tmp_path, replace=True)
    assert read_record(changed.jsonl(tmp_path)).header["loss"] == "squared"


def test_the_page_names_runs_that_todays_recipes_no_longer_describe(tmp_path: Path):
    run(paper.matrix(["digits"], ["fedavg"], seeds=1, rounds=2), tmp_path)
    (record,) = paper.read_records(tmp_path)
    assert "Older settings" not in paper.markdown([record])  # other rounds are told elsewhere
    config = {**record.header["config"], "features": {**record.header["config"]["features"], "scale": 2.0}}
    older = dataclasses.replace(record, header={**record.header, "config": config})
    assert "- FedAvg, digits: features" in paper.markdown([older])


# -- held-out rows ---------------------------------------------------------------------------------------------


def test_held_out_rows_are_a_tenth_of_each_class_and_nobody_trains_on_them():
    labels = load("digits", None).train.labels
    held_out = held_out_rows(labels)
    for label in range(10):
        assert int((labels[held_out] == label).sum()) == int((labels == label).sum()) // 10
    config = paper.recipe("digits", "dresfl")
    prepared = prepare(config, None, held_out=held_out)
    dealt = np.concatenate(prepared.parts)
    assert sorted([*dealt, *held_out]) == list(range(len(labels)))
    assert np.array_equal(prepared.split.test.inputs, prepared.split.train.inputs[held_out])
    assert np.array_equal(prepared.split.test.labels, labels[held_out])
    assert prepared.session.client_rows == tuple(map(len, prepared.parts))
    assert prepared.split.origin == prepare(config, None).split.origin


def test_a_trial_does_not_see_the_test_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With other test rows, every trial ends the same."""
    cells = [cell for cell in paper.trials(["digits"], ["dresfl", "like-fedavg"], {}, rounds=3) if "0.03" in cell.trial]
    run(cells, tmp_path / "one")

    def altered(*arguments: object) -> Split:
        split = load_split(*arguments)  # type: ignore[arg-type]
        test = dataclasses.replace(split.test, inputs=split.test.inputs * 0, labels=split.test.labels * 0)
        return Split(split.train, test)

    monkeypatch.setattr(data_keeper, "load_split", altered)
    run(cells, tmp_path / "two")
    for cell in cells:
        one, two = (read_record(cell.jsonl(tmp_path / name)) for name in ("one", "two"))
        assert one.result["test_accuracy"] == two.result["test_accuracy"]
        assert one.header["test_rows"] == len(held_out_rows(load("digits", None).train.labels))


# -- tuning ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", paper.recipes())
def test_every_method_has_the_same_budget(dataset: str):
    tuned = paper.tuned_methods()
    assert set(tuned) == {"dresfl", "dresfl-linear", "dresfl-hidden", *LIKES}
    for method in tuned:
        cells = paper.trials([dataset], [method], {})
        assert len({cell.trial for cell in cells}) == len({(cell.config, cell.baseline) for cell in cells}) == 6
        assert {cell.seed for cell in cells} == {tuning.SEED}
        assert {cell.config.rounds for cell in cells} == {paper.recipe(dataset, method, tuned={}).rounds // 3}


def test_like_for_like_takes_our_tuned_weight_decay():
    chosen = {"mnist": {"dresfl": {"optimizer": {"weight_decay": 0.77, "learning_rate": 0.5}}}}
    for cell in paper.trials(["mnist"], LIKES, chosen):
        assert cell.config.optimizer.weight_decay == 0.77
        assert cell.config.optimizer.learning_rate != 0.5
    assert paper.waves(["like-fedavg", "dresfl", "dresfl-linear"]) == [["dresfl", "dresfl-linear"], ["like-fedavg"]]


def test_the_best_trial_is_chosen_and_the_table_takes_it(dresfl: Run, tmp_path: Path):
    options = ("--datasets", "digits", "--methods", "like-centralised,dresfl", "--rounds", "20", "--out", "tuned")
    result = dresfl("reproduce", "tune", *options, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in (tmp_path / "tuned" / "tuning.jsonl").read_text().splitlines()]
    assert len(lines) == 12
    assert {line["held_out_rows"] for line in lines} == {139}
    assert all(line["data_sha256"] and line["seconds"] > 0 and line["rounds"] == 20 for line in lines)
    chosen = json.loads(result.stdout)
    assert chosen == tomllib.loads((tmp_path / "tuned" / "tuned.toml").read_text())
    for method in ("dresfl", "like-centralised"):
        own = [line for line in lines if line["method"] == method]
        best = max(own, key=lambda line: line["accuracy"])
        assert chosen["digits"][method] == tuning._nested(best["setting"])
    (cell,) = paper.matrix(["digits"], ["dresfl"], seeds=1, tuned=paper.read_choices(tmp_path / "tuned" / "tuned.toml"))
    assert cell.config.optimizer.learning_rate == chosen["digits"]["dresfl"]["optimizer"]["learning_rate"]
    again = paper.trials(["digits"], ["dresfl"], {}, rounds=20, engine="direct")
    assert run(again, tmp_path / "tuned").finished == []  # nothing is run again
    assert not list((tmp_path / "tuned" / "tuning").glob("*/*/*/config.toml"))
    table = ("--datasets", "digits", "--methods", "dresfl", "--seeds", "1", "--rounds", "2", "--out", "table")
    done = dresfl("reproduce", "figure3", *table, "--tuned", "tuned/tuned.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = read_record(tmp_path / "table" / "jsonl" / "digits-dresfl-seed0.jsonl")
    assert record.config.optimizer.learning_rate == cell.config.optimizer.learning_rate


def test_a_trial_that_diverges_counts_as_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cells = paper.trials(["digits"], ["dresfl"], {}, rounds=2)

    def fragile(config: object, **options: object) -> object:
        if config.optimizer.learning_rate > 0.02:  # type: ignore[attr-defined]
            raise Diverged("the weights diverge", "use a smaller rate")
        return original(config, **options)  # type: ignore[arg-type]

    original = cells_module.train
    monkeypatch.setattr(cells_module, "train", fragile)
    run(cells, tmp_path)
    choices = paper.write_choices(tmp_path)
    assert choices["digits"]["dresfl"]["optimizer"]["learning_rate"] == 0.01
    lines = [json.loads(line) for line in (tmp_path / "tuning.jsonl").read_text().splitlines()]
    assert [line["accuracy"] == 0 and "diverge" in line["error"] for line in lines if "error" in line] == [True] * 4
    assert run(cells, tmp_path).finished == []


def test_the_packaged_choices_are_the_best_of_the_committed_trials():
    path = ROOT / "results" / "tuning.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    packaged = (resources.files(paper) / "tuned.toml").read_text()
    assert packaged_choices() == tomllib.loads(tuning.choices_text(lines)) == tomllib.loads(packaged)
    for line in lines:
        tried = {
            key: value
            for key, value in line["setting"].items()
            if key in tuning.grid(line["dataset"], line["method"])[0]
        }
        assert tried in tuning.grid(line["dataset"], line["method"])


def test_of_equal_trials_the_first_is_chosen():
    line = {"dataset": "mnist", "method": "dresfl", "held_out_rows": 10, "rounds": 3}
    lines = [
        {**line, "accuracy": accuracy, "setting": {"optimizer.learning_rate": rate}}
        for accuracy, rate in ((0.5, 0.1), (0.9, 0.2), (0.9, 0.3), (0.1, 0.4))
    ]
    chosen = tomllib.loads(tuning.choices_text(lines))
    assert chosen == {"mnist": {"dresfl": {"optimizer": {"learning_rate": 0.2}}}}


def test_wrong_choices_are_named(dresfl: Run, tmp_path: Path):
    refused(
        dresfl("reproduce", "tune", "--methods", "fedavg", "--out", "out", cwd=tmp_path), 2, "fedavg", "like-fedavg"
    )
    arguments = ("reproduce", "table1", "--datasets", "digits", "--tuned", "none.toml", "--out", "out")
    refused(dresfl(*arguments, cwd=tmp_path), 2, "none.toml", "tune")
    with pytest.raises(UsageError, match="learning_rat"):
        paper.matrix(["digits"], ["dresfl"], seeds=1, tuned={"digits": {"dresfl": {"optimizer": {"learning_rat": 1}}}})
    assert "Example" in dresfl("reproduce", "tune", "--help", cwd=tmp_path).stdout


# -- what a process keeps --------------------------------------------------------------------------------------


def test_a_keeper_reads_data_once_and_gives_what_prepare_gives(monkeypatch: pytest.MonkeyPatch):
    reads: list[str] = []

    def counted(config: object, *rest: object) -> object:
        reads.append(config.name)  # type: ignore[attr-defined]
        return load_split(config, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(data_keeper, "load_split", counted)
    cells = paper.matrix(["digits"], ["dresfl", "like-fedavg"], seeds=2)
    trial = paper.trials(["digits"], ["dresfl"], {})[0]
    keeper = DataKeeper(None)
    given = [keeper.prepared(cell) for cell in (*cells, trial, cells[0])]
    assert len(reads) == 1
    assert given[0].client_data() is given[2].client_data()  # the seeds of the paper's partition share their rows
    assert given[0].client_data() is not given[4].client_data()
    for cell, found in zip((cells[0], trial), (given[5], keeper.prepared(trial)), strict=True):
        held_out = held_out_rows(found.split.train.labels) if cell.trial else None
        wanted = prepare(cell.config, None, held_out=held_out)
        assert found.session.sharing_digest == wanted.session.sharing_digest
        for ours, theirs in zip(found.client_data(), wanted.client_data(), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_rows_on_a_device_are_moved_once():
    split, rows = load("digits", None), RealRows()
    first = rows.on("train", split.train, "cpu")
    assert rows.on("train", split.train, "cpu")[0] is first[0]
    rows.release()
    assert rows.on("train", split.train, "cpu")[0] is not first[0]


def test_a_process_stays_with_its_data_and_free_ones_go_where_most_is_left():
    cells = paper.matrix(["digits", "mnist", "cifar10"], ["dresfl"], seeds=2)
    digits, mnist = cells[0], cells[2]
    waiting = [cells[1], cells[3], cells[4], cells[5]]
    busy = {number: runner._Running(cell, None) for number, cell in enumerate((digits, mnist))}  # type: ignore[arg-type]
    assert runner._next(list(waiting), busy, mnist) is cells[3]  # type: ignore[arg-type]
    assert runner._next(list(waiting), busy) is cells[4]  # type: ignore[arg-type]
    assert runner._next(waiting[2:], busy, mnist) is cells[4]  # type: ignore[arg-type]


def test_the_table_has_the_papers_figures_for_the_papers_methods_alone():
    from dresfl.experiments.published import METHOD_LABELS, PAPER

    assert METHOD_LABELS.keys() == set(paper.METHODS)
    assert not any(method.startswith(LIKE) or method in ("dresfl-linear", "dresfl-hidden") for _, method in PAPER)
    assert {dataset for dataset, _ in PAPER} == set(TABLE_DATASETS)
