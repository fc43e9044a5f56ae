"""Exported files: other programs compute what the model computes, from features in their own units."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors import safe_open
from safetensors.torch import load_file

import dresfl as dr
from api.own_table import SCHEMA, cells, encoded, trained, write_csv
from dresfl.api.model import Model
from dresfl.api.real_network import RealModule
from dresfl.storage.model_file import with_schema
from dresfl.tables import Column, Label, Schema

IMAGE_NETWORK = dr.Network(
    (dr.Conv2d(2, 3, padding=1), dr.Quadratic(), dr.SumPool(2), dr.Flatten(), dr.Dense(5), dr.Square(), dr.Dense(3)),
    (6, 6, 1),
    input_bits=5,
    weight_bits=9,
)
IMAGES = np.random.default_rng(0).random((40, 6, 6, 1)).astype(np.float32)


@pytest.fixture(scope="module")
def of_images():
    rows = IMAGES, np.arange(40) % 3
    return dr.simulate(
        IMAGE_NETWORK, [rows] * 17, rounds=3, shift=-0.25, engine="direct", classes=["a", "b", "c"]
    ).model


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("table") / "rows.csv", cells(300))


@pytest.fixture(scope="module")
def of_table(table):
    return trained(table)


def features_of(found):
    """The features of cells in their own units, by hand: ages in years, doses in mg, the rest as 0 and 1."""
    rows = []
    for _, age, dose, ward, smokes, _ in found:
        missing = dose == ""
        rows.append(
            [float(age), 4.0 if missing else float(dose), missing, *(ward == w for w in "abc"), smokes == "yes"]
        )
    return np.array(rows, np.float64)


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-12), ("float32", 5e-6)])
def test_onnx_of_images(of_images, tmp_path, precision, tolerance):
    dr.export_model(of_images, tmp_path / "m.onnx", "onnx", precision)
    outputs, labels = session(tmp_path / "m.onnx").run(None, {"features": IMAGES.astype(precision)})
    assert outputs.dtype == precision
    np.testing.assert_allclose(outputs, of_images.decision_function(IMAGES), rtol=0, atol=tolerance)
    assert labels.tolist() == of_images.predict(IMAGES).tolist()


def test_onnx_takes_the_features_of_a_table_in_their_own_units(of_table, table, tmp_path):
    dr.export_model(of_table, tmp_path / "m.onnx")
    outputs, labels = session(tmp_path / "m.onnx").run(None, {"features": features_of(cells(300))})
    inputs, _ = encoded(table)
    np.testing.assert_allclose(outputs, of_table.decision_function(inputs), rtol=0, atol=1e-12)
    assert labels.tolist() == of_table.predict(inputs).tolist()
    kinds = {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node}
    assert {"Max", "Min", "Sub", "Mul", "Round", "MatMul"} <= kinds


def test_onnx_says_what_it_is_of(of_table, tmp_path):
    dr.export_model(of_table, tmp_path / "m.onnx")
    props = {entry.key: entry.value for entry in onnx.load(tmp_path / "m.onnx").metadata_props}
    about = json.loads(props["dresfl"])
    assert about["classes"] == ["ill", "well"]
    assert about["feature_names"] == list(SCHEMA.feature_names)
    assert about["units"] == ["years", "mg", "", "", "", "", ""]
    assert about["weights_sha256"] == of_table.weights_sha256


def test_a_layer_of_each_kind_is_the_same_for_the_reference_evaluator(of_images, tmp_path):
    """Not only for one runtime: ONNX's own evaluator in NumPy, too."""
    dr.export_model(of_images, tmp_path / "m.onnx")
    evaluator = ReferenceEvaluator(str(tmp_path / "m.onnx"))
    outputs, _ = evaluator.run(None, {"features": IMAGES.astype(np.float64)})
    np.testing.assert_allclose(outputs, of_images.decision_function(IMAGES), rtol=0, atol=1e-12)


