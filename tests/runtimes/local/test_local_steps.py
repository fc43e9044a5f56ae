"""Rounds with several local steps: coded = direct = plain gradient descent on each shard, whoever answers."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from dresfl.coding import CodeParameters
from dresfl.field import Domain, SecretSeed
from dresfl.model import Conv2d, Dense, Flatten, Network, mlp, weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import Answer, Client, Session, Training, coded_answer, make_local_plan
from dresfl.quantize import stochastic_round
from dresfl.runtimes.local import Dropouts, LocalFederation, no_dropouts
from dresfl.runtimes.local import driver as local_driver
from reference import local_sgd

LINEAR = mlp((5, 3), input_bits=4, weight_bits=10)
ONE_SQUARE = mlp((4, 3, 2), input_bits=4, weight_bits=10)
CONVOLUTION = Network((Conv2d(2, 2, 2, 1), Flatten(), Dense(3)), (4, 3, 1), 4, 8)
OPTIMIZER = Optimizer("sgd", 0.05, "cosine")
ROUNDS = 6


def session_of(network=LINEAR, spare=2, optimizer=OPTIMIZER, rounds=ROUNDS, **sizes):
    """A session with so many clients more than must answer."""
    code = CodeParameters(**{"num_clients": 999, "batch_size": 4, "local_steps": 2, **sizes})
    local = make_local_plan(network, code, optimizer, rounds)
    degree = network.gradient_degree if local is None else local.steps.degree
    needed = degree * (code.num_shards + code.max_colluders - 1) + 1 + 2 * code.max_liars
    code = replace(code, num_clients=needed + spare)
    return Session(network, code, tuple(3 + i % 5 for i in range(code.num_clients)), seed=11, local=local)


def data_of(session):
    generator = torch.Generator().manual_seed(1)
    network, data = session.network, []
    for rows in session.client_rows:
        inputs = torch.randint(0, 17, (rows, network.input_size), generator=generator, dtype=torch.int32)
        targets = F.one_hot(torch.randint(network.num_classes, (rows,), generator=generator), network.num_classes)
        data.append((inputs, targets.to(torch.int32)))
    return data


def run(session, engine="coded", dropouts=None, rounds=ROUNDS, **more):
    training = Training(session, OPTIMIZER, rounds)
    dropouts = dropouts or no_dropouts(session.num_clients, seed=2)
    federation = LocalFederation(session, training, data_of(session), dropouts, engine, **more)
    records = [federation.run_round()[0] for _ in range(rounds)]
    assert all(record.outcome == "stepped" for record in records)
    return weights_sha256(training.weights), records


def shuffled(session, seed):
    """Random survivors, as many as needed or more, in random order."""
    rng, everybody = random.Random(seed), range(session.num_clients)
    lines = [rng.sample(everybody, rng.randint(session.answers_needed, session.num_clients)) for _ in range(5)]
    return Dropouts((0.0,) * session.num_clients, seed, tuple(map(tuple, lines)))


@given(
    st.sampled_from([(1, 1), (1, 0), (2, 1), (1, 2), (3, 1)]),
    st.integers(2, 4),
    st.sampled_from([0, 1]),
    st.integers(0, 3),
    st.integers(0, 99),
)
def test_coded_equals_direct_over_sizes(shards_and_colluders, steps, liars, spare, seed):
    shards, colluders = shards_and_colluders
    sizes = {"num_shards": shards, "max_colluders": colluders, "local_steps": steps, "max_liars": liars}
    session = session_of(spare=spare, rounds=2, **sizes)
    assert run(session, dropouts=shuffled(session, seed), rounds=2)[0] == run(session, "direct", rounds=2)[0]


@pytest.mark.parametrize("sizes", [{}, {"num_shards": 2}, {"max_colluders": 2}])
@pytest.mark.parametrize("network", [ONE_SQUARE, CONVOLUTION])
def test_coded_equals_direct_with_a_square_and_for_a_convolution(network, sizes):
    session = session_of(network, **sizes)
    assert run(session, dropouts=shuffled(session, 1))[0] == run(session, "direct")[0]


def test_a_round_is_plain_gradient_descent_on_each_shard():
    """By hand, over the rationals: every shard takes s steps at η/B, and w ← w − Q(2^lw · mean of the moves)."""
    session = session_of(ONE_SQUARE, num_shards=2)
    network, local, data = session.network, session.local, data_of(session)
    training = Training(session, OPTIMIZER, ROUNDS)
    federation = LocalFederation(session, training, data, no_dropouts(session.num_clients, 2), "coded")
    weights, size = training.weights.tolist(), 4
    for number in range(2):
        batch = session.batch_rows(number)
        pairs = list(zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True))
        rate = Fraction(local.multiplier(number), 2**local.steps.rate_shift)
        assert float(rate) == pytest.approx(OPTIMIZER.rate(number, ROUNDS) / 4, rel=2**-11)
        total = [Fraction(0)] * len(weights)
        for shard in range(2):
            rows = [(dealer, int(session.shard_rows(dealer)[row, shard])) for dealer, row in pairs]
            batches = [
                tuple([data[d][part][r].tolist() for d, r in rows[first : first + size]] for part in (0, 1))
                for first in (0, size)
            ]
            real = [Fraction(w, 2**10) for w in weights]
            moved = local_sgd.move(network.layers, network.input_shape, 4, real, rate, batches)
            total = [a + b for a, b in zip(total, moved, strict=True)]
        noise = session.stream.uniform(Domain.ROUNDING, number, len(weights))
        update = torch.tensor([float(v / 2) for v in total], dtype=torch.float64)
        expected = torch.tensor(weights) - stochastic_round(update * 2.0**10, noise)
        record = federation.run_round()[0]
        assert record.outcome == "stepped"
        assert torch.equal(training.weights.to(torch.float64), expected)
        assert record.gradient_norm == pytest.approx(float(update.norm()) / local.rate(number), rel=1e-12)
        weights = [int(w) for w in expected]


def test_more_steps_give_other_weights():
    assert len({run(session_of(local_steps=s), "direct")[0] for s in (1, 2, 3)}) == 3


def test_groups_of_clients_do_not_matter(monkeypatch):
    expected = run(session_of())[0]
    monkeypatch.setattr(local_driver, "_GROUP_BYTES", 1)
    assert run(session_of())[0] == expected


def test_blinded_answers_give_the_same_weights():
    session = session_of()
    assert run(session, blinded=True)[0] == run(session, "direct")[0]


def clients_of(session):
    clients = [Client(session, i, SecretSeed.fresh(), *data) for i, data in enumerate(data_of(session))]
    for dealer in clients:
        for receiver in clients:
            receiver.receive(dealer.deal(receiver.index))
    return clients


def test_real_clients_answer_over_messages_as_the_driver_does():
    session = session_of()
    clients, training = clients_of(session), Training(session, OPTIMIZER, ROUNDS)
    for number in range(ROUNDS):
        task = training.task()
        for client in clients[number % 2 : number % 2 + session.answers_needed]:
            message = client.answer(task).encode(session)
            record = training.receive(Answer.decode(message, session))
        assert record.outcome == "stepped"
    assert weights_sha256(training.weights) == run(session, "direct")[0]


def test_a_liar_is_found_and_outvoted():
    session = session_of(max_liars=1)
    clients, training = clients_of(session), Training(session, OPTIMIZER, ROUNDS)
    for _ in range(ROUNDS):
        task = training.task()
        for client in clients[: session.answers_needed]:
            answer = client.answer(task)
            if client.index == 2:
                answer = replace(answer, residues=session.field.add_integer(answer.residues, 1))
            record = training.receive(answer)
        assert (record.outcome, record.liars) == ("stepped", (2,))
    assert weights_sha256(training.weights) == run(session, "direct")[0]


def test_one_altered_residue_rings_the_alarm():
    session = session_of(spare=0)
    clients, training = clients_of(session), Training(session, OPTIMIZER, ROUNDS)
    before = training.weights.clone()
    for client in clients:
        answer = client.answer(training.task())
        if client.index == 1:
            changed = answer.residues.clone()
            changed[0, 3] += 1
            answer = replace(answer, residues=changed)
        record = training.receive(answer)
    assert record.outcome == "refused"
    assert torch.equal(training.weights, before)


def test_the_widest_field_lifts_right():
    """Near the most bits that a plan may need: what is decoded in float64 is the exact integers, rounded."""
    session = session_of(spare=0, rounds=1, local_steps=30, optimizer=replace(OPTIMIZER, learning_rate=0.03))
    assert 800 < session.field.modulus.bit_length() <= 900
    field, rows = session.field, torch.cat([torch.cat(part, 1) for part in data_of(session)])  # (m,W)
    coded = field.embed(rows[: 4 * 30]).unsqueeze(1)  # (M,1,s·B,W)
    weights = session.network.initial_weights(session.stream)
    answers = coded_answer(session, 0, weights, coded)  # (M,1,P)
    exact = field.lift_exact(answers[:, 0])
    assert max(map(abs, exact)).bit_length() > 600
    assert field.lift(answers[:, 0]).tolist() == [float(value) for value in exact]
    ones = torch.ones(len(field.moduli), 1, dtype=field.dtype)
    assert field.decode_lift(ones, answers)[0].tolist() == [float(value) for value in exact]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("network", [LINEAR, ONE_SQUARE, CONVOLUTION])
@pytest.mark.parametrize("engine", ["coded", "direct"])
def test_a_gpu_gives_the_same_weights(network, engine):
    session = session_of(network, num_shards=2)
    assert run(replace(session, device="cuda"), engine)[0] == run(session, "direct")[0]
