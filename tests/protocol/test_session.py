"""What all participants agree on: sharding, batches, fields, the session's fingerprint."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.coding import CodeParameters
from dresfl.errors import DataError, FieldError, UsageError
from dresfl.field import ByteField, Domain, PublicStream, ResidueField, choose_moduli
from dresfl.model import Conv2d, Dense, Flatten, Network, Square, layer_kinds, mlp
from dresfl.protocol import Session, choose_field, most_client_rows

NETWORK = Network((Dense(2),), (3,), 2, 4)


def session_of(client_rows, num_shards=1, batch_size=4, seed=7, **more):
    clients = 2 * num_shards + 1  # degree 2, one colluder
    client_rows = tuple(client_rows) + (5,) * (clients - len(client_rows))
    return Session(NETWORK, CodeParameters(len(client_rows), num_shards, 1, batch_size), client_rows, seed, **more)


sizes = st.tuples(st.lists(st.integers(1, 13), min_size=1, max_size=4), st.integers(1, 5))


class Draws:
    """A common stream whose draws are given: one place in each stratum."""

    def __init__(self, fraction):
        self.draw = int(fraction * 2**64)

    def words_of(self, domain, indices, count):
        high, low = divmod(self.draw, 2**32)
        return torch.tensor([high, low] * (count // 2)).expand(len(indices), count)


def selected(session, fraction):
    """The coded rows when every stratum is hit at the same fraction of its length."""
    session = replace(session)
    session.__dict__["stream"] = Draws(fraction)
    batch = session.batch_rows(0)
    return list(zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True))


@given(sizes)
def test_every_original_row_enters_with_expectation_k_per_sweep(drawn):
    """With one stratum per original row, each draws exactly that row: the whole mapping, enumerated."""
    client_rows, num_shards = drawn
    session = session_of(client_rows, num_shards)
    total = sum(session.client_rows)
    chosen = selected(replace(session, parameters=replace(session.parameters, batch_size=total)), 0.5)
    entered = Counter()
    for dealer, row in chosen:
        entered.update((dealer, original) for original in session.shard_rows(dealer)[row].tolist())
    everything = [(i, row) for i, rows in enumerate(session.client_rows) for row in range(rows)]
    # one draw of m picks any original row alike, so K entries over the m places is K/m per draw
    assert entered == Counter(dict.fromkeys(everything, num_shards))


@given(sizes, st.data())
def test_an_excluded_dealers_rows_enter_no_batch_and_all_others_do_alike(drawn, data):
    client_rows, num_shards = drawn
    session = session_of(client_rows, num_shards)
    clients = st.sets(st.integers(0, session.num_clients - 1), max_size=session.num_clients - 1)
    session = session.without(data.draw(clients))
    total = sum(session.client_rows[client] for client in session.included)
    chosen = selected(replace(session, parameters=replace(session.parameters, batch_size=total)), 0.5)
    entered = Counter()
    for dealer, row in chosen:
        entered.update((dealer, original) for original in session.shard_rows(dealer)[row].tolist())
    everything = [(i, row) for i in session.included for row in range(session.client_rows[i])]
    assert entered == Counter(dict.fromkeys(everything, num_shards))
    batch = session.batch_rows(data.draw(st.integers(0, 100)))
    assert set(batch.dealers.tolist()) <= set(session.included)


def test_excluded_dealers_are_named_in_order_and_some_are_left():
    session = session_of((3, 4, 5))
    assert session.without([]) == session
    assert session.without([2]).without([0, 2]).excluded == (0, 2)
    assert session.without([2]).included == (0, 1)
    for wrong in ((1, 0), (1, 1), (3,), (-1,), (0, 1, 2)):
        with pytest.raises(UsageError, match="excluded"):
            replace(session, excluded=wrong)


@given(sizes)
def test_shards_hold_every_row_once_and_leftovers_k_times(drawn):
    client_rows, num_shards = drawn
    session = session_of(client_rows, num_shards)
    for client, rows in enumerate(session.client_rows):
        hidden = session.shard_rows(client)
        assert tuple(hidden.shape) == (session.coded_rows(client), num_shards)
        whole = rows - rows % num_shards
        expected = {row: 1 if row < whole else num_shards for row in range(rows)}
        assert Counter(hidden.flatten().tolist()) == Counter(expected)
        assert session.coded_rows(client) == rows // num_shards + rows % num_shards
        # a leftover is not merely repeated within one coded row: the others take turns beside it
        assert all(len(set(row)) == min(num_shards, rows - whole) for row in hidden[whole // num_shards :].tolist())


@given(sizes, st.integers(1, 40), st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1))
def test_batches_are_valid_repeatable_and_even(drawn, batch_size, round_number, seed):
    session = session_of(*drawn, batch_size=batch_size, seed=seed)
    batch = session.batch_rows(round_number)
    assert batch.dealers.shape == batch.rows.shape == (batch_size,)
    again = replace(session).batch_rows(round_number)
    assert torch.equal(batch.dealers, again.dealers)
    assert torch.equal(batch.rows, again.rows)
    for dealer, row in zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True):
        assert 0 <= row < session.coded_rows(dealer)
    share = batch_size / sum(session.client_rows)
    for client, rows in enumerate(session.client_rows):
        assert abs(int((batch.dealers == client).sum()) - share * rows) < 2


def test_the_ends_of_every_stratum_stay_inside():
    session = session_of((3, 1, 4), batch_size=5)
    for fraction in (0.0, 1 - 2**-53):
        assert all(0 <= row < session.coded_rows(dealer) for dealer, row in selected(session, fraction))
    assert selected(session, 0.0)[0] == (0, 0)
    assert selected(session, 1 - 2**-53)[-1] == (2, session.coded_rows(2) - 1)


def test_each_row_comes_as_often_as_any_other_over_many_rounds():
    session = session_of((3, 7, 1, 4, 2), num_shards=2, batch_size=6)
    rounds, total = 600, sum(session.client_rows)
    entered = Counter()
    for round_number in range(rounds):
        batch = session.batch_rows(round_number)
        for dealer, row in zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True):
            entered.update((dealer, original) for original in session.shard_rows(dealer)[row].tolist())
    assert len(entered) == total
    # stratified draws vary less than binomial ones: five of their standard deviations
    expected = rounds * 6 * 2 / total
    assert max(abs(count - expected) for count in entered.values()) < 5 * (2 * expected) ** 0.5


def test_rounds_and_seeds_draw_different_rows():
    session = session_of((100, 100, 100), batch_size=16)
    draws = [session.batch_rows(0).rows, session.batch_rows(1).rows, replace(session, seed=8).batch_rows(0).rows]
    assert len({tuple(rows.tolist()) for rows in draws}) == 3


def test_batches_come_from_their_own_stream():
    session = session_of((5,), batch_size=1)
    high, low = PublicStream(7).words(Domain.BATCH, 3, 2).tolist()
    place = (high << 32 | low) * 15 >> 64
    batch = session.batch_rows(3)
    assert (int(batch.dealers), int(batch.rows)) == divmod(place, 5)


# -- the fingerprint -------------------------------------------------------------------------------------------


def test_session_id_depends_on_every_parameter():
    base = Session(mlp((3, 2, 2), input_bits=4, weight_bits=6), CodeParameters(10, 1, 2, 4), (5,) * 10, seed=7)
    moduli = base.field.moduli
    network = base.network
    changed = [
        base,
        replace(base, parameters=replace(base.parameters, num_clients=11), client_rows=(5,) * 11),
        replace(base, parameters=replace(base.parameters, num_shards=2, max_colluders=1)),
        replace(base, parameters=replace(base.parameters, max_colluders=1)),
        replace(base, parameters=replace(base.parameters, batch_size=5), moduli=moduli),
        replace(base, client_rows=(6, 4, *(5,) * 8), moduli=moduli),
        replace(base, client_rows=(4, 6, *(5,) * 8), moduli=moduli),
        replace(base, seed=8),
        replace(base, nonce=b"1"),
        replace(base, run_nonce=b"1"),
        base.without([2]),
        base.without([2, 3]),
        replace(base, moduli=choose_moduli(base.needed_bits + 24, more_than=13)),
        replace(base, network=replace(network, input_bits=3), moduli=moduli),
        replace(base, network=replace(network, weight_bits=5), moduli=moduli),
        replace(base, network=mlp((4, 2, 2), input_bits=4, weight_bits=6), moduli=moduli),
        replace(base, network=mlp((3, 3, 2), input_bits=4, weight_bits=6), moduli=moduli),
        replace(base, network=replace(network, layers=(Dense(2, init=0.3), Square(), Dense(2))), moduli=moduli),
        replace(base, network=replace(network, layers=(Dense(2, weight_bits=5), Square(), Dense(2))), moduli=moduli),
    ]
    ids = [session.session_id for session in changed]
    assert all(len(i) == 16 for i in ids)
    assert len(set(ids)) == len(ids)


def test_sharing_id_depends_on_what_decides_shares_and_on_nothing_else():
    base = Session(mlp((3, 2, 2), input_bits=4, weight_bits=6), CodeParameters(10, 1, 2, 4), (5,) * 10, seed=7)
    moduli = base.field.moduli
    network = base.network
    base = replace(base, moduli=moduli)
    other_shares = [
        base,
        replace(base, parameters=replace(base.parameters, num_clients=11), client_rows=(5,) * 11),
        replace(base, parameters=replace(base.parameters, num_shards=2, max_colluders=1)),
        replace(base, parameters=replace(base.parameters, max_colluders=1)),
        replace(base, client_rows=(6, 4, *(5,) * 8)),
        replace(base, client_rows=(4, 6, *(5,) * 8)),
        replace(base, moduli=choose_moduli(base.needed_bits + 24, more_than=13)),
        replace(base, network=replace(network, input_bits=3)),
        replace(base, network=mlp((4, 2, 2), input_bits=4, weight_bits=6)),
        replace(base, network=mlp((4, 2, 1), input_bits=4, weight_bits=6)),  # as wide as the first, cut elsewhere
        replace(base, nonce=b"1"),
        replace(base, nonce=b"2"),
    ]
    ids = [session.sharing_id for session in other_shares]
    assert all(len(i) == 16 for i in ids)
    assert len(set(ids)) == len(ids)
    assert len({session.session_id for session in other_shares}) == len(ids)
    same_shares = [
        replace(base, seed=8),
        replace(base, parameters=replace(base.parameters, batch_size=5)),
        replace(base, run_nonce=b"1"),
        base.without([1]),
        replace(base, network=replace(network, weight_bits=5)),
        replace(base, network=replace(network, layers=(Dense(4), Square(), Dense(2)))),
    ]
    assert {session.sharing_id for session in same_shares} == {base.sharing_id}
    assert len({session.session_id for session in [base, *same_shares]}) == 7


def test_session_id_is_the_same_for_equal_parameters():
    assert session_of((3,)).session_id == session_of((3,)).session_id
    chosen = session_of((3,)).field.moduli
    assert session_of((3,), moduli=chosen).session_id == session_of((3,)).session_id


def test_a_layers_class_may_be_renamed():
    """Digests hold a layer's kind, not the name of its class."""
    before, names = session_of((3,)).session_id, {layer: layer.__name__ for layer in layer_kinds().values()}
    try:
        for layer, name in names.items():
            layer.__name__ = layer.__qualname__ = f"Renamed{name}"
        assert session_of((3,)).session_id == before
    finally:
        for layer, name in names.items():
            layer.__name__ = layer.__qualname__ = name


