"""Liars in a round: all are named and left out, the weights are those of honest clients, and where this ends."""

import pickle
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from dresfl.coding import CodeParameters
from dresfl.errors import CheckpointError
from dresfl.field import SecretSeed, choose_moduli
from dresfl.model import mlp, weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import Answer, Session, Training, coded_gradient, encode_rows
from dresfl.protocol.answer_check import AnswerCheck, num_combinations
from dresfl.protocol.random_factors import largest_probability

ADAM = Optimizer("adam", learning_rate=0.05)
NETWORK = mlp((3, 2, 2, 2), input_bits=2, weight_bits=4)  # degree 8, so R = 9
CLIENTS, LIARS = 17, 3
SHIFT = 60  # 2^SHIFT is within the range of values, so that no alarm rings


class Federation:
    """Every client's answer to a round, honest and perhaps blinded, in one product."""

    def __init__(self, num_clients=CLIENTS, max_liars=LIARS, num_shards=1, network=NETWORK, moduli=()):
        parameters = CodeParameters(num_clients, num_shards, 1, batch_size=3, max_liars=max_liars)
        self.session = Session(network, parameters, (4,) * num_clients, seed=5, moduli=moduli)
        generator = torch.Generator().manual_seed(1)
        self._rows = torch.randint(0, 4, (num_clients, 4, self.session.row_width), generator=generator)
        self._keys = torch.stack([SecretSeed.fresh().mask_key(b"") for _ in range(num_clients)])

    def training(self, max_liars=None, rounds=200):
        session = self.session
        if max_liars is not None:
            session = replace(session, parameters=replace(session.parameters, max_liars=max_liars))
        return Training(session, ADAM, rounds)

    def answers(self, training, generator=None):
        """(N,M,P) int64 in [0,p); with a generator: plus a zero-sum polynomial of degree < R."""
        session, number = self.session, training.round_number
        batch = session.batch_rows(number)
        hidden = session.shard_rows(0)[batch.rows]  # (B,K); every client has as many rows
        shards = self._rows[batch.dealers[:, None], hidden]  # (B,K,W)
        coded = encode_rows(session, self._keys[batch.dealers], batch.rows, shards)
        found = coded_gradient(session, training.weights, coded).to(torch.int64).numpy().swapaxes(0, 1)
        p = np.array(session.field.moduli)[:, None]
        return (found + self.blinding(generator)) % p if generator is not None else found % p

    def blinding(self, generator):
        """(N,M,P): values at the clients' points of polynomials whose values at the shards' points sum to 0."""
        session, parts = self.session, []
        for p in session.field.moduli:
            coefficients = generator.integers(0, p, (session.recovery_threshold, session.network.num_parameters))
            at_shards = sum(horner(coefficients, point, p) for point in session.code.data_points)
            coefficients[-1] -= at_shards * pow(session.num_shards, -1, p) % p
            assert not (sum(horner(coefficients, point, p) for point in session.code.data_points) % p).any()
            parts.append([horner(coefficients, point, p) for point in session.code.client_points])
        return np.array(parts).swapaxes(0, 1)

    def sent(self, training, client, values, packed):
        """Residues (M,P) as an answer: packed, as over a network, or as a tensor."""
        p = np.array(self.session.field.moduli)[:, None]
        residues = torch.from_numpy((values + p // 2) % p - p // 2).to(torch.float64)
        if packed:
            residues = self.session.field.checked(self.session.field.pack(residues), residues.shape[1:])
        return Answer(training.round_number, client, residues)

    def play(self, training, answers, order, packed=True):
        for client in order:
            record = training.receive(self.sent(training, client, answers[client], packed))
            if record is not None:
                return record
        return None


def horner(coefficients, point, p):
    value = 0
    for row in coefficients:
        value = (value * point + row) % p
    return value


def lie(answers, liar, moduli, generator):
    """A false answer of one of many kinds, different from the true one in at least one residue."""
    true = answers[liar].copy()
    channel, place = generator.integers(len(moduli)), generator.integers(true.shape[1])
    p = np.array(moduli)[:, None]
    kind = generator.integers(5)
    if kind == 0:  # one residue
        true[channel, place] += generator.integers(1, moduli[channel])
    elif kind == 1:  # one prime
        true[channel] += generator.integers(1, moduli[channel], true.shape[1])
    elif kind == 2:  # everything
        true += generator.integers(1, moduli[0], true.shape)
    elif kind == 3:  # the same small integer in every prime: no alarm would ring
        true[:, place] += 1
    else:  # another client's answer
        true = answers[(liar + 1) % len(answers)].copy()
    return true % p


def test_200_rounds_with_liars_train_as_honest_ones():
    federation = Federation()
    assert federation.session.recovery_threshold == 9
    assert federation.session.answers_needed == 15
    watched, honest = federation.training(), federation.training(max_liars=0)
    generator, order = np.random.default_rng(3), random.Random(3)
    lies = dict.fromkeys(range(CLIENTS), 0)
    for number in range(200):
        answers = federation.answers(watched, generator if number % 4 else None)
        arriving = order.sample(range(CLIENTS), CLIENTS)[: order.choice([15, 16, 17])]
        liars = sorted(order.sample(arriving[:15], order.randrange(LIARS + 1)))
        false = {liar: lie(answers, liar, federation.session.field.moduli, generator) for liar in liars}
        for liar in liars:
            answers[liar] = false[liar]
        record = federation.play(watched, answers, arriving, packed=bool(number % 2))
        assert (record.outcome, record.liars) == ("stepped", tuple(liars)), number
        assert len(record.survivors) == 9
        assert not set(record.survivors) & set(liars)
        assert set(record.survivors) <= set(arriving[:15])
        for liar in liars:
            lies[liar] += 1
        federation.play(honest, federation.answers(honest), order.sample(range(CLIENTS), CLIENTS))
        assert torch.equal(watched.weights, honest.weights)
    assert watched.lies == {client: count for client, count in lies.items() if count}
    assert weights_sha256(watched.weights) == weights_sha256(honest.weights)
    assert not torch.equal(watched.weights, federation.training().weights)


@pytest.mark.parametrize("num_shards", [2])
def test_several_shards(num_shards):
    network = mlp((3, 2, 2), input_bits=2, weight_bits=4)  # degree 4: R = 9
    federation = Federation(13, max_liars=2, num_shards=num_shards, network=network)
    watched, honest = federation.training(rounds=20), federation.training(max_liars=0, rounds=20)
    generator = np.random.default_rng(4)
    for _ in range(20):
        answers = federation.answers(watched, generator)
        liars = sorted(generator.choice(13, 2, replace=False).tolist())
        for liar in liars:
            answers[liar, generator.integers(answers.shape[1]), 0] += 1
        assert federation.play(watched, answers, range(13)).liars == tuple(liars)
        federation.play(honest, federation.answers(honest), range(13))
    assert torch.equal(watched.weights, honest.weights)


def test_small_primes():
    """Primes below 256, as large layers have: more combinations, the same certainty."""
    moduli = choose_moduli(NETWORK.needed_bits(3), more_than=CLIENTS + 2, limit=256)
    federation = Federation(moduli=moduli)
    assert num_combinations(federation.session) > 2
    watched, honest = federation.training(rounds=20), federation.training(max_liars=0, rounds=20)
    generator = np.random.default_rng(5)
    for number in range(20):
        answers = federation.answers(watched, generator)
        answers[7, generator.integers(len(moduli)), generator.integers(answers.shape[2])] += 1
        assert federation.play(watched, answers, range(CLIENTS), packed=bool(number % 2)).liars == (7,)
        federation.play(honest, federation.answers(honest), range(CLIENTS))
    assert torch.equal(watched.weights, honest.weights)


@pytest.mark.parametrize("count", [4, 5, 8, 15])
def test_more_liars_that_do_not_agree_are_seen_and_the_round_is_refused(count):
    federation = Federation()
    training, generator = federation.training(rounds=3), np.random.default_rng(count)
    before = training.weights.clone()
    answers = federation.answers(training, generator)
    for liar in range(count):
        answers[liar] = generator.integers(0, federation.session.field.moduli[0], answers[liar].shape)
    record = federation.play(training, answers, range(CLIENTS))
    assert (record.outcome, record.survivors, record.liars) == ("refused", (), ())
    assert "more than 3 of 15 answers are lies" in record.reason
    assert torch.equal(training.weights, before)
    assert training.lies == {}
    assert training.round_number == 1  # the next round is another batch, not the same again
    assert federation.play(training, federation.answers(training), range(CLIENTS)).outcome == "stepped"


def agreed_lie(federation, agreeing, honest):
    """What liars add so that all but `honest` lie on a polynomial whose sum is larger by 2^SHIFT, in every prime.

    It is 0 at the R − 1 other clients' points and 2^SHIFT at the shard's: w(z) = 2^SHIFT Π (z − x_i)/(β − x_i).
    """
    points, (beta,) = federation.session.code.client_points, federation.session.code.data_points
    others = [j for j in range(15) if j not in agreeing and j not in honest]
    assert len(others) == federation.session.recovery_threshold - 1
    added = {}
    for liar in agreeing:
        per_prime = []
        for p in federation.session.field.moduli:
            value = 2**SHIFT
            for j in others:
                value = value * (points[liar] - points[j]) * pow(beta - points[j], -1, p) % p
            per_prime.append(value)
        added[liar] = np.array(per_prime)[:, None]
    return added


def test_the_limit_one_liar_more_who_agree_force_a_wrong_step():
    """n − R − A + 1 = 15 − 9 − 3 + 1 = 4 agreeing liars: three honest clients are taken for the liars."""
    federation = Federation()
    p = np.array(federation.session.field.moduli)[:, None]
    wrong, honest = federation.training(), federation.training(max_liars=0)
    answers = federation.answers(wrong)
    for liar, added in agreed_lie(federation, agreeing=(0, 4, 8, 12), honest=(1, 2, 3)).items():
        answers[liar] = (answers[liar] + added) % p
    record = federation.play(wrong, answers, range(15))
    assert (record.outcome, record.liars) == ("stepped", (1, 2, 3))
    federation.play(honest, federation.answers(honest), range(15))
    assert not torch.equal(wrong.weights, honest.weights)


def test_below_the_limit_agreeing_does_not_help():
    federation = Federation()
    p = np.array(federation.session.field.moduli)[:, None]
    watched, honest = federation.training(), federation.training(max_liars=0)
    answers = federation.answers(watched)
    plan = agreed_lie(federation, agreeing=(0, 4, 8, 12), honest=(1, 2, 3))
    for liar in (0, 4, 8):  # the fourth got cold feet
        answers[liar] = (answers[liar] + plan[liar]) % p
    assert federation.play(watched, answers, range(15)).liars == (0, 4, 8)
    federation.play(honest, federation.answers(honest), range(15))
    assert torch.equal(watched.weights, honest.weights)


def test_the_number_of_combinations_is_the_least_that_suffices():
    for moduli, expected in (((16777183, 16777199), 2), ((23, 29), 9), ((65521, 65537), 3), ((1048573,), 3)):
        q = largest_probability(moduli[0])
        assert q**expected < Fraction(1, 2**40) <= q ** (expected - 1)
    session = Federation().session
    assert num_combinations(session) == 2


def test_no_liars_expected_none_looked_for():
    federation = Federation(max_liars=0)
    training = federation.training()
    answers = federation.answers(training)
    record = federation.play(training, answers, range(CLIENTS))
    assert (len(record.survivors), record.liars) == (9, ())
    assert "lies" not in training.state()


def test_lies_are_part_of_the_checkpoint():
    federation = Federation()
    training = federation.training()
    answers = federation.answers(training)
    answers[3, 0, 0] += 1
    federation.play(training, answers, range(CLIENTS))
    state = training.state()
    again = federation.training()
    again.restore(state)
    assert again.lies == {3: 1}
    for wrong in (-1, 2):
        with pytest.raises(CheckpointError, match="impossible"):
            federation.training().restore({**state, "lies": torch.full((CLIENTS,), wrong)})


def test_factors_are_secret_and_new_for_every_round():
    session = Federation().session
    one, other = AnswerCheck(session), AnswerCheck(session)
    assert one._factors.shape == (2, session.network.num_parameters)
    assert (one._factors != other._factors).any()
    assert 0 <= one._factors.min() <= one._factors.max() < 2**21
    assert "redacted" in repr(one)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(one)
