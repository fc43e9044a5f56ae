"""A new method of optimisation is one file. Settings, TOML, rounds, blocks, checkpoints and baselines take it."""

import pytest
import torch

import dresfl.optimizers
from adding import added_file
from dresfl.errors import UsageError
from dresfl.experiments.comparison import run_baseline
from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import prepare
from dresfl.model import weights_sha256
from dresfl.optimizers import Optimizer, methods
from dresfl.protocol import Training
from dresfl.runtimes.local import LocalFederation
from dresfl.runtimes.local.blocks import RoundBlocks

FADING = '''"""A toy: the sign of a velocity, with a factor that falls from step to step."""

from typing import ClassVar, final

from dresfl.optimizers import Method


@final
class Fading(Method):
    """The sign of v ← μ·v + g, times 1/steps and then 0.1."""

    name: ClassVar[str] = "fading"
    moments: ClassVar[tuple[str, ...]] = ("velocity",)

    @staticmethod
    def factors(settings, steps):
        return 1 / steps, 0.1, 1.0

    @staticmethod
    def direction(settings, state, factors, gradient):
        velocity = state["velocity"] * settings.momentum + gradient
        return velocity.sign() * factors[0] * factors[1], {"velocity": velocity}
'''
RUN = ["rounds=12", "threads=1", "optimizer.method=fading", "optimizer.learning_rate=0.5", "evaluate_every=6"]


@pytest.fixture(autouse=True)
def fading(tmp_path):
    with added_file(dresfl.optimizers, tmp_path, "fading", FADING):
        yield


def test_it_is_known_only_while_its_file_is_there(fading):
    assert methods().keys() == {"adam", "fading", "momentum", "sgd"}
    assert Optimizer("fading").num_factors == 4
    with pytest.raises(UsageError, match="unknown method 'fadding'") as caught:
        Optimizer("fadding")
    assert "fading" in caught.value.hint


def test_rounds_blocks_and_checkpoints_take_it():
    config = load_config("digits", RUN)
    ends = []
    for engine, in_blocks in (("coded", False), ("coded", True), ("direct", True)):
        prepared = prepare(config, None)
        training = Training(prepared.session, config.optimizer, config.rounds)
        federation = LocalFederation(prepared.session, training, prepared.client_data(), prepared.dropouts, engine)
        blocks = RoundBlocks(prepared.session, training, federation) if in_blocks else federation
        before = training.weights
        while not training.done:
            blocks.run(5) if in_blocks else blocks.run_rounds(5)
            resumed = Training(prepared.session, config.optimizer, config.rounds)
            resumed.restore(training.state())
            assert torch.equal(resumed.moments["velocity"], training.moments["velocity"])
        assert not torch.equal(training.weights, before)
        ends.append(weights_sha256(training.weights))
    assert len(set(ends)) == 1


def test_baselines_take_it():
    prepared = prepare(load_config("digits", RUN), None)
    assert 0 <= run_baseline(prepared, "centralised", lambda number, accuracy: None).final <= 1