# -- checks ----------------------------------------------------------------------------------------------------


def test_chosen_moduli_hold_the_needed_bits_above_all_points():
    session = session_of((3, 4), num_shards=3)
    assert session.field.value_bound >= 2**session.needed_bits
    spare = session.field.moduli[session.field.num_value_moduli :]
    assert session.field.modulus >= 2**20 * 2**session.needed_bits
    assert len(spare) >= 1
    assert min(session.field.moduli) > session.num_clients + session.num_shards + session.max_colluders


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"client_rows": (0, 0, 0)}, DataError, "no client has rows"),
        ({"client_rows": (5, 5)}, UsageError, "3 clients, but row counts of 2"),
        ({"seed": -1}, UsageError, "seed must lie in"),
        ({"seed": 2**63}, UsageError, "seed must lie in"),
        ({"parameters": CodeParameters(2), "client_rows": (5, 5)}, UsageError, "2 clients cannot decode"),
        ({"moduli": (16777183,)}, UsageError, "the moduli hold too little"),
        ({"moduli": (101, 103, 107)}, UsageError, "the moduli hold too little"),
        ({"moduli": (3, 16777183, 16777199, 16777213)}, UsageError, "no room for 5 distinct points"),
        ({"moduli": (16777213, 16777199, 16777183)}, FieldError, "ascending"),
        ({"moduli": (16777183, 16777213, 16777213)}, FieldError, "distinct"),
        ({"moduli": (16777183, 16777213, 16777215)}, FieldError, "not an odd prime"),
    ],
)
def test_impossible_sessions_are_refused(changes, error, words):
    base = session_of((5, 5, 5))
    with pytest.raises(error, match=words):
        replace(base, **changes)


