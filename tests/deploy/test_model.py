"""The model at the end of a federation: the same bytes at the coordinator and at every client."""

import numpy as np

from dresfl.api.model import load_model
from dresfl.deploy.model import keep_model, stored_model
from dresfl.federation import Agreement
from dresfl.field import PublicStream
from dresfl.model import Dense, Square
from dresfl.protocol import Task
from dresfl.storage.model_file import write_model

AGREEMENT = Agreement((Dense(4), Square(), Dense(2)), (3,), num_clients=5, rounds=7, shift=0.1, input_bound=3.3)


def test_the_file_is_the_same_at_every_participant(tmp_path):
    weights = AGREEMENT.network.initial_weights(PublicStream(1))
    write_model(tmp_path / "coordinator", stored_model(AGREEMENT, weights))
    for client in ("one", "two"):
        keep_model(str(tmp_path / client), AGREEMENT, Task(7, weights))
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    model = load_model(tmp_path / "one")
    assert model.network == AGREEMENT.network
    assert model.predict(np.zeros((2, 3))).shape == (2,)


def test_without_a_path_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep_model("", AGREEMENT, Task(7, AGREEMENT.network.initial_weights(PublicStream(1))))
    assert list(tmp_path.iterdir()) == []
