"""What all participants hold alike: equal agreements have equal bytes, and the session follows from them."""

import hashlib
import json
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import InfeasiblePlan, MessageError, UsageError
from dresfl.federation import Agreement, make_session, sharing_nonce
from dresfl.model import Conv2d, Dense, Flatten, Square, SumPool, layer_kinds
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.settings import HiddenSettings

BASE = Agreement((Dense(3), Square(), Dense(2)), (3,), num_clients=9, rounds=50)
CHANGES = {
    "layers": (Dense(4), Square(), Dense(2)),
    "input_shape": (4,),
    "num_clients": 10,
    "rounds": 51,
    "input_bits": 5,
    "weight_bits": 9,
    "target_bits": 6,
    "class_weights": (1, 2),
    "shift": 0.5,
    "input_bound": 2.0,
    "num_shards": 2,
    "max_colluders": 2,
    "batch_size": 65,
    "seed": 1,
    "roster": "ab",
    "max_liars": 1,
    "rows_can_be_computed": "accepted",
    "record": True,
}


def changed(name):
    return replace(
        BASE, **{name: CHANGES[name]}, **({"num_clients": 20} if name in ("num_shards", "max_colluders") else {})
    )


HIDDEN = replace(
    BASE,
    mode="hidden",
    hidden=HiddenSettings(trusted_dealers=True),
    optimizer=Optimizer(method="momentum", learning_rate=0.05),
)
HIDDEN_CHANGES = {
    "schedule": "S2",
    "mask_degree": 1,
    "honest_clients": True,
    "check": "C",
    "trusted_dealers": False,
    "nonnegative_inputs": True,
    "kappa": 80,
    "validation_every": 5,
    "runs": 2,
    "trials": 1,
    "trial": True,
    "model_for": "clients",
    "totals": "confusion",
    "weight_bits": 17,
    "value_bits": 9,
    "error_bits": 13,
}
VALIDATION = {"validation_every": 10, "validation_share": 0.2}


def test_every_field_changes_the_digest():
    assert {*CHANGES, "mode", "hidden", "optimizer", "target_bound"} == {field.name for field in fields(Agreement)}
    digests = {BASE.digest, *(changed(name).digest for name in CHANGES)}
    assert len(digests) == len(CHANGES) + 1
    assert replace(BASE).digest == BASE.digest


def test_every_setting_of_the_hidden_mode_changes_the_digest():
    base = replace(HIDDEN, hidden=replace(HIDDEN.hidden, **VALIDATION))
    named = {*HIDDEN_CHANGES, "validation_share", "patience"}
    assert named == {field.name for field in fields(HiddenSettings)}
    changes = [{name: value} for name, value in HIDDEN_CHANGES.items()]
    changes += [{"validation_share": 0.3}, {"patience": 2}]
    digests = {replace(base, hidden=replace(base.hidden, **change)).digest for change in changes}
    rates = {replace(base, optimizer=replace(base.optimizer, learning_rate=rate)).digest for rate in (0.04, 0.06)}
    assert len(digests | rates | {base.digest, HIDDEN.digest, BASE.digest}) == len(changes) + 5


def test_the_hidden_mode_needs_its_settings_and_the_open_mode_has_none():
    for change in ({"hidden": None}, {"optimizer": None}, {"mode": "open"}):
        with pytest.raises(UsageError, match="mode = "):
            replace(HIDDEN, **change)
    with pytest.raises(UsageError, match="mode = 'secret' is not known"):
        replace(BASE, mode="secret")


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [(Optimizer(method="adam"), "adam"), (Optimizer(method="momentum", max_norm=1.0), "clip")],
)
def test_what_the_hidden_mode_cannot_run_is_refused_by_name(optimizer, message):
    with pytest.raises(UsageError, match=message) as found:
        replace(HIDDEN, optimizer=optimizer)
    assert "momentum" in found.value.hint or "max_norm = 0" in found.value.hint


