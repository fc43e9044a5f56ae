"""One process, N clients: the weights do not depend on who answered, on masks, moduli, threads or the engine."""

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from dresfl.coding import CodeParameters
from dresfl.errors import DataError, MessageError
from dresfl.field import SecretSeed, choose_moduli, unpacked
from dresfl.model import Conv2d, Dense, Flatten, Network, Square, mlp, weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import Answer, Client, Session, Share, Task, Training, encode_rows
from dresfl.runtimes.local import Dropouts, LocalFederation, no_dropouts
from dresfl.runtimes.local import driver as local_driver

NETWORK = mlp((6, 5, 4, 3), input_bits=4, weight_bits=10)  # degree 8
ROUNDS = 50
OPTIMIZER = Optimizer("momentum", learning_rate=0.05, schedule="cosine")


def session_of(num_shards=1, max_colluders=1, spare=2, network=NETWORK, **more):
    clients = network.gradient_degree * (num_shards + max_colluders - 1) + 1 + spare
    client_rows = tuple(3 + i % 5 for i in range(clients))
    return Session(network, CodeParameters(clients, num_shards, max_colluders, 4), client_rows, seed=11, **more)


def data_of(session):
    """Each client's integer rows, the same for every session of the same row counts."""
    generator = torch.Generator().manual_seed(1)
    network, data = session.network, []
    for rows in session.client_rows:
        largest = 2**network.input_bits
        inputs = torch.randint(0, largest + 1, (rows, network.input_size), generator=generator, dtype=torch.int32)
        targets = F.one_hot(torch.randint(network.num_classes, (rows,), generator=generator), network.num_classes)
        data.append((inputs, targets.to(torch.int32)))
    return data


def run(session, engine="coded", dropouts=None, rounds=ROUNDS):
    training = Training(session, OPTIMIZER, rounds)
    dropouts = dropouts or no_dropouts(session.num_clients, seed=2)
    federation = LocalFederation(session, training, data_of(session), dropouts, engine)
    records = [federation.run_round()[0] for _ in range(rounds)]
    return training, records


def fingerprint(*arguments, **more):
    training, records = run(*arguments, **more)
    assert all(record.outcome == "stepped" for record in records)
    return weights_sha256(training.weights)


@pytest.fixture(scope="module")
def expected():
    """The weights of the plain session after 50 rounds, computed on the uncoded rows."""
    return fingerprint(session_of(), engine="direct")


def trace_of(session, seed):
    """Random survivors, R or more in every round, in random order."""
    rng, everybody = random.Random(seed), range(session.num_clients)
    lines = [rng.sample(everybody, rng.randint(session.recovery_threshold, session.num_clients)) for _ in range(13)]
    return Dropouts((0.0,) * session.num_clients, seed, tuple(map(tuple, lines)))


def test_training_changes_the_weights(expected):
    session = session_of()
    assert expected != weights_sha256(session.network.initial_weights(session.stream))
    assert expected != fingerprint(replace(session, seed=12), engine="direct")


@pytest.mark.parametrize("seed", range(3))
def test_coded_equals_direct_whoever_answers(expected, seed):
    session = session_of()
    assert fingerprint(session, dropouts=trace_of(session, seed) if seed else None) == expected


def test_survivors_are_the_first_to_arrive():
    session = session_of()
    dropouts = trace_of(session, 4)
    _, records = run(session, dropouts=dropouts, rounds=5)
    for record in records:
        first = dropouts.answering(record.round_number)[: session.recovery_threshold]
        assert record.survivors == tuple(sorted(first))


@pytest.mark.parametrize("limit", [256, 2**16, 2**22, 2**24])
def test_moduli_do_not_matter(expected, limit):
    moduli = choose_moduli(session_of().needed_bits + 7, more_than=20, limit=limit)
    assert fingerprint(session_of(moduli=moduli)) == expected


def test_threads_do_not_matter(expected):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert fingerprint(session_of()) == expected
    finally:
        torch.set_num_threads(before)


def test_groups_of_clients_do_not_matter(expected, monkeypatch):
    monkeypatch.setattr(local_driver, "_GROUP_BYTES", 1)
    assert fingerprint(session_of()) == expected


@pytest.mark.parametrize("size", [1, 3, 100])
def test_answers_that_are_added_up_on_the_way_give_the_same(expected, monkeypatch, size):
    session = session_of()
    answer_bytes = len(session.field.moduli) * session.network.num_parameters * 8
    monkeypatch.setattr(local_driver, "_ANSWERS_BYTES", 0)
    monkeypatch.setattr(local_driver, "_SUMMED_BYTES", size * answer_bytes)
    monkeypatch.setattr(Training, "receive", None)  # no answer is kept
    assert fingerprint(session) == expected