# -- which field -----------------------------------------------------------------------------------------------


def field_kind(monkeypatch, *, fused=True, clients=20, sizes=(1100, 1000, 10), weight_bits=10):
    monkeypatch.setattr("dresfl.protocol.session.fused_kernels", lambda device: fused)
    network = mlp(sizes, input_bits=4, weight_bits=weight_bits)
    return choose_field(network, CodeParameters(clients))


def test_large_layers_take_bytes_where_int8_kernels_run(monkeypatch):
    field = field_kind(monkeypatch)
    assert isinstance(field, ByteField)
    assert 22 < min(field.moduli) < max(field.moduli) < 256


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": (784, 64, 10)},  # too small to be worth it
        {"clients": 240},  # more points than small primes have room for
        {"sizes": (1100, 1000, 8, 8, 10), "weight_bits": 14},  # more bits than all primes below 256 hold
    ],
)
def test_everything_else_takes_float64(monkeypatch, change):
    field = field_kind(monkeypatch, **change)
    assert isinstance(field, ResidueField)
    assert max(field.moduli) > 2**20


def test_the_moduli_do_not_depend_on_the_device(monkeypatch):
    on_gpu, on_cpu = field_kind(monkeypatch), field_kind(monkeypatch, fused=False)
    assert isinstance(on_cpu, ResidueField)
    assert on_cpu.moduli == on_gpu.moduli
    assert on_cpu.value_bound == on_gpu.value_bound


