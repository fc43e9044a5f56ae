"""A run whose channels are spread over ranks has the bits of one process, and a rank that dies ends the others."""

import contextlib
import json
import subprocess
import sys

from dresfl.experiments.config import load_config
from dresfl.experiments.training import train
from dresfl.storage.run_folder import RUN_FILES, read_metrics, read_summary

from .two_ranks import COLUMNS, FIELDS, LIMIT, SETTINGS, TRAINED, played, start_ranks, whole_numbers


def test_two_ranks_give_the_bits_of_one_process_until_one_of_them_dies(tmp_path):
    """In one test, since every start of two processes takes seconds."""
    first, second = start_ranks(tmp_path / "run")
    assert first.stdout, first.stderr
    assert second.stdout, second.stderr
    for found in (json.loads(first.stdout), json.loads(second.stdout)):
        for name in SETTINGS:
            check_run(name, found)
        for name in FIELDS:
            check_lifted(name, found)
        assert found["shared"] == {"rank": 0}
        assert found["different"] == "rank 1 has another number than rank 0"
    assert second.returncode == 9  # it killed itself
    assert first.returncode == 1
    assert "error: the other ranks cannot be reached any more" in first.stderr
    assert "--resume" in first.stderr
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "run" / "summary.json").exists()


def check_run(name, found):
    """Weights and records of both engines."""
    alone = played(SETTINGS[name])
    assert found[f"{name}, coded"] == alone
    assert found[f"{name}, direct"] == alone
    outcomes = {record["outcome"] for record, _ in alone["records"]}
    assert ("refused" in outcomes) == (name == "alarms")
    assert ("skipped" in outcomes) == (name == "skipped rounds")


def check_lifted(name, found):
    """More ranks than columns, columns that the ranks do not divide; the first value is beyond the range."""
    for columns in COLUMNS:
        integers, exceeded = FIELDS[name].lift_checked(whole_numbers(FIELDS[name], columns))
        lifted, beyond = found[f"lift {columns} in {name}"]
        assert beyond == int(exceeded) == 1
        assert lifted[1:] == integers[1:].tolist()


def test_torchrun_finishes_what_one_process_began(tmp_path):
    """The files are those of a run in one process. Rank 0 alone prints and writes."""
    config, out, alone = load_config("digits", TRAINED), tmp_path / "run", tmp_path / "alone"

    def stop(progress, record, answers):
        if progress.round_number == 14:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        train(config, out=out, watch=stop)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dresfl"]
    settings = [word for setting in TRAINED for word in ("--set", setting)]
    resumed = subprocess.run(
        [*command, "train", "digits", *settings, "--out", str(out), "--resume", "--json"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "2 ranks share" in resumed.stderr
    assert "round 16/24" in resumed.stderr
    assert "round 14/24" not in resumed.stderr
    expected = train(config, out=alone)
    assert json.loads(resumed.stdout) == read_summary(out)
    for key in ("weights_sha256", "test_accuracy", "mean_survivors", "skipped_rounds", "peak_bits", "bytes_uploaded"):
        assert read_summary(out)[key] == expected[key]
    assert (out / "model.safetensors").read_bytes() == (alone / "model.safetensors").read_bytes()
    for ours, theirs in zip(read_metrics(out), read_metrics(alone), strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    assert {path.name for path in out.iterdir()} <= {*RUN_FILES}
