"""Runs on features: what `prepare` makes of them against slow obvious twins, and a run from pickles to weights."""

import dataclasses
import json
import pickle
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from dresfl.data import flat_inputs, load, pieces
from dresfl.errors import UsageError
from dresfl.experiments.comparison import BaselineSettings
from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import load_split, prepare
from dresfl.experiments.reproduce import Cell, recipe, run_matrix
from dresfl.experiments.reproduce.records import read_record
from dresfl.experiments.training import train
from dresfl.field import Reals
from dresfl.protocol import evaluation

from .test_vgg import by_hand, tiny_weights

LAYERS = '[{ kind = "dense", units = 4 }, { kind = "square" }, { kind = "dense", units = 10 }]'
TOY = [
    'data.dataset="cifar10"',
    "rounds=6",
    "evaluate_every=3",
    "federation.num_clients=5",
    "federation.batch_size=8",
    "dropout.model=none",
    f"model.layers={LAYERS}",
    "model.input_bits=9",
    "features.extractor=vgg19",
    "features.weights=tiny.pth",
    "features.image_size=32",
    "features.power=0.5",
    "features.l2_norm=true",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """CIFAR-10 in its own layout, eight images a batch, and a checkpoint beside it."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "cifar-10-batches-py").mkdir()
    generator = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = {
            b"data": generator.integers(0, 256, (8, 3072), np.uint8),
            b"labels": generator.integers(0, 10, 8).tolist(),
        }
        (folder / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(batch, 2))
    torch.save(tiny_weights(), folder / "tiny.pth")
    return folder


def test_processes_share_the_transformed_rows(folder, tmp_path, monkeypatch):
    config = load_config("digits", TOY)
    own, shared = load_split(config, folder), load_split(config, folder, tmp_path)
    monkeypatch.setattr("dresfl.features.split._all_transformed", None)  # made once
    again = load_split(config, folder, tmp_path)
    assert len(list(tmp_path.glob("*.npy"))) == 2
    for part in ("train", "test"):
        wanted, *found = (getattr(split, part) for split in (own, shared, again))
        for one in found:
            assert isinstance(one.inputs, np.memmap)
            assert np.array_equal(one.inputs, wanted.inputs)
    again.train.inputs[:] = 0  # changes stay a process's own
    assert np.array_equal(load_split(config, folder, tmp_path).train.inputs, own.train.inputs)
    assert again.origin == own.origin


@pytest.mark.slow
def test_workers_share_features_and_tidy_up(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("DRESFL_CACHE", str(tmp_path / "cache"))
    toy = load_config("digits", [*TOY, "rounds=2", "dropout.model=none"])
    cells = [
        Cell("cifar10", method, seed, 0, (), dataclasses.replace(toy, seed=seed), baseline=settings)
        for method, settings in (("dresfl", None), ("fedavg", BaselineSettings()))
        for seed in (0, 1)
    ]
    alone, together = tmp_path / "alone", tmp_path / "together"
    for out, jobs in ((alone, 1), (together, 2)):
        assert run_matrix(cells, data=folder, out=out, watch=Mock(), jobs=jobs) == []
    for cell in cells:
        one, two = (read_record(cell.jsonl(out)) for out in (alone, together))
        assert one.result["weights_sha256"] == two.result["weights_sha256"]
    assert (tmp_path / "cache" / "shared.lock").exists()
    assert not (tmp_path / "cache" / "shared").exists()


def test_features_of_a_data_set(folder):
    split = prepare(load_config("digits", TOY), folder).split
    pixels = load("cifar10", folder)
    for part, images in ((split.train, pixels.train), (split.test, pixels.test)):
        wanted = by_hand(tiny_weights(), torch.from_numpy(images.inputs).permute(0, 3, 1, 2)).sqrt()
        wanted = wanted / wanted.norm(dim=1, keepdim=True)
        assert part.inputs.dtype == np.float32
        assert part.input_shape == (6 * 49,)
        np.testing.assert_allclose(part.inputs, wanted.numpy(), rtol=2e-3, atol=1e-5)  # float16 in between
        assert np.array_equal(part.labels, images.labels)


@pytest.mark.parametrize("scale", [1, 100, 1000])
def test_integer_rows_are_the_quantised_features(folder, monkeypatch, scale):
    """In pieces, and in the narrowest type that holds them."""
    monkeypatch.setattr(pieces, "_PIECE", 3 * 6 * 49)
    prepared = prepare(load_config("digits", [*TOY, f"features.scale={scale}"]), folder)
    inputs = prepared.split.train.inputs
    largest = 0
    for rows, (integers, targets) in zip(prepared.parts, prepared.client_data(), strict=True):
        wanted = np.rint(inputs[rows].astype(np.float64) * 512).astype(np.int64)
        assert np.array_equal(integers.numpy(), wanted)
        assert integers.dtype == (torch.int32 if scale == 1000 else torch.int16)
        assert targets.dtype == torch.int32
        assert np.array_equal(targets.numpy().argmax(1), prepared.split.train.labels[rows])
        assert (targets.sum(1) == 1).all()
        largest = max(largest, int(integers.max()))
    assert (largest > 2**15) == (scale > 100)


@pytest.mark.parametrize("overrides", [[], ["model.shift=-0.5"]])
def test_accuracy_is_the_share_of_right_rows(monkeypatch, overrides):
    conv = '[{ kind = "conv2d", channels = 2, kernel = 3 }, { kind = "square" }, { kind = "flatten" }, '
    conv += '{ kind = "dense", units = 10 }]'
    for layers in ([], [f"model.layers={conv}"]):
        prepared = prepare(load_config("digits", [*layers, *overrides]), None)
        network, test = prepared.session.network, prepared.split.test
        weights = network.initial_weights(prepared.session.stream)
        rows = prepared.quantizer.integers(flat_inputs(test))
        outputs = network.outputs(Reals(), weights, rows.double()[None, None])[0, 0]
        wanted = np.mean(outputs.argmax(1).numpy() == test.labels)
        assert prepared.accuracy(weights) == wanted
        monkeypatch.setitem(evaluation._EVALUATED_AT_A_TIME, "cpu", 7000)
        assert prepared.accuracy(weights) == wanted
        assert 0 < wanted < 0.5


def test_test_rows_are_quantised_once(monkeypatch):
    prepared = prepare(load_config("digits"), None)
    weights = prepared.session.network.initial_weights(prepared.session.stream)
    prepared.accuracy(weights)
    monkeypatch.setattr(type(prepared.quantizer), "integers", None)
    prepared.accuracy(weights)
    with pytest.raises(TypeError):
        dataclasses.replace(prepared).accuracy(weights)


def test_a_run_on_features(folder, tmp_path):
    config = load_config("digits", TOY)
    summary = train(config, folder=folder, out=tmp_path / "coded")
    direct = train(dataclasses.replace(config, engine="direct"), folder=folder, out=tmp_path / "direct")
    assert summary["weights_sha256"] == direct["weights_sha256"]
    assert json.loads((tmp_path / "coded" / "summary.json").read_text())["rounds"] == 6
    assert load_config(str(tmp_path / "coded" / "config.toml")) == config


def test_extracted_features_are_no_images(folder):
    conv = '[{ kind = "conv2d", channels = 2, kernel = 3 }, { kind = "flatten" }, { kind = "dense", units = 10 }]'
    with pytest.raises(UsageError, match="conv2d needs"):
        prepare(load_config("digits", [*TOY, f"model.layers={conv}"]), folder)


def test_a_recipe_convolves_transformed_images():
    config = recipe("fashion", "dresfl")
    assert config.features.transforms
    digits = dataclasses.replace(config, data=dataclasses.replace(config.data, dataset="digits"))
    prepared = prepare(digits, None)
    assert prepared.session.network.input_shape == (8, 8, 1)
    assert prepared.split.train.inputs.min() < 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_counts_the_same_rows_right():
    prepared = prepare(load_config("digits"), None)
    weights = prepared.session.network.initial_weights(prepared.session.stream)
    assert prepared.accuracy(weights.cuda()) == prepared.accuracy(weights)
