"""Flower itself: SuperLink, SuperNodes and Ray as real processes on loopback. `make flower` runs it, in minutes."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: `make flower` runs this")

from dresfl.experiments.training import train
from dresfl.experiments.trials.flower_trial import federate_flower, federate_simulation
from dresfl.experiments.trials.grpc_trial import Trial

pytestmark = pytest.mark.timeout(1800)  # every bundle starts a process

SMALL = 'model.layers=[{kind="dense",units=16},{kind="square"},{kind="dense",units=10}]'  # 5 answers are enough


def expected(trial: Trial, folder: Path) -> str:
    digest: str = train(trial.run_config(), out=folder)["weights_sha256"]
    return digest


def test_simulation(tmp_path: Path) -> None:
    trial = Trial(clients=6, settings=(SMALL, "rounds=8"), limit=300, mode="open")
    result = federate_simulation(trial, tmp_path / "trial")
    assert result["weights_sha256"] == expected(trial, tmp_path / "train")
    assert result["clients_agree"]
    assert result["survivors"] == 6


def test_three_of_nine_killed_and_one_restarted(tmp_path: Path) -> None:
    """TLS, node authentication, workers."""
    trial = Trial(clients=9, kill=3, settings=(SMALL, "rounds=20"), limit=900, mode="open")
    result = federate_flower(trial, tmp_path / "trial")
    assert result["weights_sha256"] == expected(trial, tmp_path / "train")
    assert (result["killed"], result["restarted"], result["skipped_rounds"]) == (3, 1, 0)
    assert result["clients_agree"]
    assert result["survivors"] >= 6


def test_without_workers(tmp_path: Path) -> None:
    """Stock Flower: every message starts a process that imports everything."""
    trial = Trial(clients=5, settings=(SMALL, "rounds=2"), limit=600, mode="open")
    result = federate_flower(trial, tmp_path / "trial", workers=False)
    assert result["weights_sha256"] == expected(trial, tmp_path / "train")