def test_the_hidden_mode_proves_ranges_unless_dealers_are_said_to_be_trusted():
    """Nobody has to accept anything: what the open mode shows is not shown."""
    for trusted in (True, False):
        agreement = replace(HIDDEN, hidden=HiddenSettings(trusted_dealers=trusted))
        agreement.check_consent()
        assert (agreement.sample_session().range_proof is None) == trusted


def test_a_hidden_session_has_the_plans_threshold_and_network():
    session = make_session(HIDDEN, tuple(range(4, 13)), b"n", b"r")
    assert (session.recovery_threshold, session.answers_needed) == (5, 6)
    assert session.network == HIDDEN.network
    assert session.network.weight_bits == session.hidden_plan.settings.weight_bits == 18
    validating = replace(HIDDEN, hidden=replace(HIDDEN.hidden, **VALIDATION))
    assert make_session(validating, (10,) * 9, b"n", b"r").hidden_plan.validation_rows == 18
    assert validating.sample_session().hidden_plan.validation_rows > 0
    HIDDEN.check_masks()


def test_the_bytes_are_canonical_json():
    encoded = BASE.encode()
    described = json.loads(encoded)
    assert json.dumps(described, sort_keys=True, separators=(",", ":")).encode() == encoded
    assert hashlib.sha256(encoded).digest() == BASE.digest
    assert described["layers"][0] == {"kind": "dense", "units": 3, "weight_bits": None, "init": None}
    assert described["format"] == "dresfl agreement 4"
    assert replace(BASE, input_bound=2, shift=0).encode() == replace(BASE, input_bound=2.0, shift=0.0).encode()


def test_layers_are_called_as_in_configurations():
    layers = (Conv2d(2, 3), Square(), SumPool(2), Flatten(), Dense(2))
    agreement = Agreement(layers, (6, 6, 1), num_clients=9, rounds=1)
    for described, layer in zip(agreement.to_dict()["layers"], layers, strict=True):
        assert layer_kinds()[described["kind"]] is type(layer)


def test_differences_are_named():
    assert BASE.differences(BASE.encode()) == []
    assert BASE.differences(replace(BASE, batch_size=32).encode()) == ["batch_size: 64 here, 32 there"]
    both = BASE.differences(replace(BASE, seed=3, roster="ab").encode())
    assert both == ["roster:  here, ab there", "seed: 0 here, 3 there"]


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.text() | st.floats() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(lambda value: json.dumps(value).encode())
)
def test_differences_of_foreign_bytes_are_short_plain_words(other):
    lines = BASE.differences(other)
    assert 0 < len(lines) <= 20
    assert all(line.isascii() and line.isprintable() and len(line) < 300 for line in lines)


def test_deeply_nested_bytes_are_not_followed():
    assert BASE.differences(b"[" * 4000) == ["theirs cannot be read"]


def test_what_is_much_longer_is_not_read():
    (line,) = BASE.differences(b"[" * 100_000)
    assert line.startswith("theirs has 100000 bytes, ours ")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2**32}, "rounds"),
        ({"shift": float("nan")}, "shift"),
        ({"input_bound": 0.0}, "input_bound"),
        ({"input_bound": float("inf")}, "input_bound"),
        ({"input_bits": 17}, "input_bits"),
        ({"weight_bits": 0}, "weight_bits"),
        ({"batch_size": 0}, "batch_size"),
        ({"seed": -1}, "seed"),
    ],
)
def test_an_impossible_agreement_is_refused_when_made(change, error):
    with pytest.raises(UsageError, match=error):
        replace(BASE, **change)


def test_too_few_clients_are_refused_when_made():
    with pytest.raises(InfeasiblePlan):
        replace(BASE, num_clients=4)


def test_the_session_has_the_agreements_parameters_and_every_nonce_counts():
    rows = tuple(range(4, 13))
    session = make_session(BASE, rows, b"n", b"r")
    assert session.client_rows == rows
    assert (session.num_clients, session.num_shards, session.max_colluders) == (9, 1, 1)
    assert (session.batch_size, session.seed, session.nonce, session.run_nonce) == (64, 0, b"n", b"r")
    assert session.network.input_magnitude == 0.0
    assert replace(BASE, input_bound=8.0).network.input_magnitude == 3.0
    run, sharing = make_session(BASE, rows, b"n", b"s"), make_session(BASE, rows, b"m", b"r")
    assert run.sharing_id == session.sharing_id != sharing.sharing_id
    assert len({session.session_id, run.session_id, sharing.session_id}) == 3
    with pytest.raises(UsageError, match="9 clients"):
        make_session(BASE, rows[1:], b"n", b"r")


