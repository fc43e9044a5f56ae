"""The model card: what it says is the run's own, names cannot break the page, and it is in every run's folder."""

import json
import stat

import pytest

import dresfl as dr
from dresfl.coding import CodeParameters
from dresfl.errors import CheckpointError
from dresfl.field import PublicStream
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, Training
from dresfl.protocol.protection import HIDDEN_MODE_MEANS
from dresfl.storage.checkpoint import RunFolder
from dresfl.storage.model_card import CARD_FILES, card_markdown, make_card, read_card, read_card_page
from dresfl.storage.model_file import StoredModel
from dresfl.storage.run_folder import RunRecorder, summarise

SETTINGS = {"rounds": 4, "optimizer": {"method": "sgd"}}


def finished(folder, model=True, private=False):
    session = Session(mlp((3, 2), input_bits=4, weight_bits=10), CodeParameters(3), client_rows=(5, 4, 6), seed=0)
    training = Training(session, Optimizer(), rounds=4)
    kept = RunFolder(folder, settings=SETTINGS, private=private)
    with RunRecorder(training, accuracy=None, evaluate_every=3, folder=kept) as recorder:
        recorder.progress.accuracy = 0.75
        summary = summarise(training, recorder.progress, name="a | run", engine="grpc", test_rows=40)
        stored = StoredModel(session.network, training.weights, classes=("a|b", "`c`"))
        recorder.finish(summary, stored if model else None)
    return summary


def test_a_run_with_a_model_has_a_card(tmp_path):
    summary = finished(tmp_path)
    card = json.loads((tmp_path / "model-card.json").read_text())
    assert card["model"]["weights_sha256"] == summary.weights_sha256
    assert card["model"]["classes"] == ["a|b", "`c`"]
    assert (card["training"]["rows"], card["training"]["answers_needed"]) == (15, summary.answers_needed)
    assert card["training"]["settings"] == SETTINGS
    assert card["training"]["simulated"] is False
    assert card["measured"] == {
        "test_rows": 40,
        "test_accuracy": 0.75,
        "test_r2": None,
        "validation_losses": {},
        "totals": None,
    }
    page = (tmp_path / "model-card.md").read_text()
    assert page == card_markdown(card) == read_card_page(tmp_path / "model-card.md", card)
    assert read_card(tmp_path / "model-card.json") == card
    assert "| test accuracy | 75.00 % |" in page
    assert "not differentially private" in page
    assert "simulation" not in page


@pytest.mark.parametrize("name", CARD_FILES)
def test_a_changed_card_is_seen(tmp_path, name):
    finished(tmp_path)
    card, path = read_card(tmp_path / CARD_FILES[0]), tmp_path / name
    whole = path.read_text()
    for changed in (whole.replace("75", "95", 1), whole.replace("0.75", "0.95"), whole[:-1], whole + "\n", whole[:40]):
        if changed == whole:
            continue
        path.write_text(changed)
        with pytest.raises((CheckpointError, ValueError)):
            _ = read_card(path) if name == CARD_FILES[0] else read_card_page(path, card)


def test_a_run_without_a_model_has_no_card(tmp_path):
    finished(tmp_path, model=False)
    assert not any((tmp_path / name).exists() for name in CARD_FILES)


def test_a_private_folder_has_a_private_card(tmp_path):
    finished(tmp_path, private=True)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in CARD_FILES} == {0o600}


def test_names_stay_in_their_places(tmp_path):
    finished(tmp_path)
    page = (tmp_path / "model-card.md").read_text()
    assert page.startswith("# Model card: a \\| run\n")
    assert "| classes | a\\|b, \\`c\\` |" in page
    summary = json.loads((tmp_path / "summary.json").read_text())
    network = mlp((2, 2), input_bits=4, weight_bits=10)
    weights = network.initial_weights(PublicStream(0))
    names = ("x\n# heading", "<b>")
    stored = StoredModel(network, weights, feature_names=names, units=("mg", ""), schema="x = '```'\n")
    page = card_markdown(make_card(stored, {**summary, "mode": "hidden"}, {}))
    assert "| x \\# heading | mg |" in page
    assert "| \\<b\\> | – |" in page
    assert HIDDEN_MODE_MEANS in page


@pytest.mark.parametrize("mode", ["open", "hidden"])
def test_a_card_of_each_mode(mode):
    network = mlp((3, 2), input_bits=4, weight_bits=10)
    rows = [[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]], [0, 1]
    rate = dr.Optimizer("momentum", learning_rate=0.05)
    run = dr.simulate(network, [rows] * 5, rounds=3, mode=mode, engine="direct", optimizer=rate, test=rows)
    card = make_card(run.model._stored, run.summary.to_dict(), {})
    page = card_markdown(card)
    assert card["training"]["simulated"]
    assert "This run was a simulation" in page
    assert f"| mode | {mode}, simulated clients, engine direct |" in page
