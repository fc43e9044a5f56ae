"""Client and Training as state machines: thresholds, late answers, alarms, refusals, state."""

import copy
import math
import pickle
import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dresfl.coding import CodeParameters
from dresfl.errors import CheckpointError, DataError, MessageError
from dresfl.field import Domain, SecretSeed, choose_moduli
from dresfl.model import mlp, weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import Answer, Client, MemoryTable, Session, Share, Task, Training, coded_gradient
from dresfl.quantize import stochastic_round
from reference import integer_gradient

NETWORK = mlp((3, 3, 2), input_bits=3, weight_bits=6)  # degree 4, so R = 5
ADAM = Optimizer("adam", learning_rate=0.01)


def rows_of(session):
    """Each client's integer inputs and one-hot targets."""
    data = []
    for index, rows in enumerate(session.client_rows):
        generator = torch.Generator().manual_seed(index)
        inputs = torch.randint(0, 9, (rows, 3), generator=generator, dtype=torch.int32)
        data.append((inputs, F.one_hot(torch.randint(2, (rows,), generator=generator), 2).to(torch.int32)))
    return data


def deal(session):
    """Clients that hold each other's shares."""
    clients = [Client(session, i, SecretSeed.fresh(), *data) for i, data in enumerate(rows_of(session))]
    for dealer in clients:
        for receiver in clients:
            receiver.receive(dealer.deal(receiver.index))
    return clients


def make(num_clients=7, **changes):
    """A session, its dealt clients, and a training."""
    session = Session(
        NETWORK, CodeParameters(num_clients, batch_size=4), tuple(range(3, 3 + num_clients)), seed=5, **changes
    )
    return session, deal(session), Training(session, ADAM, rounds=20)


def snapshot(training):
    return copy.deepcopy(training.state())


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def play(training, clients):
    """Let clients answer until the round closes."""
    for client in clients:
        record = training.receive(client.answer(training.task()))
        if record is not None:
            return record
    return None


def test_the_server_steps_exactly_at_the_rth_answer():
    session, clients, training = make()
    assert session.recovery_threshold == 5
    before = training.weights.clone()
    for client in clients[6:2:-1]:
        assert training.receive(client.answer(training.task())) is None
        assert torch.equal(training.weights, before)
        assert training.round_number == 0
    record = training.receive(clients[0].answer(training.task()))
    assert (record.round_number, record.outcome, record.survivors) == (0, "stepped", (0, 3, 4, 5, 6))
    assert training.round_number == 1
    assert not torch.equal(training.weights, before)
    assert record.gradient_norm > 0
    assert 0 < record.peak_bits <= session.needed_bits


def test_any_survivors_give_the_same_step():
    session, clients, _ = make()
    weights = set()
    for seed in range(6):
        fresh = Training(session, ADAM, rounds=20)
        play(fresh, random.Random(seed).sample(clients, 5))
        weights.add(weights_sha256(fresh.weights))
    assert len(weights) == 1


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_step_is_the_mean_gradient_through_the_optimiser_rounded_with_the_rounds_noise(num_shards):
    """Two rounds by hand: integers from the reference, w ← w − Q(2^lw · update), Q's noise of that round."""
    clients = 4 * num_shards + 1
    session = Session(NETWORK, CodeParameters(clients, num_shards, 1, 4), (3,) * clients, seed=5)
    data = rows_of(session)
    dealt, training = deal(session), Training(session, ADAM, rounds=20)
    weights, state = training.weights.clone(), ADAM.initial_state(NETWORK.num_parameters)
    for round_number in range(2):
        batch = session.batch_rows(round_number)
        pairs = zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)
        chosen = [(d, row) for d, r in pairs for row in session.shard_rows(d)[r].tolist()]
        inputs, targets = ([data[d][part][row].tolist() for d, row in chosen] for part in (0, 1))
        integers = integer_gradient.gradient(NETWORK.layers, (3,), 3, 6, weights.tolist(), inputs, targets)
        scale = 2 ** (2 * NETWORK.out_scale - 6)
        gradient = torch.tensor([g / scale / (4 * num_shards) for g in integers], dtype=torch.float64)
        factors = ADAM.factors(ADAM.rate(round_number, 20), round_number + 1)
        update, state = ADAM.update(state, factors, gradient, weights / 2.0**6)
        noise = session.stream.uniform(Domain.ROUNDING, round_number, NETWORK.num_parameters)
        weights = weights - stochastic_round(update * 2.0**6, noise)
        record = play(training, dealt)
        assert torch.equal(training.weights, weights)
        assert record.peak_bits == math.log2(max(map(abs, integers)))
        assert record.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-12)