def test_the_module_that_torch_exports_computes_the_same(of_images, of_table, table):
    outputs = RealModule(of_images.to_real())(torch.from_numpy(IMAGES)).detach().numpy()
    np.testing.assert_allclose(outputs, of_images.decision_function(IMAGES), rtol=0, atol=1e-12)
    outputs = RealModule(of_table.to_real())(torch.from_numpy(features_of(cells(300)))).detach().numpy()
    np.testing.assert_allclose(outputs, of_table.decision_function(encoded(table)[0]), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_torch_program_computes_the_same(of_table, table, tmp_path):
    dr.export_model(of_table, tmp_path / "table.pt2", "torch")
    features = torch.from_numpy(features_of(cells(300)))
    outputs = torch.export.load(tmp_path / "table.pt2").module()(features).detach().numpy()
    np.testing.assert_allclose(outputs, of_table.decision_function(encoded(table)[0]), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_torch_program_of_images_takes_any_number_of_them_and_leaves_the_model_alone(of_images, tmp_path):
    dr.export_model(of_images, tmp_path / "images.pt2", "torch")
    program = torch.export.load(tmp_path / "images.pt2").module()
    for rows in (1, 3, 40):
        outputs = program(torch.from_numpy(IMAGES[:rows]).double()).detach().numpy()
        np.testing.assert_allclose(outputs, of_images.decision_function(IMAGES[:rows]), rtol=0, atol=1e-12)


def test_safetensors_hold_all_that_a_prediction_needs(of_table, table, tmp_path):
    dr.export_model(of_table, tmp_path / "m.safetensors", "safetensors")
    tensors = {name: tensor.numpy() for name, tensor in load_file(tmp_path / "m.safetensors").items()}
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        about = json.loads(file.metadata()["dresfl export"])
    x = np.clip(features_of(cells(300)), tensors["features.low"], tensors["features.high"])
    x = ((x - tensors["features.offset"]) * tensors["features.factor"]).astype(np.float32).astype(np.float64)
    step = 2 ** about["input_bits"]
    x = np.round((x + about["shift"]) * step) / step
    x = (x @ tensors["layers.0.weight"] + tensors["layers.0.bias"]) ** 2
    x = x @ tensors["layers.2.weight"] + tensors["layers.2.bias"]
    np.testing.assert_allclose(x, of_table.decision_function(encoded(table)[0]), rtol=0, atol=1e-12)
    assert [about["classes"][place] for place in x.argmax(1)] == [
        of_table.classes[place] for place in of_table.predict(encoded(table)[0])
    ]


def test_what_is_not_known_is_refused(of_table, tmp_path):
    for options in (("pickle",), ("onnx", "float16"), ("torch", "float32")):
        with pytest.raises(dr.UsageError) as caught:
            dr.export_model(of_table, tmp_path / "m", *options)
        assert caught.value.hint
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_onnx_on_half_a_million_rows(tmp_path):
    """float64 within 1e-12 and all labels equal; float32 within 5e-6, except for rows at ties of the rounding."""
    rows, generator = 500_000, np.random.default_rng(5)
    spread = generator.uniform(0.1, 50, 30)
    columns = tuple(
        Column(f"x{n}", "number", minimum=-2 * s, maximum=2 * s, clip=True, mean=0, spread=s)
        for n, s in enumerate(spread.tolist())
    )
    schema = Schema("classification", columns, Label("y", classes=("no", "yes")))
    raw = generator.normal(0, spread, (rows, 30))
    inputs = (np.clip(raw, -2 * spread, 2 * spread) * (1 / spread)).astype(np.float32)
    labels = (inputs[:, :3].sum(1) > 0).astype(np.int64)
    network = dr.Network((dr.Dense(16), dr.Square(), dr.Dense(2)), (30,), input_bits=6, input_magnitude=1.0)
    rate = dr.Optimizer("adam", learning_rate=0.02)
    run = dr.simulate(network, [(inputs[:2000], labels[:2000])] * 5, rounds=200, optimizer=rate, engine="direct")
    model = Model(with_schema(run.model._stored, schema))
    wanted, predicted = model.decision_function(inputs), model.predict(inputs)
    dr.export_model(model, tmp_path / "double.onnx")
    outputs, found = session(tmp_path / "double.onnx").run(None, {"features": raw})
    assert np.abs(outputs - wanted).max() <= 1e-12
    assert (found == predicted).all()
    dr.export_model(model, tmp_path / "single.onnx", "onnx", "float32")
    short = raw.astype(np.float32)
    outputs, found = session(tmp_path / "single.onnx").run(None, {"features": short})
    again = (np.clip(short.astype(np.float64), -2 * spread, 2 * spread) * (1 / spread)).astype(np.float32)
    ties = (np.round(again * 64.0) != np.round(inputs * 64.0)).any(1)
    assert ties.sum() < rows / 1000  # features that float32 moved over the middle between two steps
    assert np.abs(outputs - wanted)[~ties].max() <= 5e-6
    margin = np.abs(wanted[:, 0] - wanted[:, 1]) > 2e-5
    assert (found == predicted)[~ties & margin].all()
