"""A recorded training: its transcripts, also after a stop, and by the command line."""

from pathlib import Path

import pytest
import torch

from commands import Run, refused
from dresfl.experiments.config import RunConfig, load_config
from dresfl.experiments.training import train
from dresfl.model import weights_sha256
from dresfl.storage.transcript import Transcript

SMALL = [
    "name=small",
    "rounds=12",
    "checkpoint_every=3",
    "federation.num_clients=5",
    "federation.batch_size=8",
    'model.layers=[{ kind = "dense", units = 10 }]',
    "threads=1",
    'dropout.model="none"',
]


def small() -> RunConfig:
    return load_config("digits", SMALL)


def test_the_last_weights_in_a_transcript_are_the_runs(tmp_path: Path) -> None:
    summary = train(small(), out=tmp_path, recorded=["client-3"])
    seen = Transcript(tmp_path / "transcript" / "client-3.transcript").weights()
    assert sorted(seen) == list(range(13))
    assert weights_sha256(seen[12]) == summary["weights_sha256"]


def test_recording_changes_no_weight(tmp_path: Path) -> None:
    recorded = train(small(), out=tmp_path / "recorded", recorded=["all"])
    assert recorded["weights_sha256"] == train(small(), out=tmp_path / "not")["weights_sha256"]
    assert not (tmp_path / "not" / "transcript").exists()


def test_a_run_that_was_stopped_has_one_transcript(tmp_path: Path) -> None:
    def stop(progress, record, answers) -> None:
        if record.round_number == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(small(), out=tmp_path / "stopped", watch=stop, recorded=["coordinator"])
    train(small(), out=tmp_path / "stopped", resume=True, recorded=["coordinator"])
    train(small(), out=tmp_path / "whole", recorded=["coordinator"])
    files = [tmp_path / name / "transcript" / "coordinator.transcript" for name in ("stopped", "whole")]
    stopped, whole = (Transcript(file).weights() for file in files)
    assert sorted(stopped) == sorted(whole) == list(range(13))
    assert all(torch.equal(stopped[number], whole[number]) for number in whole)
    sums = [dict(Transcript(file).sums()) for file in files]
    assert all(torch.equal(sums[0][number], sums[1][number]) for number in range(12))


def test_by_the_command_line(dresfl: Run, tmp_path: Path) -> None:
    settings = [option for setting in SMALL for option in ("--set", setting)]
    out = tmp_path / "run"
    done = dresfl("train", "digits", *settings, "--out", str(out), "--record", "client-0", "--record", "coordinator")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (out / "transcript").iterdir()} == {"client-0.transcript", "coordinator.transcript"}
    again = dresfl("train", "digits", *settings, "--out", str(tmp_path / "no"), "--record", "client-5")
    refused(again, 2, "'client-5' is no participant", "client-0 to client-4")