def test_answers_to_another_round_are_dropped():
    _, clients, training = make()
    tasks = training.task(), Task(3, training.weights)
    late, early = clients[6].answer(tasks[0]), clients[6].answer(tasks[1])
    assert play(training, clients).outcome == "stepped"
    before = snapshot(training)
    assert training.receive(late) is None
    assert training.receive(early) is None
    assert same(snapshot(training), before)
    # they count for nothing: four answers of this round still leave it open
    assert play(training, clients[:4]) is None
    assert training.round_number == 1


def test_a_second_answer_of_a_client_is_refused_and_not_counted():
    _, clients, training = make()
    assert play(training, clients[:4]) is None
    with pytest.raises(MessageError, match="client 2 answered round 0 twice"):
        training.receive(clients[2].answer(training.task()))
    assert training.round_number == 0
    assert play(training, clients[4:]).survivors == (0, 1, 2, 3, 4)


def test_an_answer_of_another_shape_is_refused():
    _, clients, training = make()
    residues = clients[0].answer(training.task()).residues
    for wrong in (residues[:-1], residues[:, :-1], residues.unsqueeze(0)):
        with pytest.raises(MessageError, match="shape"):
            training.receive(Answer(0, 0, wrong))
    assert play(training, clients).survivors == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("answers", [0, 4])
def test_skipping_leaves_weights_and_optimiser(answers):
    _, clients, training = make()
    play(training, clients)
    before = snapshot(training)
    play(training, clients[:answers])
    record = training.skip()
    assert (record.round_number, record.outcome, record.survivors) == (1, "skipped", tuple(range(answers)))
    assert record.reason == f"{answers} of 5 answers"
    after = snapshot(training)
    assert int(after.pop("round")) == 2 == int(before.pop("round")) + 1
    assert same(before, after)
    assert play(training, clients).survivors == (0, 1, 2, 3, 4)  # nothing of the skipped round is left


def test_rounds_are_counted_until_done():
    session, clients, _ = make()
    training = Training(session, ADAM, rounds=2)
    assert not training.done
    training.skip()
    assert not training.done
    play(training, clients)
    assert training.done


# -- the alarm -------------------------------------------------------------------------------------------------


def test_one_altered_residue_anywhere_rings_the_alarm():
    """Any channel, any client, any size of change: refused, state untouched, and the next round goes on."""
    session, clients, training = make()
    play(training, clients)
    rng = random.Random(8)
    for channel, p in enumerate(session.field.moduli):
        for change in (1, -1, p // 2, rng.randrange(1, p)):
            before = snapshot(training)
            answers = [client.answer(training.task()) for client in clients[:5]]
            victim = rng.choice(answers)
            victim.residues[channel, rng.randrange(NETWORK.num_parameters)] += change
            victim.residues[channel] = session.field.embed(victim.residues[channel].to(torch.int64))[channel]
            record = [training.receive(answer) for answer in answers][-1]
            assert record.outcome == "refused"
            assert "1 of 20 decoded values" in record.reason
            after = snapshot(training)
            assert int(after.pop("round")) == int(before.pop("round")) + 1
            assert same(before, after)
    assert play(training, clients).outcome == "stepped"


def test_weights_too_large_for_the_modulus_ring_the_alarm():
    _, clients, training = make()
    training.weights = training.weights * 2**15
    before = training.weights.clone()
    assert play(training, clients).outcome == "refused"
    assert torch.equal(training.weights, before)


def test_a_tight_modulus_refuses_what_a_wide_one_holds():
    moduli = choose_moduli(make()[0].needed_bits + 100, more_than=9)
    outcomes = {}
    for name, changes in (("chosen", {}), ("wide", {"moduli": moduli})):
        _, clients, training = make(**changes)
        training.weights = training.weights * 2**9
        outcomes[name] = play(training, clients).outcome
    assert outcomes["chosen"] == "refused"
    # the wide field holds the integers, but its values are still held to the needed bits or more
    assert make(moduli=moduli)[0].field.value_bound > make()[0].field.value_bound
    assert outcomes["wide"] == "stepped"


# -- clients ---------------------------------------------------------------------------------------------------


def bare_client(session, index=0):
    rows = session.client_rows[index]
    return Client(
        session,
        index,
        SecretSeed.fresh(),
        torch.zeros(rows, 3, dtype=torch.int64),
        torch.zeros(rows, 2, dtype=torch.int64),
    )


def test_a_client_without_all_shares_does_not_answer():
    session, clients, training = make()
    client = bare_client(session)
    assert not client.ready
    for dealer in clients[:-1]:
        client.receive(dealer.deal(0))
    client.receive(clients[-1].deal(0, 0, 2))
    client.receive(clients[-1].deal(0, 3))  # row 2 is still missing
    assert not client.ready
    with pytest.raises(MessageError, match="lacks shares"):
        client.answer(training.task())
    client.receive(clients[-1].deal(0, 2, 1))
    assert client.ready
    assert torch.equal(client.answer(training.task()).residues, clients[0].answer(training.task()).residues)


def test_a_client_answers_without_the_shares_of_an_excluded_dealer():
    session, clients, _ = make()
    session = session.without([2])
    client = bare_client(session)
    for dealer in clients:
        if dealer.index != 2:
            client.receive(dealer.deal(0))
    assert not client.ready
    everything = deal(session)
    for number in range(5):
        task = Task(number, session.network.initial_weights(session.stream))
        assert torch.equal(client.answer(task).residues, coded(session, clients, task))
        assert 2 not in session.batch_rows(number).dealers
    training = Training(session, ADAM, rounds=2)
    assert play(training, everything).outcome == "stepped"


def coded(session, clients, task):
    """Client 0's answer, from rows that the dealers deal it now."""
    batch = session.batch_rows(task.round_number)
    pairs = zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)
    rows = torch.cat([clients[dealer].deal(0, row, 1).residues for dealer, row in pairs], 1)  # (M,B,W)
    return coded_gradient(session, task.weights, rows.unsqueeze(1))[:, 0]


