"""A run can be stopped anywhere and resumed: same weights, same metrics, whole files."""

import dataclasses
import errno
import io
import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from dresfl.data import load
from dresfl.errors import CheckpointError, DataError, DresError, UsageError
from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import Prepared, prepare
from dresfl.experiments.training import read_origin, train
from dresfl.protocol import Training
from dresfl.protocol import round as protocol_round
from dresfl.storage import run_folder
from dresfl.storage.model_file import read_model
from dresfl.storage.run_folder import clear_run, read_metrics, read_summary
from dresfl.storage.tensors import load_tensors, save_tensors

SMALL = [
    "name=small",
    "rounds=12",
    "evaluate_every=4",
    "checkpoint_every=3",
    "federation.num_clients=5",
    "federation.batch_size=8",
    'model.layers=[{ kind = "dense", units = 10 }]',
    "dropout.model=bernoulli",
    "dropout.rate=0.4",
    "threads=1",
]
FILES = {
    "checkpoint.safetensors",
    "checkpoint-before.safetensors",
    "config.toml",
    "data.json",
    "metrics.jsonl",
    "model.safetensors",
    "rounds.jsonl",
    "summary.json",
}


def small(*more):
    return load_config("digits", [*SMALL, *more])


def outcome(out):
    """All that a run leaves, without its times."""
    tensors, meta = load_tensors(out / "model.safetensors")
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in read_metrics(out)]
    summary = {k: v for k, v in read_summary(out).items() if not k.startswith("seconds")}
    state = {name: tensor.tolist() for name, tensor in load_tensors(out / "checkpoint.safetensors")[0].items()}
    return summary, lines, {name: tensor.tolist() for name, tensor in tensors.items()}, meta, state


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "run"
    train(small(), out=out)
    return out


@pytest.fixture(scope="module")
def expected(unbroken):
    return outcome(unbroken)


def test_a_run_leaves_its_files_and_tells_the_truth(unbroken, expected):
    assert set(os.listdir(unbroken)) == FILES
    config = small()
    assert load_config(str(unbroken / "config.toml")) == config
    summary, lines, tensors, meta, state = expected
    prepared = prepare(config, None)
    answering = [len(prepared.dropouts.answering(n)) for n in range(12)]
    assert summary["mean_survivors"] == sum(answering) / 12
    assert summary["skipped_rounds"] == sum(count < 3 for count in answering) > 0
    assert summary["recovery_threshold"] == 3
    assert [line["round"] for line in lines] == [4, 8, 12]
    assert lines[-1]["test_accuracy"] == summary["test_accuracy"] > 0.3
    assert meta["dresfl"]["weights_sha256"] == summary["weights_sha256"]
    assert read_model(unbroken / "model.safetensors").network == prepared.session.network
    assert prepared.accuracy(torch.tensor(state["weights"])) == summary["test_accuracy"]
    scaled = [value * 2**10 for row in tensors["layers.0.weight"] for value in row]
    assert scaled + [value * 2**10 for value in tensors["layers.0.bias"]] == state["weights"]
    field = prepared.session.field
    residue = len(field.moduli) * field.residue_bytes
    assert summary["bytes_shared"] == prepared.split.train.num_rows * (64 + 10) * residue * 4
    assert summary["bytes_uploaded"] == sum(answering) * (24 + 650 * residue)


