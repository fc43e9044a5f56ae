"""A new data set is one file, its label included. `load`, configurations, runs, tables and figures take it."""

import tomllib

import pytest

import dresfl.data.sets
from adding import added_file
from dresfl.data import data_set_label, load, sources
from dresfl.deploy.toml import to_toml
from dresfl.errors import UsageError
from dresfl.experiments import reproduce
from dresfl.experiments.config import load_config
from dresfl.experiments.training import train

STRIPES = '''"""A toy: images of one bright column, which is the class."""

import numpy as np

from dresfl.data import DataSet, Source, Split


def _load(folder):
    labels = np.arange(60) % 3
    images = np.zeros((60, 3, 3, 1), np.float32)
    images[np.arange(60), :, labels] = 1
    return Split(DataSet(images, labels, 3, "stripes"), DataSet(images[:9], labels[:9], 3, "stripes"))


SOURCE = Source("stripes", "Stripes, 3x3", _load)
'''
RUN = [
    "data.dataset=stripes",
    "rounds=6",
    "evaluate_every=3",
    "federation.num_clients=5",
    "federation.batch_size=8",
    'model.layers=[{ kind = "dense", units = 3 }]',
]


@pytest.fixture(autouse=True)
def stripes(tmp_path):
    (tmp_path / "sets").mkdir()
    with added_file(dresfl.data.sets, tmp_path / "sets", "stripes", STRIPES):
        yield


def test_it_is_loaded_by_its_name():
    assert "stripes" in sources()
    assert load("stripes").train.input_shape == (3, 3, 1)
    assert data_set_label("stripes") == "Stripes, 3x3"
    with pytest.raises(UsageError, match="no data set is called 'strips'") as caught:
        load("strips")
    assert "stripes" in caught.value.hint


def test_its_runs_stand_in_tables(tmp_path):
    config = load_config("digits", RUN)
    summary = train(config, out=tmp_path / "run")
    header = {
        "dataset": "stripes",
        "method": "dresfl",
        "seed": 0,
        "dropout_seed": 0,
        "passed_over": [],
        "feasible": True,
        "rounds": config.rounds,
        "engine": config.engine,
        "device": config.device,
        "commit": "",
        "versions": {},
        "train_rows": 60,
        "test_rows": 9,
        "config": tomllib.loads(to_toml(config)),
    }
    result = {**summary, "decoded_share": 1.0}
    evaluations = [{"round": 6, "test_accuracy": summary["test_accuracy"]}]
    record = reproduce.Record(header, evaluations, result)
    assert list(reproduce.table([record])) == ["stripes"]
    assert "| Stripes, 3x3 |" in reproduce.markdown([record])


def test_a_data_set_without_a_file_keeps_its_name_in_tables():
    assert data_set_label("forgotten") == "forgotten"
