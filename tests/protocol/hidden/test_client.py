"""Hidden runs in one process: the same bits whoever answers, clients that return, and what a client refuses."""

import dataclasses
import itertools
import random

import pytest
import torch

from dresfl.errors import Diverged, HeadroomAlarm, MessageError, Refused, StoreError, TooFewAnswers
from dresfl.protocol.hidden.archive import decode_history, encode_history
from dresfl.protocol.hidden.client import HiddenClient, Progress
from dresfl.protocol.hidden.coded_rows import TableRows
from dresfl.protocol.hidden.ledger import History, Position, WeightBroadcast
from dresfl.protocol.hidden.published import opened_digest
from dresfl.protocol.hidden.seeds import RunSeeds
from dresfl.protocol.sums import accuracy_plan
from dresfl.runtimes.local.hidden import HiddenFederation

from .runs import small_federation

SETTINGS = [
    {"num_clients": 6},
    {"num_clients": 6, "sizes": (6, 3)},
    {"num_clients": 7, "sizes": (5, 4, 4, 3), "rounds": 2},
    {"num_clients": 6, "schedule": "S2", "rounds": 2},
    {"num_clients": 8, "max_colluders": 2, "schedule": "S2", "rounds": 2},
    {"num_clients": 11, "num_shards": 2, "rounds": 2},
    {"num_clients": 7, "num_shards": 2, "schedule": "S2", "rounds": 2},
    {"num_clients": 6, "check": "C"},
    {"num_clients": 6, "model_for": "clients"},
    {"num_clients": 6, "validation_every": 2, "validation_share": 0.4},
    {"num_clients": 5, "honest_clients": True},
]


def absences(federation: HiddenFederation, seed: int):
    rng, session = random.Random(seed), federation.session
    spare = session.num_clients - session.answers_needed
    return lambda round_number, hop: rng.sample(range(session.num_clients), rng.randint(0, spare))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_same_bits_come_out_whoever_answers(settings):
    federation = small_federation(**settings)
    model = federation.play()
    published = [opened.published for opened in federation.published]
    for seed in range(2):
        federation.restart()
        assert federation.play(absences(federation, seed)).equal(model)
        assert [opened.published for opened in federation.published] == published
        assert all(client.model is not None and client.model.equal(model) for client in federation.clients)


def test_another_run_digest_gives_other_masks_and_another_start():
    first, second = (small_federation(run=bytes([n]) * 32) for n in (1, 2))
    second.dealt = first.dealt
    second.tables = first.tables
    second.restart()
    assert first.play_hop().published != second.play_hop().published
    one, other = first.session, second.session
    assert not one.hidden_plan.initial_weights(one.stream).equal(other.hidden_plan.initial_weights(other.stream))
    assert not one.batch_rows(0).rows.equal(other.batch_rows(0).rows)


def test_too_few_answers_open_nothing():
    federation = small_federation(num_clients=6)
    with pytest.raises(TooFewAnswers, match="5 of 6"):
        federation.collect(absent=[2])


# -- clients that were away --------------------------------------------------------------------------------------


def returned(federation: HiddenFederation, index: int, *, long: bool = False, kept: Progress | None = None):
    """A new process of a client, after it has caught up."""
    session = federation.session
    seeds = RunSeeds.begin(federation.dealt[index], session.run)
    client = HiddenClient(session, index, TableRows(session, federation.tables[index]), seeds, kept=kept)
    client.start(session.num_clients)
    client.catch_up(decode_history(encode_history(federation.history(long=long))))
    return client


LINEAR, VALIDATING = {"sizes": (6, 3)}, {"validation_every": 2, "validation_share": 0.4}


@pytest.mark.parametrize(
    ("settings", "hops"),
    [*(({}, hops) for hops in (1, 2, 3, 4, 8)), (LINEAR, 1), (LINEAR, 3), *((VALIDATING, hops) for hops in (5, 8, 10))],
    ids=str,
)
def test_a_client_that_was_away_goes_on_with_the_same_bits(settings, hops):
    federation = small_federation(num_clients=7, rounds=4, **settings)
    model = federation.play()
    federation.restart()
    for _ in range(hops):
        if federation.ledger.ended:
            return
        federation.play_hop(absent=[6])
    if federation.ledger.ended:
        return
    federation.clients[6] = client = returned(federation, 6)
    assert client.ledger.position == federation.ledger.position
    at_start_of_round = federation.ledger.hop == 0
    assert (client.answer() is None) == at_start_of_round  # it has no check value of a round that it was away for
    if at_start_of_round:
        federation.play_hop(absent=[6])
    if not federation.ledger.ended:
        federation.play_hop(absent=[0])  # now its answers are needed
    assert federation.play().equal(model)
    assert client.model is not None
    assert client.model.equal(model)


