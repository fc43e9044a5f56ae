"""Rounds in blocks give what rounds one by one give: on the CPU without graphs, on a GPU with them."""

import dataclasses

import pytest
import torch

from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import prepare
from dresfl.model import weights_sha256
from dresfl.protocol import Training
from dresfl.runtimes.local import LocalFederation
from dresfl.runtimes.local.blocks import RoundBlocks

SETTINGS = {
    "momentum": ["optimizer.method=momentum"],
    "adam, decay, clipping": ["optimizer.method=adam", "optimizer.weight_decay=0.1", "optimizer.max_norm=0.5"],
    "two shards": ["federation.num_shards=2", "dropout.model=none"],
    "skipped rounds": ["dropout.model=bernoulli", "dropout.rate=0.5"],
    "alarms": ["optimizer.method=sgd", "optimizer.learning_rate=1e6", "optimizer.schedule=constant"],
    "quadratic": ["model.layers=[{kind='dense', units=6}, {kind='quadratic'}, {kind='dense', units=10}]"],
    "convolution": [
        "model.layers=[{kind='conv2d', channels=2, kernel=3, padding=1}, {kind='square'}, "
        "{kind='sumpool', kernel=2}, {kind='flatten'}, {kind='dense', units=10}]",
        "optimizer.learning_rate=0.003",
    ],
}


def played(settings, *, device="cpu", blocks=False, rounds=40, engine="coded"):
    config = load_config("digits", [f"rounds={rounds}", "threads=1", f'device="{device}"', *settings])
    prepared = prepare(config, None)
    training = Training(prepared.session, config.optimizer, config.rounds)
    federation = LocalFederation(prepared.session, training, prepared.client_data(), prepared.dropouts, engine)
    block = RoundBlocks(prepared.session, training, federation) if blocks else None
    records = []
    while not training.done:
        records += block.run(17) if block else federation.run_rounds(17)
    return weights_sha256(training.weights), records, training.state()


@pytest.mark.parametrize("engine", ["coded", "direct"])
@pytest.mark.parametrize("name", SETTINGS)
def test_blocks_are_the_rounds_one_by_one(name, engine):
    one_by_one, in_blocks = (played(SETTINGS[name], blocks=blocks, engine=engine) for blocks in (False, True))
    assert in_blocks[0] == one_by_one[0]
    assert in_blocks[1] == one_by_one[1]
    assert all(in_blocks[2][key].equal(value) for key, value in one_by_one[2].items())
    outcomes = {record.outcome for record, _ in one_by_one[1]}
    assert ("refused" in outcomes) == (name == "alarms")
    assert ("skipped" in outcomes) >= (name == "skipped rounds")


def test_a_weight_beyond_the_bound_sends_the_block_back(monkeypatch):
    monkeypatch.setattr("dresfl.runtimes.local.blocks._WEIGHT_BOUND", 4)
    assert played([], blocks=True, rounds=6)[0] == played([], rounds=6)[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("engine", ["coded", "direct"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_gpu_gives_the_same_bits(name, engine):
    cpu, gpu = (played(SETTINGS[name], device=device, engine=engine) for device in ("cpu", "cuda"))
    assert gpu[0] == cpu[0]
    strip = [dataclasses.replace(record, reason="") for record, _ in gpu[1]]
    assert strip == [dataclasses.replace(record, reason="") for record, _ in cpu[1]]
