"""The model file: all comes back, the same bytes everywhere, files of 0.1 are read, the rest is refused by name."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save

from dresfl.api.model import Model
from dresfl.errors import ModelError
from dresfl.field import PublicStream
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool
from dresfl.storage.model_file import StoredModel, _digest, decode_model, encode_model, read_model, write_model
from dresfl.storage.tensors import save_tensors

FIXTURES = Path(__file__).parent / "fixtures"  # made with dresfl 0.1.0

NETWORK = Network(
    (
        Conv2d(2, 3, padding=1),
        Quadratic(),
        SumPool(2),
        Flatten(),
        Dense(4, weight_bits=7),
        Square(),
        Dense(3, init=0.5),
    ),
    (6, 6, 1),
    input_bits=5,
    weight_bits=9,
    input_magnitude=1.5,
)


def stored(**more):
    weights = NETWORK.initial_weights(PublicStream(3))
    return StoredModel(NETWORK, weights, **{"shift": -0.25, "input_bound": 2.0**1.5, **more})


def same(left, right):
    return (
        (left.network, left.shift, left.classes) == (right.network, right.shift, right.classes)
        and left.input_bound == right.input_bound
        and torch.equal(left.weights, right.weights)
    )


@pytest.mark.parametrize("classes", [(), ("a", "b", "ç")])
def test_everything_comes_back(tmp_path, classes):
    model = stored(classes=classes)
    write_model(tmp_path / "model.safetensors", model)
    assert same(read_model(tmp_path / "model.safetensors"), model)


@given(st.lists(st.integers(-(2**31) + 1, 2**31 - 1), min_size=8, max_size=8))
def test_integer_weights_are_exact(values):
    network = Network((Dense(2, weight_bits=24),), (3,), input_bits=4)
    model = StoredModel(network, torch.tensor(values))
    assert decode_model(encode_model(model), "here").weights.tolist() == values


def test_it_is_a_safetensors_file_of_the_real_weights(tmp_path):
    write_model(tmp_path / "m", stored())
    tensors = load_file(tmp_path / "m")
    wanted = NETWORK.tensors(stored().weights)
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], wanted[name]) for name in wanted)


def test_the_bytes_are_the_same_in_every_process_and_say_nothing_of_the_place(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from storage.test_model_file import *;"
        "print(hashlib.sha256(encode_model(stored())).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[1])]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path) for _ in range(2)]
    ours = hashlib.sha256(encode_model(stored())).hexdigest()
    assert {run.stdout.strip() for run in runs} == {ours}
    header = encode_model(stored())[8:].split(b"\0")[0].decode("utf-8", "replace")
    assert not any(word in header for word in ("/", "time", "name", "version"))


def test_the_bytes_of_a_small_model_are_fixed():
    network = Network((Dense(1),), (2,), input_bits=4)
    data = encode_model(StoredModel(network, torch.tensor([1024, -512, 3])))
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    described = json.loads(header["__metadata__"]["dresfl"])
    digest = described.pop("sha256")
    assert digest == hashlib.sha256(json.dumps(described, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    assert described == {
        "classes": [],
        "format": "dresfl model 3",
        "input_bits": 4,
        "input_bound": 1.0,
        "input_shape": [2],
        "layers": [{"init": None, "kind": "dense", "units": 1, "weight_bits": None}],
        "shift": 0.0,
        "weight_bits": 10,
        "weights_sha256": hashlib.sha256(np.array([1024, -512, 3], "<i8").tobytes()).hexdigest(),
    }
    assert np.frombuffer(data[-24:], "<f8").tolist() == [1.0, -0.5, 3 / 1024]


# -- 0.1 -------------------------------------------------------------------------------------------------------


def test_a_model_of_train_of_version_0_1():
    model = read_model(FIXTURES / "train.safetensors")
    assert model.network.layers == (Dense(4), Square(), Dense(10, weight_bits=8))
    assert (model.network.input_shape, model.network.input_bits, model.network.weight_bits) == ((64,), 4, 10)
    assert model.shift == -0.5
    digest = "a3525108cc22524fbb80dd0ddcf6cb15a385d4f2c94efe97250d0a7d665e4ca8"
    assert Model(model).weights_sha256 == digest


@pytest.mark.parametrize("participant", ["coordinator", "client"])
def test_a_model_of_a_federation_of_version_0_1(participant):
    model = read_model(FIXTURES / f"{participant}.safetensors")
    assert model.network.layers == (Conv2d(2, 3), Quadratic(), SumPool(2), Flatten(), Dense(3, init=0.5))
    assert (model.network.input_shape, model.shift, model.input_bound) == ((6, 6, 1), 0.25, 2.0)
    digest = "b19cdbdcea90bad20dce2194f9f03a9b750ab13ae3527f135cabfaa24046e2cc"
    assert Model(model).weights_sha256 == digest
    assert Model(model).predict(np.full((2, 6, 6, 1), 0.5)).shape == (2,)


def test_an_old_model_written_anew_is_the_same_model(tmp_path):
    for path in FIXTURES.glob("*.safetensors"):
        model = read_model(path)
        write_model(tmp_path / "new", model)
        assert same(read_model(tmp_path / "new"), model)


def test_a_model_of_0_2_is_read():
    """It is the same without the digest of its description."""
    assert same(decode_model(rewritten(format="dresfl model 2", sha256=None), "old"), stored())


# -- refusals --------------------------------------------------------------------------------------------------


def described(data):
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return json.loads(header["__metadata__"]["dresfl"])


def rewritten(**changes):
    """A file with another description, whose digest is right; None removes a key."""
    values = {**described(encode_model(stored())), **changes}
    values = {key: value for key, value in values.items() if value is not None}
    if "sha256" in values and "sha256" not in changes:
        values["sha256"] = _digest(values)
    tensors = {name: tensor.contiguous() for name, tensor in NETWORK.tensors(stored().weights).items()}
    return save(tensors, metadata={"dresfl": json.dumps(values)})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "dresfl model 5"}, "'dresfl model 5'"),
        ({"sha256": None}, "does not have its sha256"),
        ({"sha256": "0" * 64}, "does not have its sha256"),
        ({"format": "dresfl model 2", "sha256": "0" * 64}, "does not have its sha256"),
        ({"format": None}, "None"),
        ({"weights_sha256": "0" * 64}, "weights_sha256"),
        ({"weights_sha256": None}, "weights_sha256"),
        ({"layers": []}, "layer"),
        ({"layers": [{"kind": "relu"}]}, "relu"),
        ({"layers": 3}, "damaged"),
        ({"layers": [{"kind": "dense", "units": 3}]}, "damaged"),
        ({"input_shape": [6, 6]}, "damaged"),
        ({"input_shape": [-6, 6, 1]}, "input_shape"),
        ({"input_bits": 40}, "input_bits"),
        ({"weight_bits": "ten"}, "damaged"),
        ({"weight_bits": 3}, "multiple"),
        ({"shift": float("inf")}, "shift"),
        ({"input_bound": 0}, "input_bound"),
        ({"classes": ["one"]}, "classes"),
        ({"classes": [1, 2, 3]}, "classes"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, words):
    with pytest.raises(ModelError) as caught:
        decode_model(rewritten(**changes), "some.safetensors")
    assert str(caught.value).startswith("some.safetensors")
    assert words in str(caught.value)
    assert caught.value.hint


def test_other_files_are_refused_by_name(tmp_path):
    save_tensors(tmp_path / "checkpoint", {"weights": torch.zeros(3)}, {"progress": {}})
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_bytes(b"")
    for name in ("checkpoint", "text", "empty", "absent", "."):
        with pytest.raises(ModelError, match=name if name != "." else "cannot read") as caught:
            read_model(tmp_path / name)
        assert caught.value.hint


@given(st.data())
def test_a_changed_byte_is_refused(data):
    encoded = bytearray(encode_model(stored()))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    try:
        model = decode_model(bytes(encoded), "changed")
    except ModelError as error:
        assert error.hint  # noqa: PT017
    else:  # the sign of a zero, for instance
        assert same(model, stored())


def test_every_truncation_is_refused():
    encoded = encode_model(stored())
    for length in range(0, len(encoded), 11):
        with pytest.raises(ModelError):
            decode_model(encoded[:length], "cut")
