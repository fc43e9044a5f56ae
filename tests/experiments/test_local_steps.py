"""`dresfl train` and `dresfl plan` with several local steps, as a user runs them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commands import Run, refused
from dresfl.data import load
from dresfl.deploy.audit import audit
from dresfl.errors import CheckpointError, InfeasiblePlan, UsageError
from dresfl.experiments.config import RunConfig, load_config
from dresfl.experiments.local_steps import TASKS, answer_times, choose, measured, priced, table
from dresfl.experiments.training import train
from dresfl.storage.run_folder import read_metrics
from dresfl.storage.transcript import Transcript

ROOT = Path(__file__).parents[2]
SMALL = [
    "name=small",
    "rounds=12",
    "evaluate_every=4",
    "checkpoint_every=3",
    "federation.num_clients=7",
    "federation.batch_size=8",
    "federation.local_steps=2",
    'model.layers=[{ kind = "dense", units = 10 }]',
    'optimizer={ method = "sgd", learning_rate = 0.015625, schedule = "cosine" }',
    "dropout.model=bernoulli",
    "dropout.rate=0.2",
    "threads=1",
]


def small(*more: str) -> RunConfig:
    return load_config("digits", [*SMALL, *more])


def test_both_engines_give_the_same_weights_and_metrics(tmp_path: Path) -> None:
    coded = train(small(), out=tmp_path / "coded")
    direct = train(small("engine=direct"), out=tmp_path / "direct")
    assert coded["weights_sha256"] == direct["weights_sha256"]
    assert coded["recovery_threshold"] == 5
    assert 0 < coded["peak_bits"] < coded["needed_bits"]
    for one, other in zip(read_metrics(tmp_path / "coded"), read_metrics(tmp_path / "direct"), strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert coded["weights_sha256"] != train(small("federation.local_steps=1"), out=tmp_path / "one")["weights_sha256"]


def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    expected = train(small(), out=tmp_path / "whole")

    def stop(progress: object, record: object, answers: int) -> None:
        if getattr(progress, "round_number", 0) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(small(), out=tmp_path / "run", watch=stop)
    with pytest.raises(CheckpointError, match="federation"):
        train(small("federation.local_steps=3"), out=tmp_path / "run", resume=True)
    assert train(small(), out=tmp_path / "run", resume=True)["weights_sha256"] == expected["weights_sha256"]


def test_a_transcript_has_the_session_and_the_moves(tmp_path: Path) -> None:
    """Its session is made from its header, plan included; else none of its messages could be read."""
    summary = train(small("dropout.model=none"), out=tmp_path, recorded=["coordinator"])
    transcript = Transcript(tmp_path / "transcript" / "coordinator.transcript")
    local = transcript.session.local
    assert local is not None
    assert (local.steps.num_steps, local.rounds) == (2, summary["rounds"])
    moves = dict(transcript.sums())
    assert sorted(moves) == list(range(12))
    largest = max(float(move.abs().max()) for move in moves.values())
    assert 2 ** summary["peak_bits"] == pytest.approx(largest)


def test_an_audit_says_the_threshold_of_the_local_steps(tmp_path: Path) -> None:
    train(small("engine=direct"), out=tmp_path)
    parameters = audit(tmp_path).parameters
    assert (parameters["local_steps"], parameters["recovery_threshold"], parameters["answers_needed"]) == (2, 5, 5)


def test_the_record_of_a_run_has_its_price(tmp_path: Path) -> None:
    task = replace(TASKS["digits"], steps=12)
    split = load("digits")
    lines = [measured("small", task, split.train, split.test, s, seed) for s in (1, 3) for seed in (0, 1)]
    assert [line["rounds"] for line in lines] == [12, 12, 4, 4]
    assert [line.get("coded_equals_direct") for line in lines] == [True, None, True, None]
    assert [line["mean_answers"] for line in lines[::2]] == [3.0, 7.0]  # all others were missing
    assert len({line["weights_sha256"] for line in lines}) == 4
    assert all(json.loads(json.dumps(line))["alarms"] == 0 for line in lines)
    times = answer_times("small", task, 0.01)
    assert [line["local_steps"] for line in times] == [1, 2, 3, 4]
    assert all(line["answer_seconds"] > 0 for line in times)
    assert table([*lines, *times]).count("\n") == 4
    assert list(choose(task, split.train, [0.0625], 1)) == [0.0625]


def test_rounds_that_move_nothing_are_noted(tmp_path: Path) -> None:
    notes: list[str] = []
    schedule = 'optimizer={ method = "sgd", learning_rate = 0.015625, decay_factor = 0.25, decay_every = 1 }'
    train(small(schedule, "engine=direct"), out=tmp_path, note=notes.append)
    assert any("the last 6 rounds" in note and "move nothing" in note for note in notes)


@pytest.mark.parametrize(
    ("more", "error", "named"),
    [
        (['optimizer.method="adam"'], UsageError, "adam"),
        (["optimizer.max_norm=1.0"], UsageError, "clip"),
        (["federation.num_clients=4"], InfeasiblePlan, "4 clients cannot decode 2 local steps"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_folder_is_made(
    tmp_path: Path, more: list[str], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        train(small(*more), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_hidden_mode_is_refused_when_the_configuration_is_read() -> None:
    with pytest.raises(UsageError, match="hidden mode takes one step"):
        small("mode=hidden")


def test_a_federation_of_processes_is_refused(dresfl: Run) -> None:
    settings = [part for key in SMALL for part in ("--set", key)]
    result = dresfl("federate", "--clients", "7", "--mode", "open", *settings, "--out", "trial")
    refused(result, 2, "2 local steps a round are simulated only", "use `dresfl train`")


def test_plan_prices_local_steps(dresfl: Run) -> None:
    arguments = "plan", "--clients", "20", "--layers", "784,10", "--local-steps", "4"
    values = json.loads(dresfl(*arguments, "--json").stdout)
    assert (values["local_steps"], values["gradient_degree"], values["answers_needed"]) == (4, 8, 9)
    prices = values["local_prices"]
    assert [price["gradient_degree"] for price in prices] == [2, 4, 6, 8]
    assert [price["recovery_threshold"] for price in prices] == [3, 5, 7, 9]
    bits = [price["needed_bits"] for price in prices]
    assert bits == sorted(bits)
    assert (prices[-1]["needed_bits"], prices[-1]["upload_bytes"]) == (values["needed_bits"], values["upload_bytes"])
    shown = dresfl(*arguments).stdout
    assert "what local steps cost" in shown
    assert "9 of 20" in shown


def test_a_rate_that_is_a_power_of_two_is_cheaper(dresfl: Run) -> None:
    arguments = "plan", "--clients", "20", "--layers", "784,10", "--local-steps", "4", "--json"
    usual, power = (
        json.loads(dresfl(*arguments, "--set", f"optimizer.learning_rate={rate}").stdout) for rate in (0.03, 0.03125)
    )
    assert power["needed_bits"] < usual["needed_bits"]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ["--layers", "784,64,10", "--local-steps", "2"],
            "20 clients cannot decode 2 local steps: degree 24",
            "25 cli",
        ),
        (["--layers", "784,64,64,10", "--local-steps", "2"], "bits, and a field holds", "use 1 local step"),
        (["--layers", "784,10", "--local-steps", "2", "--mode", "hidden"], "hidden mode takes one step", "open"),
        (["--layers", "784,10", "--local-steps", "0"], "local_steps must be at least 1", ""),
        (
            ["--layers", "784,10", "--local-steps", "2", "--set", "optimizer.method=momentum"],
            "local steps cannot use momentum",
            'method = "sgd"',
        ),
        (["--layers", "784,10", "--local-steps", "2", "--set", "hidden.runs=2"], "keys of [optimizer] alone", "e.g."),
    ],
)
def test_plans_that_do_not_work_say_why(dresfl: Run, arguments: list[str], message: str, hint: str) -> None:
    refused(dresfl("plan", "--clients", "20", *arguments, "--json"), 2, message, hint)


def test_the_pages_table_is_made_from_the_records() -> None:
    lines = (ROOT / "results" / "local_steps.jsonl").read_text(encoding="utf-8").splitlines()
    page = (ROOT / "docs" / "explanation" / "local-steps.md").read_text(encoding="utf-8")
    shown = page.split("<!-- local-steps -->\n")[1].split("<!-- /local-steps -->")[0]
    records = [json.loads(line) for line in lines]
    assert shown == table(records)
    assert {record["task"] for record in records} == set(TASKS)
    for record in (record for record in records if "seed" in record):
        assert record["alarms"] == 0
        assert record["seed"] > 0 or record["coded_equals_direct"]


@pytest.mark.parametrize("name", ["digits", "digits-two-shards", "digits-square"])
def test_the_prices_in_the_records_are_those_of_the_plan(name: str) -> None:
    lines = (ROOT / "results" / "local_steps.jsonl").read_text(encoding="utf-8").splitlines()
    found = [record for record in map(json.loads, lines) if record["task"] == name and "seed" in record]
    for record in found:
        prices = priced(TASKS[name], load("digits").train.num_rows, record["local_steps"])
        assert {key: record[key] for key in prices} == prices
        assert record["learning_rate"] == TASKS[name].learning_rate


def test_what_the_page_says_of_bytes_follows_from_the_records() -> None:
    lines = (ROOT / "results" / "local_steps.jsonl").read_text(encoding="utf-8").splitlines()
    page = (ROOT / "docs" / "explanation" / "local-steps.md").read_text(encoding="utf-8")
    found = {(r["task"], r["local_steps"]): r for r in map(json.loads, lines) if "seed" in r}
    fewer = [found[t, 1]["run_upload_bytes"] / found[t, 4]["run_upload_bytes"] for t in ("digits", "mnist")]
    assert f"{fewer[0]:.1f} (`digits`) or {fewer[1]:.1f} times (`mnist`) fewer bytes of upload" in page
    one, four = found["mnist", 1], found["mnist", 4]
    shares, saved = four["share_bytes"] - one["share_bytes"], one["upload_bytes"] - four["upload_bytes"] / 4
    run = one["run_upload_bytes"] - four["run_upload_bytes"]
    assert f"four steps add {shares / 1e6:.0f} MB of shares to each client and save {run / 1e6:.0f} MB" in page
    assert f"after about {round(shares / saved, -2):,.0f} steps" in page
    two, single = found["digits-square", 2], found["digits-square", 1]
    uploads = [record["run_upload_bytes"] / 1e6 for record in (two, single)]
    assert f"{uploads[0]:.1f} MB in place of {uploads[1]:.1f} MB" in page
    assert f"30 clients {two['max_dropouts']} in place of {single['max_dropouts']}" in page
