"""The vectors of the network: this implementation reads every frame of them, and refuses what it must."""

import json
from pathlib import Path
from typing import Any

import pytest

from dresfl.errors import MessageError
from dresfl.experiments.vectors.network_vectors import make_network_vectors
from dresfl.federation import Agreement, make_session
from dresfl.model import Dense, Square
from dresfl.protocol import Task
from dresfl.runtimes.grpc_runtime import frames
from dresfl.runtimes.grpc_runtime.weights import WeightReceiver

COMMITTED = Path(__file__).parents[1] / "vectors" / "round.json"


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(COMMITTED.read_text())["network"]
    return found


def test_they_are_the_committed_ones(vectors: dict[str, Any]) -> None:
    assert json.loads(json.dumps(make_network_vectors())) == vectors


def test_every_kind_of_frame_is_there_and_is_read(vectors: dict[str, Any]) -> None:
    kinds = {name: kind for name, kind in vars(frames).items() if hasattr(kind, "KIND")}
    assert {name.split()[0] for name in vectors["frames"]} == set(kinds)
    for name, data in vectors["frames"].items():
        frame = frames.decode(bytes.fromhex(data), kinds[name.split()[0]])
        assert frame.encode().hex() == data


def test_what_must_be_refused_is(vectors: dict[str, Any]) -> None:
    for case in vectors["refused"]:
        with pytest.raises(MessageError):
            frames.decode(bytes.fromhex(case["frame"]), getattr(frames, case["expected"]))


def test_a_delta_leads_to_the_later_task(vectors: dict[str, Any]) -> None:
    described = json.loads(vectors["agreement"])
    layers = (Dense(2), Square(), Dense(2, weight_bits=5, init=0.25))
    same = {key: value for key, value in described.items() if key not in ("format", "layers", "input_shape")}
    agreement = Agreement(layers, tuple(described["input_shape"]), **same)
    assert agreement.digest.hex() == vectors["agreement_sha256"]
    nonce, run_nonce = bytes.fromhex(vectors["nonce"]), bytes.fromhex(vectors["run_nonce"])
    session = make_session(agreement, vectors["client_rows"], nonce, run_nonce)
    receiver, found = WeightReceiver(session), vectors["frames"]
    receiver.take(frames.decode(bytes.fromhex(found["Weights"]), frames.Weights))
    task = receiver.take(frames.decode(bytes.fromhex(found["Delta"]), frames.Delta))
    assert task.encode(session).hex() == vectors["later_task"]
    final = Task.decode(frames.decode(bytes.fromhex(found["Done"]), frames.Done).task, session)
    assert final.round_number == agreement.rounds
    assert final.weights.equal(task.weights)