def test_a_long_history_earns_the_check_value_of_the_round_before():
    federation = small_federation(num_clients=6, rounds=4)
    model = federation.play()
    federation.restart()
    while federation.ledger.position.order != (3, 0):
        federation.play_hop()
    federation.clients[5] = returned(federation, 5, long=True)
    assert federation.play().equal(model)  # six of six must answer


def test_a_client_that_was_away_is_sent_little():
    federation = small_federation(num_clients=7, rounds=12, sizes=(6, 5, 3))
    while federation.ledger.position.order != (10, 2):
        federation.play_hop(absent=[6])
    session = federation.session
    plan, field = session.hidden_plan, session.field
    most = (2 * session.network.num_parameters + 2 * 4 * 5 + 4 * 3 + 8) * len(plan.moduli) * field.residue_bytes
    assert len(encode_history(federation.history())) <= most + 2**10


def test_a_restarted_client_answers_with_the_same_bytes():
    federation = small_federation(num_clients=6)
    kept: list[Progress] = []
    session = federation.session
    client = HiddenClient(
        session,
        2,
        TableRows(session, federation.tables[2]),
        RunSeeds.begin(federation.dealt[2], session.run),
        keep=kept.append,
    )
    client.start(6)
    federation.clients[2] = client
    for _ in range(4):
        federation.play_hop()
    answer = client.answer()
    again = returned(federation, 2, kept=kept[-1])
    twin = again.answer()
    assert answer is not None
    assert twin is not None
    assert answer.encode(session.field) == twin.encode(session.field)


def test_a_client_does_not_go_back_or_along_another_course():
    federation = small_federation(num_clients=6)
    for _ in range(4):
        federation.play_hop()
    early = federation.history()
    position = federation.ledger.position
    federation.play_hop()
    federation.clients[1].answer()
    later = Progress(federation.ledger.position)
    session = federation.session

    def anew(kept: Progress) -> HiddenClient:
        seeds = RunSeeds.begin(federation.dealt[1], session.run)
        return HiddenClient(session, 1, TableRows(session, federation.tables[1]), seeds, kept=kept)

    client = anew(later)
    assert client.behind
    assert client.answer() is None
    with pytest.raises(Refused, match="go back"):
        client.catch_up(early)
    other = anew(Progress(Position(*position.order, bytes(32))))
    with pytest.raises(Refused, match="another course"):
        other.catch_up(early)
    with pytest.raises(Refused, match="left the run for good"):
        other.answer()


def test_old_seeds_are_forgotten():
    federation = small_federation(num_clients=6, rounds=8)
    while federation.ledger.round_number < 6:
        federation.play_hop()
    seeds = federation.clients[0]._seeds
    with pytest.raises(Exception, match="forgotten"):
        seeds.of(2)
    assert seeds.of(3)


# -- a coordinator that cheats -----------------------------------------------------------------------------------


def publish_falsely(federation: HiddenFederation, change, hops: int = 2) -> None:
    """Play some hops, then publish another thing than what was opened."""
    for _ in range(hops):
        federation.play_hop()
    opened = federation.collect()
    session, hop = federation.session, federation.ledger.current
    shards = 1 if hop.total else session.num_shards
    residues = session.field.unpack(opened.published, (shards, hop.count))
    change(residues)
    federation.publish(session.field.pack(session.field.add(residues, torch.zeros_like(residues))))


def plus_one(residues):
    residues[:, 0, 0] += 1


def one_residue(residues):
    residues[2, 0, 0] += 1


@pytest.mark.parametrize("change", [plus_one, one_residue])
@pytest.mark.parametrize(
    ("settings", "hops"),
    [*(({"num_clients": 6}, hops) for hops in range(4)), *(({"num_clients": 11, "num_shards": 2}, h) for h in (0, 2))],
    ids=str,
)
def test_after_a_false_hop_nothing_more_is_opened(settings, hops, change):
    federation = small_federation(**settings)
    try:
        publish_falsely(federation, change, hops)
    except (HeadroomAlarm, Diverged):
        return  # it was seen at once
    with pytest.raises(TooFewAnswers):
        federation.collect()


