"""One recorder and one summary for every runtime: null where nothing was evaluated, folders only where asked for."""

import json

import pytest
import torch

from dresfl.coding import CodeParameters
from dresfl.errors import CheckpointError
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Answer, RoundRecord, Session, Training
from dresfl.storage.checkpoint import RunFolder
from dresfl.storage.model_file import StoredModel, read_model
from dresfl.storage.run_folder import RunRecorder, read_metrics, read_summary, restore, summarise
from dresfl.storage.tensors import load_tensors, save_tensors


def training(rounds=4):
    session = Session(mlp((3, 2), input_bits=4, weight_bits=10), CodeParameters(3), client_rows=(5, 4, 6), seed=0)
    return Training(session, Optimizer(), rounds)


def play(current, recorder, outcomes):
    for outcome in outcomes:
        record = RoundRecord(current.round_number, outcome, (0, 1, 2), reason="too large")
        current.close(record)
        recorder.count(record, 3)
        recorder.measure(record)


@pytest.mark.parametrize(("accuracy", "wanted"), [(None, None), (lambda weights: 0.75, 0.75)])
def test_a_whole_run(tmp_path, accuracy, wanted):
    current = training()
    with RunRecorder(current, accuracy=accuracy, evaluate_every=3, folder=RunFolder(tmp_path)) as recorder:
        play(current, recorder, ["skipped", "refused", "skipped", "refused"])
        recorder.checkpoint()
        summary = summarise(current, recorder.progress, name="x", engine="grpc")
        recorder.finish(summary, StoredModel(current.session.network, current.weights))
    lines = read_metrics(tmp_path)
    assert [(line["round"], line.get("test_accuracy", "-")) for line in lines] == [
        (1, "-"),
        (3, wanted),
        (3, "-"),
        (4, wanted),
    ]
    assert [line["alarm"] for line in lines if "alarm" in line] == ["too large"] * 2
    assert [measured.to_dict() for measured in recorder.history] == [lines[1], lines[3]]
    written = read_summary(tmp_path)
    assert written == json.loads(json.dumps(summary.to_dict()))
    assert written["test_accuracy"] == wanted
    assert (written["alarms"], written["skipped_rounds"], written["train_rows"]) == (2, 2, 15)
    assert written["reliable_clients"] is None
    assert read_model(tmp_path / "model.safetensors").network == current.session.network


def test_liars_are_written_down_and_counted(tmp_path):
    session = Session(
        mlp((3, 2), input_bits=4, weight_bits=10), CodeParameters(5, max_liars=1), client_rows=(5, 4, 6, 3, 2), seed=0
    )
    current = Training(session, Optimizer(), rounds=3)
    with RunRecorder(current, accuracy=None, evaluate_every=3, folder=RunFolder(tmp_path)) as recorder:
        for liars in ((4,), (), (4,)):
            for client in range(5):  # a constant polynomial, but for the liar's value
                residues = session.field.embed(torch.full((session.network.num_parameters,), 7 + (client in liars)))
                record = current.receive(Answer(current.round_number, client, residues))
            assert record.liars == liars
            recorder.count(record, 5)
            recorder.measure(record)
        recorder.checkpoint()
        summary = summarise(current, recorder.progress, name="x", engine="grpc")
    assert [line["liars"] for line in read_metrics(tmp_path) if "liars" in line] == [[4], [4]]
    assert (summary.liars, summary.answers_needed, summary.recovery_threshold) == ({"4": 2}, 5, 3)
    again = Training(session, Optimizer(), rounds=3)
    restore(again, RunFolder(tmp_path))
    assert again.lies == {4: 2}


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    current = training()
    with RunRecorder(current, accuracy=None, evaluate_every=2, folder=None) as recorder:
        play(current, recorder, ["skipped"] * 4)
        recorder.checkpoint()
    assert [measured.round for measured in recorder.history] == [2, 4]
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_goes_on_with_its_counters(tmp_path):
    current = training()
    with RunRecorder(current, accuracy=None, evaluate_every=1, folder=RunFolder(tmp_path)) as recorder:
        play(current, recorder, ["skipped", "refused"])
        recorder.checkpoint()
        play(current, recorder, ["skipped"])  # lost: no checkpoint follows
    again = training()
    with RunRecorder(again, accuracy=None, evaluate_every=1, folder=RunFolder(tmp_path)) as recorder:
        assert again.round_number == 2
        assert (recorder.progress.skipped, recorder.progress.alarms) == (1, 1)
        assert [line["round"] for line in read_metrics(tmp_path)] == [1, 1, 2]


def test_a_checkpoint_of_0_1_is_refused_by_name(tmp_path):
    with RunRecorder(training(), accuracy=None, evaluate_every=1, folder=RunFolder(tmp_path)) as recorder:
        recorder.checkpoint()
    path = tmp_path / "checkpoint.safetensors"
    tensors, meta = load_tensors(path)
    save_tensors(path, tensors, {"progress": meta["progress"]})
    with pytest.raises(CheckpointError, match=r"dresfl 0\.1") as caught:
        restore(training(), RunFolder(tmp_path))
    assert "another folder" in caught.value.hint
