"""A new layer is one file. Configurations, digests, plans, runs, baselines and models take it as it is."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dresfl.model.layers
from adding import added_file
from dresfl.api.model import load_model
from dresfl.api.plan import plan
from dresfl.deploy.toml import to_toml
from dresfl.errors import UsageError
from dresfl.experiments.comparison import run_baseline
from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import prepare
from dresfl.experiments.training import train
from dresfl.federation import Agreement
from dresfl.field import Reals
from dresfl.model import Dense, Network, layer_from_dict, layer_kinds

CUBE = '''"""A toy: the third power, with a factor."""

from dataclasses import dataclass
from typing import ClassVar, final

from dresfl.model.layers.layer import Fixed


@final
@dataclass(frozen=True)
class Cube(Fixed):
    """z = factor·x³."""

    factor: int = 1

    kind: ClassVar[str] = "cube"
    degree: ClassVar[int] = 3

    def out_shape(self, shape):
        return shape

    def out_magnitude(self, magnitude):
        return 3 * magnitude + self.factor

    def in_delta_magnitude(self, delta, in_magnitude):
        return delta + 2 + 2 * in_magnitude + self.factor

    def forward(self, field, place, x):
        return field.scale(field.mul(field.mul(x, x), x), self.factor)

    def backward(self, field, place, x, delta):
        return field.scale(field.mul(field.mul(x, x), delta), 3 * self.factor)

    def relu_forward(self, place, x):
        return x.relu()
'''
LAYERS = 'layers = [{ kind = "dense", units = 5 }, { kind = "cube", factor = 2 }, { kind = "dense", units = 10 }]'
RUN = f"""
name = "toy"
rounds = 4
evaluate_every = 2
threads = 1
[federation]
num_clients = 8
batch_size = 8
[model]
{LAYERS}
[optimizer]
learning_rate = 0.001
"""


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "layers").mkdir()
    with added_file(dresfl.model.layers, tmp_path / "layers", "cube", CUBE):
        (tmp_path / "run.toml").write_text(RUN, encoding="utf-8")
        cube = layer_kinds()["cube"]
        yield SimpleNamespace(cube=cube, config=str(tmp_path / "run.toml"), folder=tmp_path)


def test_it_is_known_only_while_its_file_is_there(toy):
    assert layer_kinds().keys() - {"cube"} == {"conv2d", "dense", "flatten", "quadratic", "square", "sumpool"}
    assert layer_from_dict(toy.cube(3).to_dict()) == toy.cube(3)
    assert toy.cube(3).to_dict() == {"kind": "cube", "factor": 3}


def test_without_its_file_its_kind_is_refused():
    with pytest.raises(UsageError, match="'cube' is no kind of layer"):
        layer_from_dict({"kind": "cube"})


def test_toml_reads_and_writes_it(toy):
    config = load_config(toy.config)
    assert config.model.layers == (Dense(5), toy.cube(2), Dense(10))
    (toy.folder / "again.toml").write_text(to_toml(config), encoding="utf-8")
    assert load_config(str(toy.folder / "again.toml")) == config


def test_its_gradient_is_torchs(toy):
    network = Network((Dense(3), toy.cube(2), Dense(2)), (4,), input_bits=2, weight_bits=3)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randint(-9, 10, (network.num_parameters,), generator=generator)
    inputs = torch.randint(-4, 5, (1, 1, 6, 4), generator=generator).double()
    targets = torch.randint(0, 2, (1, 1, 6, 2), generator=generator).double()
    leaf = weights.double().requires_grad_()
    error = network.outputs(Reals(), leaf, inputs) - targets * 2.0**network.out_scale
    (expected,) = torch.autograd.grad(error.square().sum(), leaf)
    torch.testing.assert_close(network.gradient(Reals(), weights, inputs, targets)[0, 0], expected)


def test_plans_and_agreements_know_it(toy):
    network = Network((Dense(5), toy.cube(), Dense(10)), (64,), 4)
    assert network.gradient_degree == 6
    assert plan(network, num_clients=8, rows=100).recovery_threshold == 7
    one, other = (Agreement((Dense(5), toy.cube(n), Dense(10)), (64,), num_clients=8, rounds=1) for n in (1, 2))
    assert one.digest != other.digest
    assert json.loads(one.encode())["layers"][1] == {"kind": "cube", "factor": 1}


def test_runs_baselines_and_models_take_it(toy):
    config = load_config(toy.config)
    coded, direct = (
        train(load_config(toy.config, [f"engine={engine}"]), out=toy.folder / engine) for engine in ("coded", "direct")
    )
    assert coded["weights_sha256"] == direct["weights_sha256"]
    assert coded["skipped_rounds"] == coded["alarms"] == 0
    model, prepared = load_model(toy.folder / "coded" / "model.safetensors"), prepare(config, None)
    assert model.weights_sha256 == coded["weights_sha256"]
    test = prepared.split.test
    assert np.mean(model.predict(test.inputs) == test.labels) == coded["test_accuracy"]
    assert 0 <= run_baseline(prepared, "fedavg", lambda number, accuracy: None).final <= 1
