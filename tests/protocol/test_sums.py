"""Sums over clients: exact, private as algebra, with liars named, and counted on real outputs."""

import itertools
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from dresfl.coding import CodeParameters
from dresfl.errors import HeadroomAlarm, MessageError, TooFewAnswers, UsageError
from dresfl.field import PublicStream, Reals, SecretSeed
from dresfl.model import Dense, Network, Square
from dresfl.protocol import (
    Session,
    SumPlan,
    Totals,
    accuracy_counts,
    accuracy_plan,
    add_shares,
    deal_vector,
    decode_totals,
)


def plan_of(num_clients=5, max_colluders=1, count=3, most=10**6, **more):
    return SumPlan(bytes(16), "accuracy", num_clients, max_colluders, count, most, **more)


def sums_of(plan, vectors):
    """What every receiver adds of these dealers' vectors."""
    dealt = [deal_vector(plan, SecretSeed.fresh(), torch.tensor(vector)) for vector in vectors]
    return {
        receiver: add_shares(plan, [shares[:, receiver] for shares in dealt]) for receiver in range(plan.num_clients)
    }


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_receivers_decode_the_exact_totals(data):
    clients, colluders = data.draw(st.sampled_from([(3, 1), (5, 1), (9, 2), (12, 4)]))
    plan = plan_of(clients, colluders, most=10**9)
    entries = st.integers(-(10**9 // clients), 10**9 // clients)
    dealers = data.draw(st.sets(st.integers(0, clients - 1), min_size=colluders + 2))
    vectors = [[data.draw(entries) for _ in range(3)] for _ in dealers]
    sums = sums_of(plan, vectors)
    there = data.draw(st.sets(st.integers(0, clients - 1), min_size=plan.sums_needed))
    found = decode_totals(plan, sorted(dealers), {receiver: sums[receiver] for receiver in there})
    assert found == Totals(tuple(sorted(dealers)), tuple(map(sum, zip(*vectors, strict=True))))


def test_a_liar_is_named_and_two_are_too_many():
    plan = plan_of(7)
    sums = sums_of(plan, [[1, 2, 3]] * 4)
    sums[3] = plan.field.add_integer(sums[3], 5)
    assert decode_totals(plan, range(4), sums) == Totals((0, 1, 2, 3), (4, 8, 12), (3,))
    three = {receiver: sums[receiver] for receiver in (2, 3, 4)}
    with pytest.raises(TooFewAnswers, match="do not fit"):
        decode_totals(plan, range(4), three)
    with pytest.raises(TooFewAnswers, match="2 clients showed what they added, 3 are needed"):
        decode_totals(plan, range(4), {receiver: sums[receiver] for receiver in (0, 1)})


def test_where_clients_are_honest_two_sums_do():
    plan = plan_of(honest_clients=True)
    sums = sums_of(plan, [[1, 2, 3]] * 3)
    assert decode_totals(plan, range(3), {0: sums[0], 4: sums[4]}).values == (3, 6, 9)


def test_a_total_that_nobody_can_count_is_an_alarm():
    plan = plan_of(most=100)
    with pytest.raises(HeadroomAlarm):
        decode_totals(plan, range(3), sums_of(plan, [[90, 0, 0], [90, 0, 0], [0, 0, 0]]))
    wide = plan_of(most=10**9)
    far = sums_of(plan, [[1, 1, 1]] * 3)
    far = {receiver: plan.field.scale(value, 12345678901) for receiver, value in far.items()}
    with pytest.raises(HeadroomAlarm):
        decode_totals(plan, range(3), far)
    assert wide.field.value_bound >= 10**9


def test_t_receivers_see_uniform_shares():
    """Exhaustive over the mask at p = 7: a receiver's share of any value is each residue once."""
    from dresfl.coding import LagrangeCode
    from dresfl.field import ResidueField

    field = ResidueField((7,), 1)
    code = LagrangeCode(field, num_clients=4, num_shards=1, max_colluders=1, degree=1)
    for value, receiver in itertools.product((0, 3), range(4)):
        shares = [code.encode(field.embed(torch.tensor([[value]])), field.embed(torch.tensor([[u]]))) for u in range(7)]
        assert Counter(int(share[0, receiver, 0]) % 7 for share in shares) == Counter(range(7))


def test_masks_follow_from_secret_sum_and_vector():
    plan, secret = plan_of(), SecretSeed(bytes(32))
    first = deal_vector(plan, secret, torch.tensor([1, 2, 3]))
    assert torch.equal(first, deal_vector(plan, SecretSeed(bytes(32)), torch.tensor([1, 2, 3])))
    other_plan = SumPlan(bytes(15) + b"1", "accuracy", 5, 1, 3, 10**6)
    embed = plan.field.embed
    for other, vector in (
        (deal_vector(plan, secret, torch.tensor([1, 2, 4])), [1, 2, 4]),
        (deal_vector(other_plan, secret, torch.tensor([1, 2, 3])), [1, 2, 3]),
        (deal_vector(plan, SecretSeed(bytes([1] * 32)), torch.tensor([1, 2, 3])), [1, 2, 3]),
    ):
        masks = plan.field.sub(other[:, 0], embed(torch.tensor(vector)))
        assert not torch.equal(masks, plan.field.sub(first[:, 0], embed(torch.tensor([1, 2, 3]))))


@pytest.mark.parametrize(("clients", "colluders"), [(3, 1), (4, 1), (5, 1), (9, 2), (20, 4), (20, 1)])
def test_two_quorums_share_an_honest_client(clients, colluders):
    plan = plan_of(clients, colluders)
    assert 2 * plan.quorum - clients > colluders  # so many signed both, and T of them may be bad
    assert plan.quorum > (clients + colluders) / 2 >= plan.quorum - 1


def test_sets_that_are_none_are_refused():
    plan = plan_of()
    plan.check_dealers((0, 1, 2))
    for dealers in ((0, 1), (0, 1, 1), (2, 1, 0), (0, 1, 5), ()):
        with pytest.raises(MessageError):
            plan.check_dealers(dealers)
    assert plan.set_digest((0, 1, 2)) != plan.set_digest((0, 1, 3)) != plan_of(count=4).set_digest((0, 1, 3))


def test_wrong_arguments_are_refused():
    with pytest.raises(UsageError, match="kept from"):
        plan_of(3, 2)
    with pytest.raises(UsageError, match="no sum"):
        plan_of(count=0)
    with pytest.raises(UsageError, match="3 integers"):
        deal_vector(plan_of(), SecretSeed.fresh(), torch.tensor([1, 2]))
    with pytest.raises(UsageError, match="is the most"):
        deal_vector(plan_of(most=10), SecretSeed.fresh(), torch.tensor([1, 2, 11]))


def test_a_client_counts_what_its_model_says():
    network = Network((Dense(4), Square(), Dense(3)), (5,), 3, 6)
    session = Session(network, CodeParameters(9, 1, 1, 4), (11,) * 9, seed=3)
    weights = network.initial_weights(PublicStream(3)) * 3
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(-8, 9, (11, 5), generator=generator, dtype=torch.int32)
    labels = torch.randint(0, 3, (11,), generator=generator)
    outputs = network.outputs(Reals(), weights, inputs.to(torch.float64).view(1, 1, 11, 5))[0, 0]
    said = outputs.argmax(1)
    right = int((said == labels).sum())
    counts = accuracy_counts(network, weights, inputs, F.one_hot(labels, 3))
    assert counts.tolist() == [right, 11]
    pairs = accuracy_counts(network, weights, inputs, F.one_hot(labels, 3), confusion=True)
    expected = [int(((labels == a) & (said == b)).sum()) for a in range(3) for b in range(3)]
    assert pairs.tolist() == [right, 11, *expected]
    plans = accuracy_plan(session), accuracy_plan(session, confusion=True)
    assert [plan.count for plan in plans] == [2, 11]
    assert [plan.most for plan in plans] == [99, 99]
    assert plans[0].digest != plans[1].digest
    assert accuracy_plan(session, b"m" * 32).digest != plans[0].digest
