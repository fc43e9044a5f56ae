"""The hidden mode over real processes, killed by pid: everybody ends with one model, and the folders are sound."""

import json
from pathlib import Path

import pytest

from dresfl.deploy.audit import audit
from dresfl.experiments.trials.grpc_trial import Trial, federate
from dresfl.storage.model_file import read_model
from dresfl.storage.run_folder import read_metrics

SMALL = """
name = "small"
rounds = 40
threads = 1
[federation]
batch_size = 16
[model]
layers = [{ kind = "dense", units = 8 }, { kind = "square" }, { kind = "dense", units = 10 }]
[optimizer]
method = "momentum"
learning_rate = 0.05
schedule = "cosine"
"""


@pytest.fixture
def preset(tmp_path: Path) -> str:
    (tmp_path / "small.toml").write_text(SMALL)
    return str(tmp_path / "small.toml")


@pytest.mark.timeout(500)
def test_five_clients_with_one_dead_and_a_killed_coordinator(tmp_path: Path, preset: str) -> None:
    settings = ("hidden.validation_every=20", "hidden.validation_share=0.1")
    folder = tmp_path / "trial"
    result = federate(Trial(preset, 5, kill=1, kill_coordinator=True, settings=settings, limit=400), folder)
    assert result["clients_agree"]
    assert (result["mode"], result["skipped_rounds"], result["answers_needed"]) == ("hidden", 0, 4)
    assert (result["killed"], result["restarted"]) == (1, 1)
    assert list(result["validation_losses"]) == ["20", "40"]
    assert result["validation_losses"]["40"] < result["validation_losses"]["20"]
    rows = json.loads((folder / "coordinator" / "run" / "terms.json").read_text())["rows"]
    counted = result["totals"]["clients"]
    assert len(counted) >= 4  # the client that was killed may come back too late to be counted
    assert result["totals"]["rows"] == sum(rows[client] for client in counted)
    assert read_model(folder / "coordinator" / "run" / "model.safetensors").network.weight_bits == 18
    _no_weight_on_the_way(folder)
    for place, config in (("coordinator/run", "coordinator/fed.toml"), ("site-1/store", "site-1/site.toml")):
        found = audit(folder / place, folder / config)
        assert found.mode == "hidden"
        assert found.look_at == []
    budget = audit(folder / "site-1/store", folder / "site-1/site.toml").sharings[0]["budget"]
    assert (budget["models"], budget["runs"]) == (1, 1)


def _no_weight_on_the_way(folder: Path) -> None:
    """Nothing is measured that would need the weights, before the last line."""
    lines = [line for line in read_metrics(folder / "coordinator" / "run") if "test_accuracy" in line]
    assert all(line["gradient_norm"] is None for line in lines)
    assert all(line["test_accuracy"] is None for line in lines[:-1])
    assert not list((folder / "site-0" / "store").rglob("mask.secret")), "what deals seeds is erased"
    terms = json.loads((folder / "coordinator" / "run" / "terms.json").read_text())
    assert terms["verdict"] is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_for_the_clients_alone(tmp_path: Path, preset: str) -> None:
    settings = ('hidden.model_for="clients"', "hidden.trusted_dealers=true", "rounds=10")
    result = federate(Trial(preset, 4, settings=settings, limit=600), tmp_path / "trial")
    assert result["clients_agree"]
    assert result["weights_sha256"] == ""
    assert not (tmp_path / "trial" / "coordinator" / "run" / "model.safetensors").exists()
    assert audit(tmp_path / "trial" / "coordinator" / "run").look_at == []
