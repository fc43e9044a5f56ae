"""The check of dealers: what is published is uniform, honest dealers pass, bad ones are excluded by a fixed rule."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dresfl.coding import CodeParameters, LagrangeCode, locate_errors
from dresfl.errors import MessageError, UsageError
from dresfl.field import ResidueField, SecretSeed
from dresfl.model import Dense, Network
from dresfl.protocol import Client, MemoryTable, Session
from dresfl.protocol.dealer_check import (
    Verdict,
    check_polynomial,
    check_shares,
    combine_shares,
    judge,
    num_combinations,
)

NETWORK = Network((Dense(2),), (3,), 2, 4)
COINS = bytes(range(32))


def session_of(num_clients=9, num_shards=2, max_colluders=1, rows=3, **more):
    code = CodeParameters(num_clients, num_shards, max_colluders, 4, **more)
    return Session(NETWORK, code, tuple(rows + i % 3 for i in range(num_clients)), seed=7)


class Dealt:
    """Every client's shares and check shares, and what all of them publish."""

    def __init__(self, session):
        self.session = session
        secrets = [SecretSeed.fresh() for _ in range(session.num_clients)]
        clients = [
            Client(session, i, secret, torch.randint(0, 9, (rows, 3)), torch.randint(0, 2, (rows, 2)))
            for i, (secret, rows) in enumerate(zip(secrets, session.client_rows, strict=True))
        ]
        everybody = range(session.num_clients)
        self.shares = [[share.residues for share in client.deal_to(everybody)] for client in clients]
        self.checks = [check_shares(session, secret) for secret in secrets]

    def change(self, dealer, receiver, row=0, column=0, channel=0):
        """Another residue in one place of one share."""
        share = self.shares[dealer][receiver].clone()
        share[channel, row, column] += 1 if share[channel, row, column] <= 0 else -1
        self.shares[dealer][receiver] = share

    def published(self, coins=COINS):
        """(M,dealers,t,receivers)."""
        session = self.session
        values = []
        for dealer in range(session.num_clients):
            of_dealer = []
            for receiver in range(session.num_clients):
                table = MemoryTable(session)
                table.put(dealer, 0, self.shares[dealer][receiver])
                of_dealer.append(combine_shares(session, table, dealer, coins, self.checks[dealer][:, receiver]))
            values.append(torch.stack(of_dealer, -1))
        return torch.stack(values, 1)


@pytest.fixture(scope="module")
def honest():
    session = session_of()
    return session, Dealt(session).published()


def test_honest_dealers_and_receivers_pass(honest):
    session, values = honest
    assert judge(session, values) == Verdict((), ())
    other = session_of(num_shards=1, max_colluders=3)
    assert judge(other, Dealt(other).published()) == Verdict((), ())


def test_what_is_published_is_the_combination_that_the_module_states():
    """The slow obvious twin: sums in Python integers, with factors from the stream's words."""
    from dresfl.protocol.dealer_check import _factors

    session = session_of()
    dealt, dealer, receiver = Dealt(session), 4, 2
    count = num_combinations(session)
    columns, rows = _factors(session, dealer, COINS, count)
    assert (columns.shape, rows.shape) == ((count, session.row_width), (count, session.coded_rows(dealer)))
    assert 0 <= min(columns.min(), rows.min()) <= max(columns.max(), rows.max()) < 2**21
    share, check = dealt.shares[dealer][receiver], dealt.checks[dealer][:, receiver]
    published = dealt.published()[:, dealer, :, receiver]
    for m, p in enumerate(session.field.moduli):
        for s in range(count):
            total = int(check[m, s])
            for r, w in itertools.product(range(share.shape[1]), range(share.shape[2])):
                total += int(rows[s, r]) * int(columns[s, w]) * int(share[m, r, w])
            assert total % p == int(published[m, s]) % p


@settings(max_examples=20)
@given(st.data())
def test_one_changed_residue_names_its_receiver(data):
    session = session_of()
    dealt = Dealt(session)
    dealer, receiver = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    row = data.draw(st.integers(0, session.coded_rows(dealer) - 1))
    column, channel = data.draw(st.integers(0, 4)), data.draw(st.integers(0, len(session.field.moduli) - 1))
    dealt.change(dealer, receiver, row, column, channel)
    assert judge(session, dealt.published()) == Verdict((), (receiver,))


@settings(max_examples=10)
@given(st.sets(st.integers(0, 8), min_size=2, max_size=9), st.integers(0, 8))
def test_a_dealer_that_deceives_more_receivers_than_may_lie_is_excluded(receivers, dealer):
    session = session_of()
    assert session.max_deviating == 1
    dealt = Dealt(session)
    for place, receiver in enumerate(sorted(receivers)):
        dealt.change(dealer, receiver, row=place % session.coded_rows(dealer), column=place % 5)
    dealt.change((dealer + 1) % 9, 5)
    assert judge(session, dealt.published()) == Verdict((dealer,), (5,))


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, 8), max_size=2), st.data())
def test_receivers_that_lie_exclude_nobody_while_they_are_few(honest, liars, data):
    _, values = honest
    session = session_of(max_liars=2)
    assert (session.max_deviating, num_combinations(session)) == (2, values.shape[2])
    values = values.clone()
    for liar in liars:
        dealers = data.draw(st.sets(st.integers(0, 8), min_size=1))
        for dealer in dealers:
            values[data.draw(st.integers(0, values.shape[0] - 1)), dealer, 0, liar] += data.draw(st.integers(1, 99))
    assert judge(session, values) == Verdict((), tuple(sorted(liars)))