def test_a_run_says_what_it_was_made_from_and_goes_on_with_that_alone(tmp_path, unbroken):
    digits = load("digits")
    origin = read_origin(unbroken)
    assert origin == {"data_sha256": dict(digits.origin.data), "extractor_sha256": None}
    out = copy_run(unbroken, tmp_path / "run", "config.toml", "data.json")
    other = {**origin, "data_sha256": {**origin["data_sha256"], "train_labels": "0" * 64}}
    (out / "data.json").write_text(json.dumps(other))
    with pytest.raises(CheckpointError, match=r"began with other data \(data_sha256\)"):
        train(small(), out=out, resume=True)
    (out / "data.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"cannot read .*data\.json"):
        train(small(), out=out, resume=True)
    (out / "data.json").unlink()  # as an older version left it
    assert read_origin(out) == {}
    train(small(), out=out, resume=True)
    assert read_origin(out) == origin


@pytest.mark.parametrize("change", ["engine=direct", "threads=2"])
def test_the_weights_do_not_depend_on(tmp_path, expected, change):
    before = torch.get_num_threads()
    summary = train(small(change), out=tmp_path / "run")
    assert summary["weights_sha256"] == expected[0]["weights_sha256"]
    assert torch.get_num_threads() == before


# -- kills -----------------------------------------------------------------------------------------------------

DRIVER = """
import sys
from pathlib import Path
from dresfl.experiments.config import load_config
from dresfl.experiments.training import train

def watch(progress, record, answers):
    print(progress.round_number, flush=True)
    sys.stdin.readline()

train(load_config("digits", sys.argv[2:]), out=Path(sys.argv[1]), resume=True, watch=watch)
"""


def run_and_kill(out, stop):
    """A fresh process runs or resumes; after the round for which `stop` holds it goes on, and SIGKILL hits it there.

    Returns the first round it reported, and whether it was killed.
    """
    command = [sys.executable, "-c", DRIVER, str(out), *SMALL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        first = None
        for line in child.stdout:
            first = first or int(line)
            stopped = stop(int(line))
            if not stopped or int(line) % 2:  # some kills hit while it waits, some while it works
                child.stdin.write("\n")
                child.stdin.flush()
            if stopped:
                child.send_signal(signal.SIGKILL)
                break
        child.wait()
        assert child.returncode == (-signal.SIGKILL if stopped else 0)
        return first, stopped


def test_a_killed_run_resumes_to_the_same_bits(tmp_path, expected):
    out = tmp_path / "run"
    checkpoint = out / "checkpoint.safetensors"
    assert run_and_kill(out, lambda r: r == 2) == (1, True)
    assert run_and_kill(out, lambda r: checkpoint.exists() and r >= 5) == (1, True)  # after the line of round 4
    first, _ = run_and_kill(out, lambda r: r == 11)
    assert first == 4
    assert not (out / "summary.json").exists()
    first, killed = run_and_kill(out, lambda r: False)
    assert (first, killed) == (10, False)
    assert outcome(out) == expected


class Crash(BaseException):
    """What no handler catches, like a power cut."""


def crash_at(monkeypatch, step):
    """Crash at the step-th of the calls that touch the disk; returns a function that counts them."""
    calls = 0

    def crashing(real):
        def wrapped(*arguments):
            nonlocal calls
            calls += 1
            if calls == step:
                raise Crash
            return real(*arguments)

        return wrapped

    monkeypatch.setattr(os, "fsync", crashing(os.fsync))
    monkeypatch.setattr(os, "replace", crashing(os.replace))
    return lambda: calls


def test_a_crash_at_any_disk_access_is_survived(tmp_path, monkeypatch):
    settings = "rounds=5", "evaluate_every=2", "checkpoint_every=2"
    with monkeypatch.context() as patched:
        count = crash_at(patched, step=0)
        train(small(*settings), out=tmp_path / "unbroken")
        steps = count()
    wanted = outcome(tmp_path / "unbroken")
    # config, data digests, three checkpoints with the metrics before each, model, summary: three accesses a file; and
    # two checkpoints that stay as the one before
    assert steps == 3 + 3 + 3 * (1 + 3) + 2 + 3 + 3
    for step in range(1, steps + 1):
        out = tmp_path / str(step)
        with monkeypatch.context() as patched:
            crash_at(patched, step)
            with pytest.raises(Crash):
                train(small(*settings), out=out)
        if (out / "summary.json").exists():
            assert set(os.listdir(out)) == FILES
        train(small(*settings), out=out, resume=True)
        assert outcome(out) == wanted


def interrupt_in_watch(monkeypatch, at):
    def watch(progress, record, answers):
        if progress.round_number == at:
            raise KeyboardInterrupt

    return {"watch": watch}


def interrupt_in_evaluation(monkeypatch, at):
    accuracy = Prepared.accuracy

    def interrupted(self, weights, calls=iter(range(100))):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return accuracy(self, weights)

    monkeypatch.setattr(Prepared, "accuracy", interrupted)
    return {}


def interrupt_in_step(monkeypatch, at):
    real = protocol_round.stepped_integers

    def interrupted(*arguments, calls=iter(range(100))):
        if next(calls) == 5:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(protocol_round, "stepped_integers", interrupted)
    return {}


@pytest.mark.parametrize("interrupt", [interrupt_in_watch, interrupt_in_evaluation, interrupt_in_step])
@pytest.mark.parametrize("method", ["momentum", "adam"])
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, monkeypatch, interrupt, method):
    config = small(f"optimizer.method={method}")
    train(config, out=tmp_path / "unbroken")
    out = tmp_path / "run"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        train(config, out=out, **interrupt(patched, 7))
    train(config, out=out, resume=True)
    assert outcome(out) == outcome(tmp_path / "unbroken")


def test_an_interrupt_is_saved_at_once(tmp_path, monkeypatch):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(small(), out=out, **interrupt_in_watch(monkeypatch, 7))
    rounds = []
    train(small(), out=out, resume=True, watch=lambda progress, record, answers: rounds.append(progress.round_number))
    assert rounds == [8, 9, 10, 11, 12]


def test_an_interrupt_soon_after_a_crash_keeps_the_metrics_whole(tmp_path, monkeypatch, expected):
    """The crash cuts lines off metrics.jsonl; the interrupt's checkpoint must know the new length, not the old."""
    out = tmp_path / "run"

    def crash(progress, record, answers):
        if progress.round_number == 5:
            raise Crash

    with pytest.raises(Crash):
        train(small(), out=out, watch=crash)

    # back to the checkpoint of round 3: the line of round 4 goes, and nothing is written before the interrupt
    def stop(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Training, "done", property(stop))
        with pytest.raises(KeyboardInterrupt):
            train(small(), out=out, resume=True)
    train(small(), out=out, resume=True)
    assert outcome(out) == expected


# -- folders ---------------------------------------------------------------------------------------------------


def copy_run(unbroken, out, *names):
    out.mkdir()
    for name in names or FILES:
        (out / name).write_bytes((unbroken / name).read_bytes())
    return out


def test_a_folder_with_a_run_is_not_overwritten(tmp_path, unbroken):
    out = copy_run(unbroken, tmp_path / "run")
    with pytest.raises(UsageError, match="already holds a run") as caught:
        train(small(), out=out)
    assert "--resume" in caught.value.hint
    assert outcome(out) == outcome(unbroken)


@pytest.mark.parametrize(
    "change",
    [
        "rounds=13",
        "seed=1",
        "engine=direct",
        "name=other",
        "federation.num_clients=6",
        "federation.batch_size=9",
        "federation.max_colluders=2",
        "model.input_bits=5",
        'model.layers=[{ kind = "dense", units = 10, init = 0.5 }]',
        "optimizer.learning_rate=0.5",
        "optimizer.max_norm=1",
        "dropout.rate=0.3",
        "dropout.seed=4",
        "data.partition=iid",
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_another_configuration_does_not_resume(tmp_path, unbroken, change, complete):
    names = FILES if complete else FILES - {"summary.json"}
    out = copy_run(unbroken, tmp_path / "run", *names)
    with pytest.raises(CheckpointError, match="another configuration") as caught:
        train(small(change), out=out, resume=True)
    assert "config.toml" in caught.value.hint
    assert set(os.listdir(out)) == names


def test_evaluation_checkpoints_and_threads_may_change_on_resume(tmp_path, monkeypatch, expected):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(small(), out=out, **interrupt_in_watch(monkeypatch, 7))
    summary = train(small("evaluate_every=1", "checkpoint_every=1", "threads=2"), out=out, resume=True)
    assert summary["weights_sha256"] == expected[0]["weights_sha256"]
    assert [line["round"] for line in read_metrics(out)] == [4, 8, 9, 10, 11, 12]


def test_a_complete_run_resumed_returns_its_summary_and_touches_nothing(unbroken):
    before = {name: (unbroken / name).stat().st_mtime_ns for name in FILES}
    assert train(small(), out=unbroken, resume=True) == read_summary(unbroken)
    assert {name: (unbroken / name).stat().st_mtime_ns for name in FILES} == before


def test_a_run_without_its_summary_is_finished_without_training(tmp_path, unbroken, expected):
    out = copy_run(unbroken, tmp_path / "run", *FILES - {"summary.json", "model.safetensors"})
    rounds = []
    train(small(), out=out, resume=True, watch=lambda *arguments: rounds.append(arguments))
    assert not rounds
    assert outcome(out) == expected


def test_a_run_that_could_not_start_does_not_hold_the_folder(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(DataError, match="9 values"):
        train(small('model.layers=[{ kind = "dense", units = 9 }]'), out=out)
    train(small("rounds=1"), out=out)
    assert read_summary(out)["rounds"] == 1


def test_a_checkpoint_without_a_configuration_is_not_taken_up_silently(tmp_path, unbroken):
    """Without config.toml nobody knows which run it was."""
    out = copy_run(unbroken, tmp_path / "run", "checkpoint.safetensors", "metrics.jsonl")
    rounds = []
    try:
        train(small("seed=5"), out=out, watch=lambda *arguments: rounds.append(arguments))
    except DresError:
        return
    assert len(rounds) == 12


def test_clear_run_removes_a_run_and_nothing_else(tmp_path, unbroken):
    out = copy_run(unbroken, tmp_path / "run")
    (out / "notes.txt").write_text("mine")
    clear_run(out)
    clear_run(out)
    assert os.listdir(out) == ["notes.txt"]


# -- broken files ----------------------------------------------------------------------------------------------


def stopped_run(unbroken, out):
    return copy_run(unbroken, out, *FILES - {"summary.json", "model.safetensors"})


def corruptions():
    def cut(path):
        path.write_bytes(path.read_bytes()[:-1])

    def noise(path):
        path.write_bytes(bytes(range(256)))

    def rewritten(tensors=lambda t: t, progress=lambda p: p):
        def corrupt(path):
            found, meta = load_tensors(path)
            save_tensors(path, tensors(found), {**meta, "progress": progress(meta["progress"])})

        return corrupt

    return {
        "cut": cut,
        "empty": lambda path: path.write_bytes(b""),
        "noise": noise,
        "of dresfl 0.1": lambda path: save_tensors(path, load_tensors(path)[0], {"progress": {}}),
        "no progress": rewritten(progress=lambda p: None),
        "progress of another version": rewritten(progress=lambda p: {**p, "more": 1}),
        "a counter missing": rewritten(progress=lambda p: {k: v for k, v in p.items() if k != "skipped"}),
        "weights missing": rewritten(tensors=lambda t: {k: v for k, v in t.items() if k != "weights"}),
        "weights of another model": rewritten(tensors=lambda t: {**t, "weights": t["weights"][:-1]}),
    }


@pytest.mark.parametrize("name", corruptions())
def test_a_corrupt_checkpoint_is_said(tmp_path, unbroken, name):
    out = stopped_run(unbroken, tmp_path / "run")
    (out / "checkpoint-before.safetensors").unlink()
    corruptions()[name](out / "checkpoint.safetensors")
    with pytest.raises(CheckpointError) as caught:
        train(small(), out=out, resume=True)
    assert caught.value.hint


@pytest.mark.parametrize("damage", ["cut", "a counter missing"])
def test_a_simulation_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path, unbroken, expected, caplog, damage):
    out = stopped_run(unbroken, tmp_path / "run")
    corruptions()[damage](out / "checkpoint.safetensors")
    train(small(), out=out, resume=True)
    assert outcome(out) == expected
    assert "goes on from the checkpoint before it, of round 9" in caplog.text


def test_metrics_that_are_not_those_of_the_checkpoint_are_refused(tmp_path, unbroken, expected):
    out = stopped_run(unbroken, tmp_path / "run")
    path = out / "metrics.jsonl"
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"", bytes([whole[0] ^ 1]) + whole[1:]):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="metrics") as caught:
            train(small(), out=out, resume=True)
        assert "move it away" in caught.value.hint
    path.rename(out / "metrics.jsonl.damaged")
    summary = train(small(), out=out, resume=True)
    assert summary["weights_sha256"] == expected[0]["weights_sha256"]


def test_a_corrupt_summary_or_metrics_file_is_said(tmp_path, unbroken):
    out = copy_run(unbroken, tmp_path / "run")
    (out / "summary.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"summary\.json"):
        train(small(), out=out, resume=True)
    (out / "metrics.jsonl").write_text('{"round": 4}\n{"rou')
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        read_metrics(out)
    with pytest.raises(CheckpointError):
        read_summary(tmp_path)


def full_disk(*arguments, **more):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", range(1, 8))
def test_a_disk_that_fills_up_is_an_error_with_a_hint(tmp_path, monkeypatch, expected, step):
    out = tmp_path / "run"
    real = os.fsync

    def filling(number, calls=iter(range(1, 1000))):
        return full_disk() if next(calls) >= step else real(number)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", filling)
        with pytest.raises(DresError, match="No space left on device") as caught:
            train(small(), out=out)
    assert caught.value.hint
    assert not list(out.glob(".*.part"))
    train(small(), out=out, resume=True)
    assert outcome(out) == expected


class FullFile(io.FileIO):
    """A file on a disk with room for some bytes more."""

    room = 250

    def write(self, data):
        taken = min(self.room, len(data))
        if not taken:
            full_disk()
        FullFile.room -= taken
        return super().write(bytes(data)[:taken])


def test_a_disk_that_fills_up_within_the_metrics_is_an_error_with_a_hint(tmp_path, monkeypatch, expected):
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(
            run_folder, "open", lambda path, mode, opener: io.BufferedWriter(FullFile(path, "ab")), raising=False
        )
        with pytest.raises(DresError, match="No space left on device") as caught:
            train(small(), out=out)
    assert "free some space" in caught.value.hint
    train(small(), out=out, resume=True)
    assert outcome(out) == expected


def test_an_out_that_cannot_be_a_folder_is_an_error_with_a_hint(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DresError) as caught:
            train(small(), out=out)
        assert caught.value.hint


# -- alarms and notes ------------------------------------------------------------------------------------------


def test_alarms_are_counted_and_written_down(tmp_path):
    config = small("optimizer.learning_rate=1e5", "optimizer.schedule=constant", "optimizer.method=sgd")
    summary = train(config, out=tmp_path / "run")
    lines = read_metrics(tmp_path / "run")
    alarms = [line for line in lines if "alarm" in line]
    assert summary["alarms"] == len(alarms) > 0
    assert all("decoded values exceed" in line["alarm"] or "diverged" in line["alarm"] for line in alarms)
    assert lines[-1]["alarms"] == summary["alarms"]
    json.dumps(summary, allow_nan=False)


def test_too_few_reliable_clients_are_noted(tmp_path):
    notes = []
    train(small("rounds=1", "dropout.rate=0.9"), out=tmp_path / "a", note=notes.append)
    assert sum("only 0 of 5 clients are reliable and 3 answers are needed" in note for note in notes) == 1
    train(small("rounds=1"), out=tmp_path / "b", note=notes.append)
    assert sum("reliable" in note for note in notes) == 1


def test_watch_sees_every_round(tmp_path):
    seen = []

    def watch(progress, record, answers):
        seen.append((dataclasses.replace(progress), record, answers))

    summary = train(small(), out=tmp_path / "run", watch=watch)
    assert [progress.round_number for progress, _, _ in seen] == list(range(1, 13))
    assert [record.round_number for _, record, _ in seen] == list(range(12))
    assert sum(record.outcome == "skipped" for _, record, _ in seen) == summary["skipped_rounds"]
    assert sum(answers for _, _, answers in seen) / 12 == summary["mean_survivors"]