def test_a_shift_by_all_primes_but_one_withholds_the_key_too():
    """It changes one residue alone, but the low bits of the whole number: a check for each channel would miss it."""
    federation = small_federation(num_clients=6)
    moduli = federation.session.field.moduli

    def shift(residues):
        residues[3, 0, :] += float(pow(federation.session.field.modulus // moduli[3], 1, moduli[3]))

    def play() -> None:
        publish_falsely(federation, shift, 0)
        federation.collect()

    with pytest.raises((HeadroomAlarm, TooFewAnswers)):  # where it stays within the masks' range, the key is withheld
        play()


def test_a_false_hop_is_not_forgotten_when_a_true_one_follows():
    """The sums of a round's check values: without them the loss, which can be guessed, would wipe a false hop out."""
    federation = small_federation(num_clients=6, validation_every=1, validation_share=0.4)
    hops = federation.ledger.hops
    before_loss = len(hops) - 2
    for _ in range(before_loss):
        federation.play_hop()
    publish_falsely(federation, plus_one, 0)
    assert federation.ledger.current.opens_loss
    loss = shares_open(federation)
    federation.publish(loss)  # whoever guesses it publishes it truly
    with pytest.raises(TooFewAnswers):
        federation.collect()


def shares_open(federation: HiddenFederation) -> bytes:
    """What the next hop truly opens, from the clients' own values: what nobody but a guesser would know."""
    session, hop = federation.session, federation.ledger.current
    chosen = federation.clients[: session.recovery_threshold]
    values = torch.stack([client._hidden_hop().values for client in chosen], 1)
    survivors = [client.index for client in chosen]
    code = session.code
    opened = code.decode_sum(values, survivors).unsqueeze(1) if hop.total else code.decode(values, survivors)
    return session.field.pack(opened)


def test_two_groups_that_are_told_different_things_do_not_meet_again():
    federation = small_federation(num_clients=12)
    opened = federation.collect()
    session = federation.session
    residues = session.field.unpack(opened.published, (1, federation.ledger.current.count))
    residues[:, 0, 3] += 1
    false = session.field.pack(session.field.add(residues, torch.zeros_like(residues)))
    for client in federation.clients[:6]:
        client.receive(opened.published)
    for client in federation.clients[6:]:
        client.receive(false)
    federation.note(opened.published)
    answers = [client.answer() for client in federation.clients]
    chains = {answer.position.chain for answer in answers if answer is not None}
    assert len(chains) == 2
    assert federation.collect().survivors == tuple(range(6))


def test_residues_outside_their_range_are_refused():
    """x + p is the same residue, but other bytes: it would fork the chain."""
    federation = small_federation(num_clients=6)
    published = bytearray(federation.collect().published)
    size, p = federation.session.field.residue_bytes, federation.session.field.moduli[0]
    published[:size] = (p + 5).to_bytes(size, "little")
    with pytest.raises(MessageError, match="not below its modulus"):
        federation.clients[0].receive(bytes(published))


def test_values_far_outside_the_masks_range_stop_a_client_for_good():
    federation = small_federation(num_clients=6)
    opened = federation.collect()
    session = federation.session
    field = session.field
    residues = field.unpack(opened.published, (1, federation.ledger.current.count))
    far = field.add_integer(residues, -(field.modulus // 4))
    client = federation.clients[0]
    with pytest.raises(HeadroomAlarm, match="outside its range"):
        client.receive(field.pack(far))
    for call in (
        client.answer,
        lambda: client.receive(opened.published),
        lambda: client.catch_up(federation.history()),
    ):
        with pytest.raises(Refused, match="left the run for good"):
            call()


def test_no_answer_before_enough_clients_have_signed_the_start():
    federation = small_federation(num_clients=6)
    session = federation.session
    seeds = RunSeeds.begin(federation.dealt[0], session.run)
    client = HiddenClient(session, 0, TableRows(session, federation.tables[0]), seeds)
    assert client.answer() is None
    with pytest.raises(MessageError, match="3 clients have signed"):
        client.start(3)
    client.start(4)
    assert client.answer() is not None


# -- clients that lie --------------------------------------------------------------------------------------------


def lying(answer, field, *, key: bool):
    """An answer with one residue changed, in the values or in the key's share."""
    part = (answer.key if key else answer.residues).clone()
    part[1, 0] += 1
    part = field.add(part, torch.zeros_like(part))
    return dataclasses.replace(answer, **{"key" if key else "residues": part})


@pytest.mark.parametrize("key", [True, False])
def test_a_liar_is_found_and_left_out(key, monkeypatch):
    federation = small_federation(num_clients=8, max_liars=1)
    model = federation.play()
    federation.restart()
    honest = HiddenClient.answer
    field = federation.session.field

    def answer(self):
        found = honest(self)
        return lying(found, field, key=key) if found is not None and self.index == 2 else found

    monkeypatch.setattr(HiddenClient, "answer", answer)
    assert federation.play().equal(model)
    assert {liar for opened in federation.published for liar in opened.liars} == {2}


def test_one_liar_among_no_spare_answers_opens_nothing(monkeypatch):
    """R + T answers that agree are needed: with R, a garbled hop is published and rows are read off the next."""
    federation = small_federation(num_clients=6)
    honest, field = HiddenClient.answer, federation.session.field
    monkeypatch.setattr(
        HiddenClient,
        "answer",
        lambda self: lying(honest(self), field, key=False) if self.index == 2 else honest(self),
    )
    with pytest.raises(TooFewAnswers):
        federation.collect()


def test_check_c_stops_a_client_whose_own_value_is_the_outlier():
    federation = small_federation(num_clients=8, check="C")
    opened = federation.collect()
    federation.note(opened.published)
    for client in federation.clients:
        client.receive(opened.published)
    values = {client.index: client.check_value for client in federation.clients}
    wrong = values[3] + 1
    federation.clients[3]._own = wrong
    honest = {**values, 3: wrong}
    federation.clients[0].confirm(honest)  # seven of eight agree: R + T = 6
    with pytest.raises(HeadroomAlarm, match="not on the polynomial"):
        federation.clients[3].confirm(honest)
    with pytest.raises(Refused):
        federation.clients[3].answer()


def test_check_c_sees_a_false_hop_before_anything_more_is_sent():
    federation = small_federation(num_clients=6, check="C")
    opened = federation.collect()
    session = federation.session
    residues = session.field.unpack(opened.published, (1, federation.ledger.current.count))
    residues[:, 0, 2] += 1
    false = session.field.pack(session.field.add(residues, torch.zeros_like(residues)))
    for client in federation.clients:
        client.receive(false)
        assert client.answer() is None
    values = {client.index: client.check_value for client in federation.clients}
    with pytest.raises(MessageError, match="4 clients confirm"):
        federation.clients[0].confirm(dict(itertools.islice(values.items(), 4)))
    with pytest.raises(HeadroomAlarm, match="not published as the clients sent it"):
        federation.clients[0].confirm(values)


def test_nothing_leaves_a_client_whose_disk_has_failed():
    federation = small_federation(num_clients=6)
    session, written, full = federation.session, list[Progress](), [True, True, False]

    def keep(progress: Progress) -> None:
        if full.pop(0):
            raise StoreError("no space left")
        written.append(progress)

    seeds = RunSeeds.begin(federation.dealt[0], session.run)
    client = HiddenClient(session, 0, TableRows(session, federation.tables[0]), seeds, keep=keep)
    client.start(session.num_clients)
    for _ in range(2):
        with pytest.raises(StoreError):
            client.answer()
    assert client.answer() is not None
    assert [progress.position for progress in written] == [client.ledger.position]


# -- losses ------------------------------------------------------------------------------------------------------


def test_a_loss_that_no_validation_has_is_an_alarm_to_everybody():
    federation = small_federation(num_clients=6, **VALIDATING)
    while not federation.ledger.current.opens_loss:
        federation.play_hop()
    true, field = federation.collect().published, federation.session.field
    far = field.pack(field.add_integer(field.unpack(true, (1, 1)), 2**63))
    client = federation.clients[0]
    with pytest.raises(HeadroomAlarm, match="loss is impossible"):
        client.receive(far)
    with pytest.raises(Refused, match="left the run for good"):
        client.receive(true)
    with pytest.raises(HeadroomAlarm, match="loss is impossible"):
        federation.note(far)  # the coordinator, before anything moves
    federation.note(true)


def test_a_history_may_hold_more_losses_than_two_bytes_count():
    losses = tuple(range(-5, 2**16))
    broadcast = WeightBroadcast(Position(70_000, 1, bytes(32)), bytes(32), losses, b"published")
    (found,) = decode_history(encode_history(History((broadcast,)))).weights
    assert (found.losses, found.published) == (losses, b"published")


@pytest.mark.parametrize("settings", [{}, {"num_clients": 11, "num_shards": 2, "rounds": 2}], ids=str)
def test_the_sum_at_the_end_names_the_model_that_a_client_was_told(settings):
    federation = small_federation(**{"num_clients": 6, **settings})
    while not federation.ledger.final:
        federation.play_hop()
    session, true = federation.session, federation.collect().published
    field, size = session.field, federation.ledger.current.count
    for client in federation.clients:
        residues = field.unpack(true, (session.num_shards, size))
        client.receive(field.pack(field.add_integer(residues, client.index)))
    models = {client.ledger.opened for client in federation.clients}
    assert len(models) == len({accuracy_plan(session, model).digest for model in models}) == session.num_clients
    for client in federation.clients:
        assert client.ledger.opened == opened_digest(session, client.model)