@pytest.mark.parametrize(("num_shards", "max_colluders"), [(1, 0), (1, 2), (2, 1), (3, 1)])
def test_coded_equals_direct_for_other_shards_and_colluders(num_shards, max_colluders):
    session = session_of(num_shards, max_colluders)
    assert num_shards == 1 or any(rows % num_shards for rows in session.client_rows)
    assert fingerprint(session, rounds=12) == fingerprint(session, engine="direct", rounds=12)


def test_the_number_of_colluders_does_not_matter():
    """With the same rows and seed, more masks change nothing but R."""
    rows = (4,) * 19
    one, two = (Session(NETWORK, CodeParameters(19, 1, t, 4), rows, seed=3) for t in (1, 2))
    assert (one.recovery_threshold, two.recovery_threshold) == (9, 17)
    assert fingerprint(one) == fingerprint(two) == fingerprint(two, dropouts=trace_of(two, 1))


def test_coded_equals_direct_for_a_convolution():
    network = Network((Conv2d(2, 2, 2, 1), Square(), Flatten(), Dense(3)), (4, 5, 1), 4, 8)
    session = session_of(2, 1, network=network)
    assert fingerprint(session) == fingerprint(session, engine="direct")


def test_too_few_answers_are_skipped_by_both_engines():
    session = session_of()
    everybody, few = tuple(range(11)), tuple(range(8))
    dropouts = Dropouts((0.0,) * 11, 0, (everybody, few, few, everybody))
    results = [run(session, engine, dropouts, rounds=8) for engine in ("coded", "direct")]
    for training, records in results:
        assert [r.outcome for r in records] == ["stepped", "skipped", "skipped", "stepped"] * 2
        assert training.done
    assert results[0][1] == results[1][1]
    assert torch.equal(results[0][0].weights, results[1][0].weights)


def test_run_round_says_how_many_answered():
    session = session_of()
    training = Training(session, OPTIMIZER, 4)
    dropouts = Dropouts((0.0,) * 11, 0, (tuple(range(11)), (3, 4), ()))
    federation = LocalFederation(session, training, data_of(session), dropouts, "direct")
    assert [federation.run_round()[1] for _ in range(3)] == [11, 2, 0]


def test_rows_that_do_not_fit_are_refused():
    session = session_of()
    data = data_of(session)
    data[4] = data[4][0][:, :-1], data[4][1]
    with pytest.raises(DataError, match="client 4"):
        LocalFederation(session, Training(session, OPTIMIZER, 1), data, no_dropouts(11, 0), "coded")


# -- real clients ----------------------------------------------------------------------------------------------


def clients_of(session):
    data = data_of(session)
    return [Client(session, i, SecretSeed.fresh(), *data[i]) for i in range(session.num_clients)]


def share_all(session, clients, rng):
    """Every dealer's share for every receiver, in one or two pieces, as bytes, in any order."""
    wires = []
    for dealer in clients:
        rows = session.coded_rows(dealer.index)
        for receiver in range(session.num_clients):
            cut = rng.randint(0, rows - 1)
            pieces = [(0, cut), (cut, rows - cut)] if cut else [(0, rows)]
            wires += [dealer.deal(receiver, first, count).encode(session) for first, count in pieces]
    rng.shuffle(wires)
    for wire in wires:
        share = Share.decode(wire, session)
        clients[share.receiver].receive(share)
    assert all(client.ready for client in clients)


def play(session, seed, rounds, missing):
    """Real clients, bytes only, and a scheduler that loses, delays, repeats and reorders answers."""
    rng = random.Random(seed)
    clients, training = clients_of(session), Training(session, OPTIMIZER, rounds)
    share_all(session, clients, rng)
    flying: list[bytes] = []
    seen = {"late": 0, "twice": 0}
    while not training.done:
        task = training.task().encode(session)
        away = rng.sample(range(session.num_clients), rng.randint(0, missing))
        for client in rng.sample(clients, len(clients)):
            if client.index not in away:
                wire = client.answer(Task.decode(task, session)).encode(session)
                flying += [wire] * rng.choice([1, 1, 1, 2])
        record, answered = None, set()
        while record is None:
            answer = Answer.decode(flying.pop(rng.randrange(len(flying))), session)
            if answer.round_number != training.round_number:
                seen["late"] += 1
                assert training.receive(answer) is None
            elif answer.client in answered:
                seen["twice"] += 1
                with pytest.raises(MessageError, match="twice"):
                    training.receive(answer)
            else:
                answered.add(answer.client)
                record = training.receive(answer)
        assert record.outcome == "stepped"
        assert set(record.survivors) == answered
        assert len(answered) == session.recovery_threshold
        del flying[: rng.randint(0, len(flying))]  # some never arrive, the rest come late
    return weights_sha256(training.weights), seen


def test_real_clients_over_bytes_reach_the_same_weights(expected):
    found, seen = play(session_of(), seed=1, rounds=ROUNDS, missing=2)
    assert found == expected
    assert seen["late"] > 20
    assert seen["twice"] > 20


