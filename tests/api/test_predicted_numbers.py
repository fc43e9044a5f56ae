"""Regression: predictions, figures and exported graphs are in the target's unit."""

import numpy as np
import onnxruntime
import pytest

import dresfl as dr
from dresfl.tables import Column, Label, Schema

SCHEMA = Schema(
    "regression",
    (Column("age", "number", unit="years", minimum=0, maximum=100), Column("dose", "number", minimum=0, maximum=8)),
    Label("pressure", unit="mmHg", minimum=60, maximum=220),
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    generator, path = np.random.default_rng(1), tmp_path_factory.mktemp("numbers") / "rows.csv"
    age, dose = generator.uniform(0, 100, 200), generator.uniform(0, 8, 200)
    pressure = 70 + age + 5 * dose
    lines = [f"{a!r},{d!r},{p!r}" for a, d, p in zip(age.tolist(), dose.tolist(), pressure.tolist(), strict=True)]
    path.write_text("age,dose,pressure\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def model(table):
    network = dr.Network((dr.Dense(1),), (2,), input_bits=8, target_bits=10)
    rate = dr.Optimizer("adam", learning_rate=0.05)
    tables = [table] * 5
    return dr.simulate(network, tables, rounds=200, optimizer=rate, engine="direct", threads=1, schema=SCHEMA).model


def test_predictions_and_figures_are_in_the_targets_unit(model, table):
    found = dr.predict_file(model, table, outcomes=True)
    pressure = np.loadtxt(table, delimiter=",", skiprows=1)[:, 2]
    assert np.abs(found.places - pressure).max() < 8
    assert (found.report.unit, model.units) == ("mmHg", ("years", ""))
    assert found.report.r2 > 0.98
    assert found.report.mae == pytest.approx(np.abs(found.places - pressure).mean(), abs=1e-4)  # targets are float32
    assert list(found.columns()) == ["prediction"]
    with pytest.raises(dr.UsageError, match="scores"):
        found.columns(scores=True)


def test_onnx_predicts_in_the_targets_unit(model, table, tmp_path):
    dr.export_model(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    features = np.loadtxt(table, delimiter=",", skiprows=1)[:, :2]
    (predictions,) = session.run(["predictions"], {"features": features})
    np.testing.assert_allclose(predictions[:, 0], dr.predict_file(model, table).places, rtol=0, atol=1e-10)


def test_a_single_output_tells_two_classes_apart_everywhere(tmp_path):
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.25], [0.25, 1.0]]), np.array([0, 1, 0, 1])
    network = dr.Network((dr.Dense(1),), (2,), input_bits=4)
    model = dr.simulate(network, [rows] * 3, rounds=60, batch_size=4, engine="direct", classes=["no", "yes"]).model
    np.savez(tmp_path / "rows.npz", inputs=rows[0], labels=rows[1])
    found = dr.predict_file(model, tmp_path / "rows.npz", outcomes=True)
    assert found.columns()["prediction"] == ["no", "yes", "no", "yes"]
    assert (found.report.accuracy, found.report.auc, found.report.classes) == (1.0, 1.0, ("no", "yes"))
    dr.export_model(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    assert session.run(["labels"], {"features": rows[0]})[0].tolist() == [0, 1, 0, 1]