def test_a_share_for_another_client_is_refused():
    session, clients, _ = make()
    client = bare_client(session)
    with pytest.raises(MessageError, match="a share for client 1 came to client 0"):
        client.receive(clients[2].deal(1))
    assert "missing=42 rows" in repr(client)


def test_parts_of_a_share_are_the_share():
    session, clients, _ = make()
    whole = clients[6].deal(2)
    assert (whole.dealer, whole.receiver, whole.first_row) == (6, 2, 0)
    parts = [clients[6].deal(2, first, 2).residues for first in (0, 2, 4, 6, 8)]
    assert torch.equal(torch.cat(parts, 1), whole.residues)
    assert torch.equal(clients[6].deal(2, 7).residues, whole.residues[:, 7:])
    decoded = Share.decode(clients[6].deal(2, 8, 5).encode(session), session)
    assert (decoded.first_row, decoded.residues.shape[1]) == (8, 1)


def test_shares_for_several_receivers_are_the_shares_for_each():
    _, clients, _ = make()
    together = clients[6].deal_to([4, 0, 6], 1, 5)
    assert [(share.dealer, share.receiver, share.first_row) for share in together] == [(6, 4, 1), (6, 0, 1), (6, 6, 1)]
    for share in together:
        assert torch.equal(share.residues, clients[6].deal(share.receiver, 1, 5).residues)


def test_a_share_serves_every_run_on_its_sharing():
    session, clients, _ = make()
    later = replace(
        session,
        seed=6,
        parameters=replace(session.parameters, batch_size=3),
        run_nonce=b"second",
        moduli=session.field.moduli,
    )
    share = clients[1].deal(0).encode(session)
    assert Share.decode(share, later).encode(later) == share
    with pytest.raises(MessageError, match="another sharing"):
        Share.decode(share, replace(later, nonce=b"second"))
    task = Task(0, torch.zeros(20, dtype=torch.int64)).encode(session)
    with pytest.raises(MessageError, match="another session"):
        Task.decode(task, later)


def test_missing_rows_are_told_by_range():
    session, clients, _ = make()
    table = MemoryTable(session)
    assert table.missing(6) == [range(9)]
    table.put(6, 3, clients[6].deal(0, 3, 2).residues)
    assert table.missing(6) == [range(3), range(5, 9)]
    table.put(6, 0, clients[6].deal(0).residues)
    assert table.missing(6) == []
    with pytest.raises(MessageError, match="shared already"):
        table.put(6, 8, clients[6].deal(1, 8, 1).residues)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(table)


def test_rows_that_do_not_fit_the_session_are_refused():
    session, _, _ = make()
    for inputs, targets in (((3, 4), (3, 2)), ((4, 3), (4, 2)), ((3, 3), (3, 3)), ((9,), (3, 2))):
        with pytest.raises(DataError, match="client 0: inputs") as caught:
            Client(
                session,
                0,
                SecretSeed.fresh(),
                torch.zeros(inputs, dtype=torch.int64),
                torch.zeros(targets, dtype=torch.int64),
            )
        assert caught.value.hint


