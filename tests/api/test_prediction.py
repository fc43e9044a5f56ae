"""Predictions for files: tables by the model's own schema, plain numbers without one, archives; and what is refused."""

import csv

import numpy as np
import pyarrow.parquet
import pytest

import dresfl as dr
from api.own_table import HEAD, SCHEMA, cells, encoded, trained, write_csv
from dresfl.api.prediction import write_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def model(folder):
    return trained(write_csv(folder / "train.csv", cells(300)))


@pytest.fixture
def new(folder):
    return write_csv(folder / "new.csv", cells(50, seed=1))


def test_a_table_is_read_as_the_clients_read_theirs(model, folder, new):
    inputs, labels = encoded(new)
    found = dr.predict_file(model, new, outcomes=True)
    assert (found.outputs == model.decision_function(inputs)).all()
    assert found.places.tolist() == model.predict(inputs).tolist()
    assert found.report.accuracy == (model.predict(inputs) == labels).mean() > 0.8
    assert found.report.classes == ("ill", "well")
    assert found.report == dr.evaluate(model, inputs, labels)


def test_no_label_is_needed_and_columns_may_stand_in_another_order(model, folder, new):
    wanted = dr.predict_file(model, new).columns()
    blind = write_csv(folder / "blind.csv", cells(50, seed=1), leave_out=("outcome", "number"))
    assert dr.predict_file(model, blind).columns() == wanted
    turned = pyarrow.table({name: [row[place] for row in cells(50, seed=1)] for place, name in enumerate(HEAD)})
    pyarrow.parquet.write_table(turned.select(HEAD[::-1]), folder / "turned.parquet")
    assert dr.predict_file(model, folder / "turned.parquet").columns() == wanted


def test_columns_are_kept_and_classes_have_their_names(model, new):
    found = dr.predict_file(model, new, keep=["number", "age"]).columns(scores=True)
    assert list(found) == ["number", "age", "prediction", "score ill", "score well"]
    assert found["number"] == [row[0] for row in cells(50, seed=1)]
    for word, ill, well in zip(found["prediction"], found["score ill"], found["score well"], strict=True):
        assert word == ("ill" if ill > well else "well")
        assert ill + well == pytest.approx(1)


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npz"])
def test_what_is_written_can_be_read(model, new, tmp_path, ending):
    columns = dr.predict_file(model, new, keep=["number"]).columns(scores=True)
    path = tmp_path / f"out{ending}"
    write_table(path, columns)
    if ending == ".csv":
        rows = list(csv.DictReader(path.read_text().splitlines()))
        found = {name: [row[name] for row in rows] for name in columns}
        assert {name: list(map(str, values)) for name, values in columns.items()} == found
    elif ending == ".parquet":
        assert pyarrow.parquet.read_table(path).to_pydict() == columns
    else:
        assert {name: array.tolist() for name, array in np.load(path).items()} == columns


def test_a_model_without_a_schema_reads_plain_numbers(tmp_path):
    network = dr.mlp((2, 2), input_bits=4, weight_bits=10)
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.25]]), np.array([0, 1, 0])
    model = dr.simulate(network, [rows] * 3, rounds=30, batch_size=4, engine="direct").model
    (tmp_path / "plain.csv").write_text("a;b;true one\n1;0;0\n0;1;1\n1;0.25;0\n")
    found = dr.predict_file(model, tmp_path / "plain.csv", outcomes=True, label="true one")
    assert found.places.tolist() == model.predict(rows[0]).tolist() == [0, 1, 0]
    assert found.report.accuracy == 1.0
    np.savez(tmp_path / "rows.npz", inputs=rows[0], labels=rows[1])
    archived = dr.predict_file(model, tmp_path / "rows.npz", outcomes=True)
    assert (archived.outputs == found.outputs).all()
    assert archived.report == found.report
    with pytest.raises(dr.DataError, match="takes 2 inputs") as caught:
        dr.predict_file(model, tmp_path / "plain.csv")
    assert "--label" in caught.value.hint


def test_rows_that_the_schema_refuses_are_named_and_not_shown(model, tmp_path):
    found = [list(row) for row in cells(9)]
    found[4][2] = "9.75"
    path = write_csv(tmp_path / "bad.csv", found)
    with pytest.raises(dr.DataError, match=r"'dose'.*row 5") as caught:
        dr.predict_file(model, path)
    assert "9.75" not in str(caught.value)


def test_what_does_not_fit_is_refused(model, folder, new, tmp_path):
    short = write_csv(folder / "short.csv", cells(5), leave_out=("ward",))
    with pytest.raises(dr.DataError, match="ward"):
        dr.predict_file(model, short)
    with pytest.raises(dr.DataError, match="outcome"):
        dr.predict_file(model, write_csv(folder / "b.csv", cells(5), leave_out=("outcome",)), outcomes=True)
    with pytest.raises(dr.DataError, match="no rows"):
        dr.predict_file(model, write_csv(folder / "none.csv", []))
    with pytest.raises(dr.UsageError, match="'outcome'"):
        dr.predict_file(model, new, outcomes=True, label="ward")
    with pytest.raises(dr.UsageError, match="written to"):
        write_table(tmp_path / "out.xls", {"prediction": [1]})
    assert SCHEMA.digest() == model.schema.digest()