@given(st.integers(0, 2**32), st.sampled_from([(1, 1), (2, 1), (1, 2)]))
@settings(max_examples=settings().max_examples // 4)
def test_any_schedule_reaches_the_same_weights(seed, sizes):
    network = Network((Dense(3), Square(), Dense(2)), (4,), 3, 6)
    session = session_of(*sizes, network=network)
    assert play(session, seed, rounds=4, missing=2)[0] == fingerprint(session, engine="direct", rounds=4)


@pytest.mark.parametrize(("num_shards", "max_colluders"), [(1, 1), (2, 1), (3, 2)])
def test_rows_encoded_one_by_one_are_the_shares_a_client_deals(num_shards, max_colluders):
    network = Network((Dense(3),), (4,), 3, 6)
    session = session_of(num_shards, max_colluders, network=network)
    data = data_of(session)
    secrets = [SecretSeed.fresh() for _ in data]
    clients = [Client(session, i, secret, *data[i]) for i, secret in enumerate(secrets)]
    batch = session.batch_rows(9)
    rows = [torch.cat(pair, 1) for pair in data]
    shards = torch.stack(
        [rows[d][session.shard_rows(d)[r]] for d, r in zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)]
    )
    keys = torch.stack([secrets[d].mask_key(session.sharing_id) for d in batch.dealers.tolist()])
    lazy = encode_rows(session, keys, batch.rows, shards)  # (M,N,B,W)
    for receiver in range(session.num_clients):
        for place, (dealer, row) in enumerate(zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)):
            dealt = Share.decode(clients[dealer].deal(receiver, row, 1).encode(session), session)
            assert session.field.pack(lazy[:, receiver, place]) == session.field.pack(unpacked(dealt.residues)[:, 0])


# -- many clients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_clients", "num_shards", "max_colluders", "threshold"), [(1000, 1, 1, 9), (1000, 32, 32, 505)]
)
def test_a_thousand_clients_reach_the_weights_of_the_uncoded_rows(
    num_clients, num_shards, max_colluders, threshold, monkeypatch
):
    """And a round computes R answers, however many clients there are."""
    computed = []
    real = local_driver.answers_of

    def counted(session, number, weights, shards, masks, clients):
        computed.append(len(clients))
        return real(session, number, weights, shards, masks, clients)

    monkeypatch.setattr(local_driver, "answers_of", counted)
    session = session_of(num_shards, max_colluders, spare=num_clients - threshold)
    assert (session.num_clients, session.recovery_threshold) == (num_clients, threshold)
    rounds = 3
    assert fingerprint(session, rounds=rounds) == fingerprint(session, engine="direct", rounds=rounds)
    assert sum(computed) == rounds * threshold


def test_many_shards_are_encoded_for_some_clients_at_a_time(monkeypatch):
    session = session_of(4, 4)
    per_client = len(session.field.moduli) * session.batch_size * session.row_width * 8
    answer_bytes = len(session.field.moduli) * session.network.num_parameters * 8
    monkeypatch.setattr(local_driver, "_ANSWERS_BYTES", 0)
    monkeypatch.setattr(local_driver, "_SUMMED_BYTES", 3 * answer_bytes)
    monkeypatch.setattr(local_driver, "_CODED_BYTES", 10 * per_client)
    monkeypatch.setattr(local_driver, "encoded_gradient", None)  # they are not encoded one by one
    assert fingerprint(session, rounds=5) == fingerprint(session, engine="direct", rounds=5)


def test_answers_that_somebody_looks_at_are_kept(monkeypatch):
    monkeypatch.setattr(local_driver, "_ANSWERS_BYTES", 0)
    monkeypatch.setattr(local_driver, "decode_part", None)
    session = session_of(spare=4)
    liars = replace(session, parameters=replace(session.parameters, max_liars=1))
    assert fingerprint(liars, rounds=3) == fingerprint(session, engine="direct", rounds=3)
    training = Training(session, OPTIMIZER, 3)
    blinded = LocalFederation(session, training, data_of(session), no_dropouts(13, 2), "coded", blinded=True)
    assert all(blinded.run_round()[0].outcome == "stepped" for _ in range(3))
    assert weights_sha256(training.weights) == fingerprint(session, engine="direct", rounds=3)


def test_a_thousand_clients_with_one_answer_too_few_skip_the_round():
    session = session_of(32, 32, spare=495)
    few = tuple(range(300, 804))
    training, records = run(session, dropouts=Dropouts((0.0,) * 1000, 0, (few,)), rounds=1)
    assert (records[0].outcome, records[0].reason) == ("skipped", "0 of 505 answers")
    assert weights_sha256(training.weights) == weights_sha256(session.network.initial_weights(session.stream))
