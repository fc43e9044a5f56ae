"""The commands as a user runs them: exit codes, stdout and stderr."""

import errno
import gzip
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import Run, refused
from dresfl.data import load

TOY = """
name = "toy"
rounds = 12
evaluate_every = 6
checkpoint_every = 4
threads = 1
[federation]
num_clients = 6
[model]
layers = [{ kind = "dense", units = 8 }, { kind = "square" }, { kind = "dense", units = 10 }]
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "toy.toml").write_text(TOY)
    return tmp_path


def test_plan_of_the_papers_setting(dresfl: Run, tmp_path: Path):
    result = dresfl("plan", "--clients", "20", "--layers", "784,64,64,10", "--json", cwd=tmp_path)
    plan = json.loads(result.stdout)
    assert result.returncode == 0
    assert (plan["gradient_degree"], plan["recovery_threshold"], plan["max_dropouts"]) == (8, 9, 11)
    assert plan["feasible"] is True
    assert plan["modulus_bits"] >= plan["needed_bits"] + 20
    assert plan["upload_bytes"] == 24 + 55050 * 3 * len(plan["moduli"])
    assert plan["share_bytes_per_client"] == 60_000 * 794 * 3 * len(plan["moduli"])
    assert any("span" in warning for warning in plan["warnings"])
    assert plan["mask_seeds"] == 13  # N − R + 2


def test_plan_warns_of_a_setting_whose_answers_cannot_be_blinded(dresfl: Run, tmp_path: Path):
    """A network refuses it, and the simulation does not mind."""
    result = dresfl("plan", "--clients", "200", "--layers", "8,4", "--colluders", "4", "--json", cwd=tmp_path)
    plan = json.loads(result.stdout)
    assert (result.returncode, plan["feasible"], plan["mask_seeds"]) == (0, True, None)
    assert any("over a network this setting is refused" in warning for warning in plan["warnings"])


def test_plan_says_what_the_modes_protect(dresfl: Run, tmp_path: Path):
    arguments = ["plan", "--clients", "20", "--layers", "784,64,64,10", "--liars", "2"]
    plan = json.loads(dresfl(*arguments, "--json", cwd=tmp_path).stdout)
    assert (plan["answers_needed"], plan["max_dropouts"], plan["max_liars"]) == (13, 7, 2)
    against = {line["against"]: line for line in plan["protection"]}
    assert list(against) == [
        "clients",
        "the coordinator",
        "lying clients",
        "dealers of false rows",
        "readers of the model",
    ]
    assert "rows can be computed from the weights" in against["clients"]["open_mode"]
    assert "up to 2 in a round" in against["lying clients"]["open_mode"]
    assert "nothing can be learned before the end" in against["clients"]["hidden_mode"]
    shown = dresfl(*arguments, cwd=tmp_path).stdout
    assert "13 of 20 clients must answer" in shown
    assert "what is protected" in shown


def test_plan_of_the_hidden_mode(dresfl: Run, tmp_path: Path):
    arguments = ["plan", "--mode", "hidden", "--clients", "9", "--layers", "64,32,32,10", "--rounds", "300"]
    plan = json.loads(dresfl(*arguments, "--rows", "1437", "--json", cwd=tmp_path).stdout)
    assert (plan["schedule"], plan["answers_needed"], plan["max_dropouts"], plan["trips"]) == ("S4", 6, 3, 5)
    assert list(plan["seconds_per_round"]) == ["1", "20", "50"]
    assert plan["range_proofs"]["growth"] > 5
    shown = dresfl(*arguments, "--set", "hidden.trusted_dealers=true", "--rtt", "30", cwd=tmp_path).stdout
    for words in ("6 of 9 clients must answer a hop", "S2 would take 10 trips", "dealers are trusted", "at 30 ms"):
        assert words in shown.replace("\n", " ")
    refused(dresfl(*arguments, "--set", "optimizer.method=adam", cwd=tmp_path), 2, "cannot use adam", "momentum")
    few = ["plan", "--mode", "hidden", "--clients", "3", "--layers", "64,32,10"]
    refused(dresfl(*few, cwd=tmp_path), 2, "3 clients are too few", "clients are honest")
    refused(dresfl("plan", "--clients", "9", "--layers", "64,32,10", "--rtt", "5", cwd=tmp_path), 2, "hidden mode")


def test_train_in_the_hidden_mode(dresfl: Run, toy: Path):
    hidden = "--set", "mode=hidden", "--set", "optimizer.method=momentum", "--set", "optimizer.learning_rate=0.05"
    result = dresfl("train", "toy.toml", *hidden, "--engine", "direct", "--out", "run", "--json", cwd=toy)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["mode"], summary["engine"], summary["rounds"]) == ("hidden", "direct", 12)
    again = dresfl("train", "toy.toml", *hidden, "--engine", "direct", "--out", "again", "--json", cwd=toy)
    assert json.loads(again.stdout)["weights_sha256"] == summary["weights_sha256"]
    adam = dresfl("train", "toy.toml", "--set", "mode=hidden", "--set", "optimizer.method=adam", cwd=toy)
    refused(adam, 2, "cannot use adam", "momentum")
    refused(dresfl("train", "toy.toml", *hidden, "--record", "all", cwd=toy), 2, "open mode")


def test_plan_without_the_span_warning_for_a_large_batch(dresfl: Run, tmp_path: Path):
    result = dresfl("plan", "--clients", "20", "--layers", "784,64,64,10", "--batch", "65", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["warnings"] == []


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--clients", "8"], "feasible: 9 clients"),
        (["--clients", "20", "--shards", "3"], "2 shards and 1 colluders"),
        (["--clients", "20", "--colluders", "4"], "1 shard and 2 colluders"),
        (["--clients", "8"], "1 square layers"),
        (["--clients", "12", "--liars", "2"], "feasible: 13 clients, or 1 liars"),
    ],
)
def test_an_infeasible_plan_exits_2_and_names_what_works(dresfl: Run, tmp_path: Path, arguments: list[str], hint: str):
    result = dresfl("plan", "--layers", "784,64,64,10", "--json", *arguments, cwd=tmp_path)
    assert json.loads(result.stdout)["feasible"] is False
    refused(result, 2, "cannot decode", hint)


def test_the_hint_of_an_infeasible_plan_is_feasible(dresfl: Run, tmp_path: Path):
    for settings in (["--clients", "9"], ["--clients", "20", "--shards", "2"], ["--clients", "20", "--colluders", "2"]):
        assert dresfl("plan", "--layers", "784,64,64,10", *settings, cwd=tmp_path).returncode == 0


def test_plan_of_a_convolution_from_a_file(dresfl: Run, tmp_path: Path):
    (tmp_path / "m.toml").write_text(
        '[model]\ninput_shape = [28, 28, 1]\nlayers = [{ kind = "conv2d", channels = 16, kernel = 5, stride = 2 }, '
        '{ kind = "square" }, { kind = "flatten" }, { kind = "dense", units = 10 }]\n'
    )
    result = dresfl("plan", "--clients", "20", "--model", "m.toml", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["gradient_degree"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--clients", "20"], "either --layers or --model"),
        (["plan", "--clients", "20", "--layers", "784,x"], "list of sizes"),
        (["plan", "--clients", "0", "--layers", "4,2"], "at least 1"),
        (["plan", "--clients", "many", "--layers", "4,2"], "--clients"),
        (["plan", "--clients", "20", "--layers", "4"], "at least an input"),
        (["plan", "--clients", "20", "--model", "absent.toml"], "absent.toml"),
        (["train", "digitz"], "digitz"),
        (["train", "absent.toml"], "absent.toml"),
        (["train", "digits", "--set", "optimizer.learning_rat=1"], "learning_rat"),
        (["train", "digits", "--set", "rounds"], "key=value"),
        (["train", "digits", "--set", "rounds=0"], "rounds"),
        (["train", "digits", "--engine", "fast"], "fast"),
        (["train", "digits", "--device", "tpu"], "tpu"),
        (["train", "digits", "--set", "federation.num_clients=8"], "8 clients cannot decode"),
        (["vectors"], "either --out or --check"),
        (["fly"], "fly"),
    ],
)
def test_wrong_usage_exits_2(dresfl: Run, tmp_path: Path, arguments: list[str], message: str):
    refused(dresfl(*arguments, cwd=tmp_path), 2, message)


def test_an_unknown_key_names_the_closest(dresfl: Run, tmp_path: Path):
    result = dresfl("train", "digits", "--set", "optimizer.learning_rat=1", cwd=tmp_path)
    refused(result, 2, "optimizer.learning_rat", "did you mean 'learning_rate'?")


def test_train_writes_the_run_and_prints_the_summary(dresfl: Run, toy: Path):
    result = dresfl("train", "toy.toml", "--out", "run", "--json", cwd=toy)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert {"config.toml", "metrics.jsonl", "summary.json", "model.safetensors"} <= {
        path.name for path in (toy / "run").iterdir()
    }
    assert summary == json.loads((toy / "run" / "summary.json").read_text())
    assert {
        "test_accuracy", "rounds", "skipped_rounds", "mean_survivors", "weights_sha256", "seconds", "bytes_shared",
        "bytes_uploaded", "engine", "alarms",
    } <= summary.keys()  # fmt: skip
    assert "round 12/12" in result.stderr
    again = dresfl("train", "toy.toml", "--out", "run", cwd=toy)
    refused(again, 2, "already holds a run", "--resume")
    resumed = dresfl("train", "toy.toml", "--out", "run", "--resume", "--json", cwd=toy)
    assert json.loads(resumed.stdout)["weights_sha256"] == summary["weights_sha256"]
    direct = dresfl("train", "toy.toml", "--out", "direct", "--engine", "direct", "--json", cwd=toy)
    assert json.loads(direct.stdout)["weights_sha256"] == summary["weights_sha256"]


def test_too_few_clients_in_every_round_exits_3(dresfl: Run, toy: Path):
    result = dresfl(
        "train", "toy.toml", "--set", "dropout.model=bernoulli", "--set", "dropout.rate=0.999", "--json", cwd=toy
    )
    refused(result, 3, "skipped")
    assert json.loads(result.stdout)["skipped_rounds"] == 12


def test_a_diverging_run_ends_with_the_alarm(dresfl: Run, toy: Path):
    result = dresfl("train", "toy.toml", "--set", "optimizer.learning_rate=1e9", "--json", cwd=toy)
    assert "Traceback" not in result.stderr
    assert json.loads(result.stdout)["alarms"] >= 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--set", 'data.dataset="mnist"'], "mnist"),
        (["--set", 'data.dataset="mnist"', "--data", "nowhere"], "nowhere"),
        (["--set", 'data.dataset="minst"'], "minst"),
        (["--set", "federation.num_clients=2000"], "rows for 2000 clients"),
        (["--set", "model.layers=[{kind='dense', units=9}]"], "10 classes"),
        (["--set", "model.layers=[{kind='square'}]"], "at least one layer with weights"),
        (["--set", "model.layers=[{kind='conv2d', channels=2, kernel=9}]"], "does not fit"),
    ],
)
def test_data_that_does_not_fit_is_refused_in_two_lines(dresfl: Run, toy: Path, settings: list[str], message: str):
    result = dresfl("train", "toy.toml", *settings, cwd=toy)
    refused(result, result.returncode, message)
    assert result.returncode in (1, 2)


def write_idx(path: Path, array: bytes, *shape: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        gzip.compress(struct.pack(">BBBB", 0, 0, 8, len(shape)) + struct.pack(f">{len(shape)}I", *shape) + array)
    )


def write_mnist(folder: Path, label: int = 0, pixel: int = 7) -> None:
    raw = folder / "MNIST" / "raw"
    for part, rows in (("train", 40), ("t10k", 10)):
        write_idx(raw / f"{part}-images-idx3-ubyte.gz", bytes([pixel]) * rows * 784, rows, 28, 28)
        write_idx(raw / f"{part}-labels-idx1-ubyte.gz", bytes([label] + [i % 10 for i in range(1, rows)]), rows)


def test_constant_features_train(dresfl: Run, toy: Path):
    write_mnist(toy / "data")
    result = dresfl("train", "toy.toml", "--set", 'data.dataset="mnist"', "--data", "data", "--json", cwd=toy)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["alarms"] == 0


def test_labels_out_of_range_are_refused(dresfl: Run, toy: Path):
    write_mnist(toy / "data", label=11)
    result = dresfl("train", "toy.toml", "--set", 'data.dataset="mnist"', "--data", "data", cwd=toy)
    refused(result, 1, "label of row 0 is 11")


def test_a_corrupt_file_is_refused(dresfl: Run, toy: Path):
    write_mnist(toy / "data")
    images = toy / "data" / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:60])
    result = dresfl("train", "toy.toml", "--set", 'data.dataset="mnist"', "--data", "data", cwd=toy)
    refused(result, 1, "train-images")


def test_a_folder_that_cannot_be_written_is_refused(dresfl: Run, toy: Path):
    (toy / "file").write_text("in the way")
    refused(dresfl("train", "toy.toml", "--out", "file/run", cwd=toy), 1, "cannot write")


def test_a_full_disk_is_refused(dresfl: Run, toy: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(dresfl("vectors", "--out", "v.json", cwd=toy), 1, "No space left", "free some space")
    refused(dresfl("train", "toy.toml", cwd=toy), 1, "No space left", "free some space")
    assert [path.name for path in toy.rglob("*") if path.is_file()] == ["toy.toml"]


def test_demo_compares_three_methods_and_draws(dresfl: Run, tmp_path: Path):
    for _ in range(2):  # a second demo replaces the first
        short = "--set", "rounds=6", "--set", "evaluate_every=3", "--no-hidden"
        result = dresfl("demo", "--out", "demo", *short, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    for word in ("DReS-FL", "FedAvg", "centralised", "seed 0", "passed over"):
        assert word in result.stdout
    assert (tmp_path / "demo" / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_vectors_are_written_and_checked(dresfl: Run, tmp_path: Path):
    assert dresfl("vectors", "--out", "v.json", cwd=tmp_path).returncode == 0
    assert "agree" in dresfl("vectors", "--check", "v.json", cwd=tmp_path).stdout
    (tmp_path / "v.json").write_text((tmp_path / "v.json").read_text().replace('"num_shards": 2', '"num_shards": 3'))
    refused(dresfl("vectors", "--check", "v.json", cwd=tmp_path), 1, "num_shards differs")


def test_predict_says_the_class_of_each_row(dresfl: Run, toy: Path):
    assert dresfl("train", "toy.toml", "--out", "run", cwd=toy).returncode == 0
    summary = json.loads((toy / "run" / "summary.json").read_text())
    digits = load("digits").test
    np.savez(toy / "rows.npz", inputs=digits.inputs, labels=digits.labels)
    result = dresfl("predict", "run/model.safetensors", "rows.npz", "--json", cwd=toy)
    found = json.loads(result.stdout)
    assert found["accuracy"] == summary["test_accuracy"]
    assert len(found["predictions"]) == 360
    plain = dresfl("predict", "run/model.safetensors", "rows.npz", cwd=toy)
    assert [int(line) for line in plain.stdout.split()] == found["predictions"]
    np.savez(toy / "rows.npz", inputs=digits.inputs[:2])
    unlabelled = dresfl("predict", "run/model.safetensors", "rows.npz", "--json", cwd=toy)
    assert json.loads(unlabelled.stdout) == {"predictions": found["predictions"][:2], "accuracy": None}


def test_predict_refuses_what_is_no_model_or_no_rows(dresfl: Run, toy: Path):
    assert dresfl("train", "toy.toml", "--out", "run", cwd=toy).returncode == 0
    refused(dresfl("predict", "run/checkpoint.safetensors", "toy.toml", cwd=toy), 1, "checkpoint.safetensors")
    refused(dresfl("predict", "run/model.safetensors", "toy.toml", cwd=toy), 2, "ending in .toml", ".csv")
    (toy / "text.npz").write_text("no archive")
    refused(dresfl("predict", "run/model.safetensors", "text.npz", cwd=toy), 1, "cannot read rows", "numpy.savez")
    np.savez(toy / "rows.npz", labels=np.zeros(2))
    refused(dresfl("predict", "run/model.safetensors", "rows.npz", cwd=toy), 1, "it has no inputs")


@pytest.mark.parametrize(("old", "new"), [("server", "serve"), ("client", "join")])
def test_the_old_names_work_and_say_the_new_ones(dresfl: Run, tmp_path: Path, old: str, new: str):
    pytest.importorskip("grpc")
    for command in (old, new):
        result = dresfl(command, "--config", "absent.toml", cwd=tmp_path)
        refused(result, 2, "absent.toml")
        assert (f"`dresfl {old}` is now `dresfl {new}`" in result.stderr) == (command == old)
    lines = dresfl("--help", cwd=tmp_path).stdout.splitlines()
    commands = [words[0] for line in lines if (words := line.strip("│ ").split())]
    assert new in commands
    assert old not in commands


@pytest.mark.parametrize(
    "command", ["plan", "train", "demo", "vectors", "predict", "evaluate", "export", "data check", "serve", "join"]
)
def test_help_has_an_example(dresfl: Run, tmp_path: Path, command: str):
    result = dresfl(*command.split(), "--help", cwd=tmp_path)
    assert result.returncode == 0
    assert "Example" in result.stdout


def test_the_installed_command_runs_as_a_process(tmp_path: Path):
    for command in (["-m", "dresfl", "--version"], ["-m", "dresfl", "plan", "--clients", "3", "--layers", "4,2"]):
        result = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
    assert "recovery_threshold" in result.stdout