def test_a_client_prints_neither_rows_nor_secret():
    _, clients, _ = make()
    assert repr(clients[1]) == "Client(1, missing=0 rows)"


# -- state -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sgd", "momentum", "adam"])
def test_a_restored_server_goes_on_alike(method):
    session, clients, _ = make()
    optimizer = Optimizer(method, learning_rate=0.01, schedule="cosine")
    unbroken = Training(session, optimizer, rounds=8)
    for _ in range(4):
        play(unbroken, clients)
    state = snapshot(unbroken)
    restored = Training(session, optimizer, rounds=8)
    play(restored, clients[:3])  # answers from before are forgotten
    restored.restore(state)
    assert same(restored.state(), state)
    for training in (unbroken, restored):
        while not training.done:
            assert play(training, clients).outcome == "stepped"
    assert same(unbroken.state(), restored.state())
    assert not same(unbroken.state(), state)  # and the restored state was copied, not shared


def foreign_states():
    _, _, training = make()
    state = training.state()
    wider = Training(replace(training.session, network=mlp((3, 4, 2), input_bits=3, weight_bits=6)), ADAM, 20)
    return {
        "another optimiser": Training(training.session, Optimizer("momentum"), 20).state(),
        "another network": wider.state(),
        "nothing": {},
        "one missing": {name: value for name, value in state.items() if name != "weights"},
        "one more": {**state, "more": torch.zeros(1)},
        "weights of another type": {**state, "weights": state["weights"].double()},
        "a round of another shape": {**state, "round": torch.zeros(2, dtype=torch.int64)},
    }


@pytest.mark.parametrize("name", list(foreign_states()))
def test_a_foreign_state_is_refused(name):
    _, clients, training = make()
    play(training, clients)
    before = snapshot(training)
    with pytest.raises(CheckpointError) as caught:
        training.restore(foreign_states()[name])
    assert caught.value.hint
    assert same(training.state(), before)


def test_a_batch_is_answered_for_one_set_of_weights():
    _, clients, training = make()
    task = training.task()
    first = clients[0].answer(task)
    assert torch.equal(clients[0].answer(task).residues, first.residues)
    with pytest.raises(MessageError, match="other weights"):
        clients[0].answer(Task(task.round_number, task.weights + 1))


def test_an_answer_of_nobody_is_refused_and_the_round_goes_on():
    _, clients, training = make()
    stray = clients[0].answer(training.task())
    with pytest.raises(MessageError, match="does not exist"):
        training.receive(Answer(0, 99, stray.residues))
    assert training.receive(stray) is None


def test_a_share_is_not_replaced():
    _, clients, _ = make()
    share = clients[1].deal(0)
    clients[0].receive(share)
    with pytest.raises(MessageError, match="shared already"):
        clients[0].receive(Share(1, 0, 0, share.residues + 1))


def test_rows_that_are_no_integers_are_refused():
    session, _, _ = make()
    rows = session.client_rows[0]
    with pytest.raises(DataError, match="integers"):
        Client(session, 0, SecretSeed.fresh(), torch.full((rows, 3), 0.37), torch.zeros(rows, 2, dtype=torch.int64))


def test_derived_seeds_and_the_tag_have_nothing_in_common():
    seed = SecretSeed(bytes(range(32)))
    seeds = [seed, seed.derive(b"a"), seed.derive(b"b"), seed.derive(b"a").derive(b"b"), seed.derive(b"ab")]
    assert len({tuple(s.mask_key(b"").tolist()) for s in seeds}) == len({s.tag() for s in seeds}) == 5
    assert torch.equal(seed.derive(b"a").mask_key(b""), SecretSeed(bytes(range(32))).derive(b"a").mask_key(b""))
    assert all(len(s.tag()) == 16 for s in seeds)


def test_a_kept_seed_gives_other_masks_in_another_sharing():
    seed = SecretSeed(bytes(range(32)))
    assert not seed.mask_key(b"a" * 16).equal(seed.mask_key(b"b" * 16))
    assert not seed.mask_key(b"a" * 16).equal(seed.mask_key(b""))


@pytest.mark.parametrize(
    "change",
    [
        {"round": -5},
        {"round": 21},
        {"optimizer.steps": -3},
        {"weights": 2**40},
        {"weights": -(2**63)},
        {"optimizer.first": math.nan},
    ],
)
def test_impossible_values_in_a_state_are_refused(change):
    _, _, training = make()
    state = snapshot(training)
    for name, value in change.items():
        state[name][0] = value
    with pytest.raises(CheckpointError, match="impossible"):
        training.restore(state)
