"""The vectors of the network: this implementation reads every message of them, and refuses what it must."""

import json
from pathlib import Path
from typing import Any

import pytest

from dresfl.errors import MessageError
from dresfl.experiments.vectors.network_vectors import make_network_vectors
from dresfl.federation import Agreement, make_session, messages
from dresfl.model import Dense, Square, weights_sha256
from dresfl.protocol import Task
from dresfl.runtimes.grpc_runtime.weights import WeightReceiver

COMMITTED = Path(__file__).parents[1] / "vectors" / "round.json"
KINDS = {kind.__name__: kind for kind in messages.FROM_CLIENT + messages.FROM_COORDINATOR}


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(COMMITTED.read_text())["network"]
    return found


def test_they_are_the_committed_ones(vectors: dict[str, Any]) -> None:
    assert json.loads(json.dumps(make_network_vectors())) == vectors


HOPS = {"Attested", "Attestations", "Started", "Standing", "HopAnswered", "Opened", "Resume", "Alarm"}
CONFIRMING, SUMS = {"Confirmed", "Confirmations"}, {"Counted", "SetSigned", "Added", "DealersOf", "Release", "TotalsOf"}


def test_every_kind_of_message_is_there_and_is_read(vectors: dict[str, Any]) -> None:
    """Those of hops have vectors of their own; those of sums have none."""
    assert {name.split()[0] for name in vectors["messages"]} == set(KINDS) - HOPS - CONFIRMING - SUMS
    for name, data in vectors["messages"].items():
        found = messages.decode(bytes.fromhex(data), (KINDS[name.split()[0]],))
        assert found.encode().hex() == data


def test_what_must_be_refused_is(vectors: dict[str, Any]) -> None:
    for case in vectors["refused"]:
        with pytest.raises(MessageError):
            messages.decode(bytes.fromhex(case["message"]), (KINDS[case["expected"]],))


def test_a_delta_leads_to_the_later_task(vectors: dict[str, Any]) -> None:
    described = json.loads(vectors["agreement"])
    layers = (Dense(2), Square(), Dense(2, weight_bits=5, init=0.25))
    same = {key: value for key, value in described.items() if key not in ("format", "layers", "input_shape")}
    agreement = Agreement(layers, tuple(described["input_shape"]), **same)
    assert agreement.digest.hex() == vectors["agreement_sha256"]
    nonce, run_nonce = bytes.fromhex(vectors["nonce"]), bytes.fromhex(vectors["run_nonce"])
    session = make_session(agreement, vectors["client_rows"], nonce, run_nonce)
    receiver, found = WeightReceiver(), {name: bytes.fromhex(data) for name, data in vectors["messages"].items()}
    assert receiver.take(found["Weights"]) == found["Weights"]
    weights = messages.Weights.from_body(memoryview(receiver.take(found["Delta"]))[1:])
    assert weights.task.hex() == vectors["later_task"]
    later = Task.decode(weights.task, session)
    assert weights_sha256(later.weights) == vectors["later_weights_sha256"]
    final = Task.decode(messages.Done.from_body(memoryview(found["Done"])[1:]).task, session)
    assert final.round_number == agreement.rounds
    assert final.weights.equal(later.weights)