def test_the_quantizer_is_the_agreements():
    quantizer = replace(BASE, input_bits=2, shift=0.5).quantizer
    assert quantizer.integers(torch.tensor([0.25])).tolist() == [3]


def test_a_sharings_nonce_depends_on_every_contribution_and_their_order():
    server, parts = b"s" * 16, [bytes([i]) * 64 for i in range(3)]
    nonce = sharing_nonce(server, parts)
    assert nonce == hashlib.sha256(b"dresfl sharing nonce" + server + b"".join(parts)).digest()
    others = [sharing_nonce(b"t" * 16, parts), sharing_nonce(server, parts[::-1]), sharing_nonce(server, parts[:2])]
    assert nonce not in others
    for wrong in ((b"s", parts), (server, [b"x"])):
        with pytest.raises(UsageError):
            sharing_nonce(*wrong)


def test_rounds_that_were_not_agreed_on_are_refused():
    BASE.check_round(BASE.rounds - 1)
    BASE.check_end(BASE.rounds)
    with pytest.raises(MessageError, match="50 rounds are agreed on"):
        BASE.check_round(BASE.rounds)
    for number in (0, BASE.rounds - 1, BASE.rounds + 1):
        with pytest.raises(MessageError, match="50 are agreed on"):
            BASE.check_end(number)


def test_without_a_mask_a_share_would_be_the_row():
    with pytest.raises(UsageError, match="the row itself"):
        replace(BASE, max_colluders=0)


def test_agreements_about_classes_have_the_bytes_that_they_always_had():
    """Participants of earlier releases hold the same agreement, sharing and session."""
    layers = (Dense(4), Square(), Dense(3))
    agreement = Agreement(layers, (5,), num_clients=6, rounds=12)
    session = make_session(agreement, (5, 4, 6, 7, 8, 9), b"n" * 32, b"r" * 16)
    assert agreement.digest.hex().startswith("6602e613884adb77")
    assert session.sharing_digest.hex().startswith("fff5cdd757a547b4")
    assert session.session_id.hex().startswith("851a54bc4fb39274")
    keys = json.loads(agreement.encode()).keys()
    assert not keys & {"target_bits", "target_bound", "class_weights"}


@pytest.mark.parametrize(
    "change", [{"target_bits": 8}, {"target_bits": 8, "target_bound": 4.0}, {"class_weights": (1, 2, 1)}]
)
def test_what_is_new_is_part_of_the_agreement(change):
    plain = Agreement((Dense(3),), (5,), num_clients=6, rounds=12)
    changed = replace(plain, **change)
    assert changed.digest != plain.digest
    assert changed.differences(plain.encode())
    if "target_bits" in change:
        sessions = [make_session(one, (5,) * 6, b"n" * 32, b"r" * 16) for one in (plain, changed)]
        assert sessions[0].sharing_digest != sessions[1].sharing_digest
        assert sessions[0].session_id != sessions[1].session_id
        assert changed.quantizer.target_bits == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target_bound": 4.0}, "target_bound"),
        ({"target_bits": 8, "target_bound": 0.0}, "target_bound"),
        ({"target_bits": 40}, "target_bits"),
        ({"class_weights": (1, 2)}, "class_weights"),
        ({"class_weights": (1, 0, 1)}, "class_weights"),
        ({"class_weights": (1, 2, 1), "target_bits": 8}, "class_weights"),
    ],
)
def test_targets_and_weights_that_cannot_be(change, words):
    with pytest.raises(UsageError, match=words):
        Agreement((Dense(3),), (5,), num_clients=6, rounds=12, **change)
