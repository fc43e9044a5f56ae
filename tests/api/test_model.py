"""`dr.Model`: predictions against the integers in Python, torch's outputs, files, inputs that do not fit."""

import numpy as np
import pytest
import torch

import dresfl as dr

NETWORK = dr.Network(
    (dr.Conv2d(2, 2), dr.Quadratic(), dr.SumPool(2), dr.Flatten(), dr.Dense(3), dr.Square(), dr.Dense(2)),
    input_shape=(5, 5, 1),
    input_bits=4,
    weight_bits=6,
)
IMAGES = np.random.default_rng(0).random((7, 5, 5, 1))


@pytest.fixture(scope="module")
def model():
    labels = np.arange(7) % 2
    return dr.simulate(NETWORK, [(IMAGES, labels)] * 17, rounds=2, shift=-0.25, classes=["no", "yes"]).model


def by_hand(model, images):
    """The real network, layer by layer, in plain NumPy on the rounded inputs."""
    weights = {name: value.detach().numpy() for name, value in model.to_torch().named_parameters()}
    x = np.round((images.astype(np.float32).astype(np.float64) - 0.25) * 16) / 16
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(1, 2))  # (m,4,4,1,2,2)
    x = windows.transpose(0, 1, 2, 4, 5, 3).reshape(len(x), 4, 4, 4) @ weights["layers.0.weight"]
    x = x + weights["layers.0.bias"]
    x = x * x + x
    x = x.reshape(len(x), 2, 2, 2, 2, 2).sum((2, 4)).reshape(len(x), -1)
    x = (x @ weights["layers.4.weight"] + weights["layers.4.bias"]) ** 2
    return x @ weights["layers.6.weight"] + weights["layers.6.bias"]


def test_outputs_are_those_of_the_real_network(model):
    outputs = model.decision_function(IMAGES)
    np.testing.assert_allclose(outputs, by_hand(model, IMAGES), rtol=1e-12, atol=1e-14)
    assert model.predict(IMAGES).tolist() == outputs.argmax(1).tolist()
    assert model.predict(torch.tensor(IMAGES)).tolist() == model.predict(IMAGES.reshape(7, 25).tolist()).tolist()


def test_torch_computes_the_same_outputs_and_can_learn(model):
    module = model.to_torch()
    outputs = module(torch.tensor(IMAGES, dtype=torch.float32))
    assert (outputs.detach().numpy() == model.decision_function(IMAGES)).all()
    outputs.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert (model.to_torch()(torch.tensor(IMAGES)).detach().numpy() == model.decision_function(IMAGES)).all()


def test_a_file_and_back(model, tmp_path):
    model.save(tmp_path / "m.safetensors")
    again = dr.load_model(str(tmp_path / "m.safetensors"))
    assert (again.network, again.classes, again.weights_sha256) == (
        NETWORK,
        ("no", "yes"),
        model.weights_sha256,
    )
    assert (again.decision_function(IMAGES) == model.decision_function(IMAGES)).all()
    assert again.weights.tolist() == model.weights.tolist()


def test_the_weights_are_a_copy(model):
    digest = model.weights_sha256
    model.weights[:] = 0
    assert model.weights_sha256 == digest
    assert digest[:8] in repr(model)


def test_many_rows_are_taken_in_parts(model):
    many = np.tile(IMAGES, (3000, 1, 1, 1))
    assert model.predict(many).tolist() == np.tile(model.predict(IMAGES), 3000).tolist()


@pytest.mark.parametrize(
    "inputs", [IMAGES[0], IMAGES[:, :4], np.zeros((2, 26)), [["a"] * 25], IMAGES.transpose(0, 3, 1, 2)]
)
def test_inputs_that_do_not_fit_are_refused(model, inputs):
    with pytest.raises(dr.DataError, match="predict: inputs") as caught:
        model.predict(inputs)
    assert caught.value.hint


def test_nan_is_refused(model):
    with pytest.raises(dr.DataError, match="NaN"):
        model.predict(IMAGES * np.nan)