def test_a_bad_check_share_is_a_bad_share():
    session = session_of()
    dealt = Dealt(session)
    dealt.checks[3] = dealt.checks[3].clone()
    dealt.checks[3][0, [1, 7], 0] += 1
    assert judge(session, dealt.published()) == Verdict((3,), ())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (CodeParameters(20, 1, 1), (1, 3)),  # clients, shards, colluders -> e, t
        (CodeParameters(20, 1, 1, max_liars=3), (3, 3)),
        (CodeParameters(20, 1, 3), (3, 3)),
        (CodeParameters(5, 2, 1), (1, 3)),
        (CodeParameters(3, 1, 1), (0, 2)),
    ],
)
def test_e_and_t_follow_from_the_parameters(code, expected):
    session = Session(NETWORK, replace(code, batch_size=4), (3,) * code.num_clients, seed=7)
    assert (session.max_deviating, num_combinations(session)) == expected


def test_small_primes_need_more_combinations():
    network = Network((Dense(1),), (1,), 1, 1)
    code, rows = CodeParameters(5, 1, 1, 2), (2,) * 5
    moduli = (23, 29, 31, 37, 41, 43, 47, 53)
    session = Session(network, code, rows, seed=7, moduli=moduli)
    q = -(-(2**21) // 23) / 2**21
    t = num_combinations(session)
    assert 5 * (2 * q - q * q) ** t < 2.0**-40 <= 5 * (2 * q - q * q) ** (t - 1)


def test_what_honest_receivers_publish_is_a_uniform_polynomial():
    """Exhaustive at p = 11: over all check polynomials every polynomial is published once, whatever was combined."""
    field = ResidueField((11,), 1)
    code = LagrangeCode(field, num_clients=5, num_shards=1, max_colluders=1, degree=2)
    for combined in ((0, 0), (3, 8), (10, 10)):  # shard and mask of a combination of rows
        seen = Counter()
        for check in itertools.product(range(11), repeat=2):
            hidden = torch.tensor([[a + b for a, b in zip(combined, check, strict=True)]], dtype=torch.float64)
            hidden = field.embed(hidden[0].to(torch.int64))  # (1,2)
            published = code.encode(hidden[:, :1], hidden[:, 1:])  # (1,5)
            seen[tuple(int(v) % 11 for v in published[0].tolist())] += 1
        polynomials = {tuple((a + b * x) % 11 for x in code.client_points) for a in range(11) for b in range(11)}
        assert seen == Counter(dict.fromkeys(polynomials, 1))


def test_check_values_come_from_the_secret_and_the_sharing_alone():
    session, secret = session_of(), SecretSeed(bytes(32))
    values = check_polynomial(session, secret)
    assert tuple(values.shape) == (len(session.field.moduli), 3, num_combinations(session))
    assert torch.equal(values, check_polynomial(session.without([1]), SecretSeed(bytes(32))))
    others = [
        check_polynomial(session, SecretSeed(bytes([1] * 32))),
        check_polynomial(replace(session, nonce=b"1"), secret),
    ]
    assert not any((values == other).any() for other in others)
    masks = session.field.uniform(secret.mask_key(session.sharing_id).view(1, 8), torch.tensor([0]), values[0].numel())
    assert not (values.flatten(1) == masks[:, 0]).any()  # no keystream of the masks
    assert torch.equal(check_shares(session, secret, [4, 0]), check_shares(session, secret)[:, [4, 0]])
    shares = check_shares(session, secret).swapaxes(1, 2)
    assert locate_errors(session.field.moduli, session.code.client_points, shares.numpy(), 3, 3) == ()


def test_wrong_arguments_are_refused(honest):
    session, values = honest
    with pytest.raises(UsageError, match="published values"):
        judge(session, values[:, 1:])
    table = MemoryTable(session)
    with pytest.raises(UsageError, match="check share"):
        combine_shares(session, table, 0, COINS, torch.zeros(1, 1))
    check = torch.zeros(len(session.field.moduli), num_combinations(session))
    with pytest.raises(MessageError, match="shares of dealer 0 are missing"):
        combine_shares(session, table, 0, COINS, check)
    table.put(0, 0, torch.zeros(len(session.field.moduli), session.coded_rows(0), session.row_width))
    with pytest.raises(UsageError, match="coins"):
        combine_shares(session, table, 0, b"heads", check)