def test_long_sums_take_large_primes(monkeypatch):
    layers = (Conv2d(16, 5), Square(), Flatten(), Dense(128), Square(), Dense(10))
    monkeypatch.setattr("dresfl.protocol.session.fused_kernels", lambda device: True)
    field = choose_field(Network(layers, (28, 28, 1), 4, 10), CodeParameters(20))
    assert isinstance(field, ResidueField)


@pytest.mark.parametrize("batch_size", [1, 64, 2**40])
def test_as_many_rows_as_a_client_may_have(batch_size: int):
    """If each has so many, they fit; with one more each, they do not."""
    most = most_client_rows(CodeParameters(3, batch_size=batch_size))
    assert 3 * most < 2**31
    assert batch_size * 3 * most < 2**62
    assert 3 * (most + 1) >= 2**31 or batch_size * 3 * (most + 1) >= 2**62


def test_a_session_of_as_many_rows_as_clients_may_have():
    network, most = Network((Dense(2),), (3,), input_bits=4, weight_bits=10), most_client_rows(CodeParameters(3))
    assert Session(network, CodeParameters(3), (most,) * 3, seed=0).client_rows == (most,) * 3
    with pytest.raises(UsageError, match="rows are not supported"):
        Session(network, CodeParameters(3), (most + 1,) * 3, seed=0)
