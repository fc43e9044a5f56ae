"""Ranks: who they are, which channels each has, and what is refused before they compute anything."""

import pytest
import torch

from commands import refused
from dresfl.errors import UsageError
from dresfl.experiments.bench.ranks import measure
from dresfl.experiments.bench.stages import Setting
from dresfl.experiments.config import load_config
from dresfl.experiments.training import train
from dresfl.runtimes.local.ranks import join

from .two_ranks import SETTINGS, played


@pytest.fixture
def one_rank(monkeypatch):
    """The environment of the only rank of a run, which is this process."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        monkeypatch.setenv(name, value)


def test_one_rank_refuses_what_ranks_do_not_share(one_rank, tmp_path):
    with join("cpu") as ranks:
        assert (ranks.rank, ranks.size, ranks.backend, ranks.leads) == (0, 1, "gloo", True)
        with pytest.raises(UsageError, match="hidden mode"):
            train(load_config("digits", ['mode="hidden"']), out=tmp_path / "hidden", ranks=ranks)
        with pytest.raises(UsageError, match="neither record nor blind"):
            train(load_config("digits"), out=tmp_path / "blinded", blinded=True, ranks=ranks)


def test_the_cost_of_ranks_is_measured(one_rank):
    with join("cpu") as ranks:
        found = measure(Setting(layers=(12, 4, 3), rows_per_client=4), ranks, rounds=3)
    assert found["same_weights"]
    assert found["channels"] == found["channels_of_rank_0"]
    assert found["sent_mb"] == 0
    assert min(found[key] for key in ("one_process_ms", "ranks_ms", "meet_and_lift_ms")) > 0


def test_more_ranks_than_channels_are_refused(one_rank):
    with join("cpu") as ranks:
        assert ranks.channels(9) == (0, 9)
        ranks.size = 10
        with pytest.raises(UsageError, match="10 ranks are too many: the run has 9 residue channels"):
            ranks.channels(9)


def test_channels_are_spread_evenly(one_rank):
    with join("cpu") as ranks:
        for size in range(1, 10):
            ranks.size, spans = size, []
            for rank in range(size):
                ranks.rank = rank
                spans.append(ranks.channels(9))
            assert [first for first, _ in spans] == [0, *(end for _, end in spans[:-1])]
            assert spans[-1][1] == 9
            assert {end - first for first, end in spans} <= {9 // size, 9 // size + 1}


@pytest.mark.parametrize(("backend", "message"), [("mpi", "'mpi' is not known"), ("nccl", "the device is the CPU")])
def test_a_backend_that_cannot_be_is_refused(one_rank, backend, message):
    with pytest.raises(UsageError, match=message), join("cpu", backend):
        pass


def test_the_command_refuses_a_backend_without_ranks_and_other_commands_under_torchrun(dresfl, monkeypatch):
    refused(dresfl("train", "digits", "--backend", "gloo"), 2, "--backend is for several ranks", "torchrun")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    found = dresfl("demo")
    refused(found, 2, "rank 1: torchrun started several processes", "dresfl train")


WIDE = ["model.layers=[{kind='dense', units=16384}, {kind='square'}, {kind='dense', units=10}]"]  # residues in bytes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("settings", [*SETTINGS.values(), WIDE])
def test_a_rank_on_a_gpu_gives_the_bits_of_one_process(one_rank, backend, settings):
    on_gpu = [*settings, 'device="cuda"']
    with join("cuda", backend) as ranks:
        found = played(on_gpu, ranks)
    assert found == played(on_gpu)
