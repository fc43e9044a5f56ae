"""The check of dealers as a whole, over real sessions, masks and seeds: degree, seeds and ranges, and one verdict."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dresfl.coding import CodeParameters
from dresfl.errors import DataError, InfeasiblePlan, MessageError, TooFewAnswers
from dresfl.field import SecretSeed
from dresfl.model import Dense, Network, Square
from dresfl.optimizers import Optimizer
from dresfl.protocol import (
    Client,
    Conclusion,
    Findings,
    MemoryTable,
    Session,
    Verdict,
    checkers_needed,
    conclude,
    examine_dealers,
    findings_bytes,
    held_set_ups,
    most_findings_bytes,
    num_combinations,
)
from dresfl.protocol.hidden.bit_layout import BitLayout
from dresfl.protocol.hidden.coded_rows import TableRows
from dresfl.protocol.hidden.plan import make_plan
from dresfl.protocol.hidden.range_proof import plan_range_proof
from dresfl.protocol.hidden.settings import HiddenSettings

NETWORK = Network((Dense(4), Square(), Dense(2)), (3,), 2, 4)
OPTIMIZER = Optimizer(method="sgd", learning_rate=0.05, schedule="constant")
COINS = bytes(range(32))


def session_of(num_clients=6, num_shards=1, max_colluders=1, rows=3, **settings):
    parameters = CodeParameters(num_clients, num_shards, max_colluders, 4)
    plan = make_plan(NETWORK, parameters, HiddenSettings(schedule="S2", **settings), OPTIMIZER, 5)
    client_rows = tuple(rows + i % 3 for i in range(num_clients))
    return Session(plan.network, parameters, client_rows, seed=7, nonce=b"n", hidden=plan)


class Dealt:
    """Every client's rows, dealt. `alter` changes the bits that a dealer encodes, `shares` what receivers are given."""

    def __init__(self, session, alter=None):
        self.session = session
        self.rows = [
            (torch.randint(-4, 5, (count, 3)), F.one_hot(torch.randint(0, 2, (count,)), 2))
            for count in session.client_rows
        ]
        self.tables = [MemoryTable(session) for _ in self.rows]
        self.secrets = [SecretSeed.fresh() for _ in self.rows]
        self.clients = [
            Client(session, i, secret, *rows, table)
            for i, (secret, rows, table) in enumerate(zip(self.secrets, self.rows, self.tables, strict=True))
        ]
        everybody = range(session.num_clients)
        self.shares = {d: [s.residues for s in client.deal_to(everybody)] for d, client in enumerate(self.clients)}
        self.set_ups = {d: client.deal_set_up(everybody) for d, client in enumerate(self.clients)}

    def shift(self, dealer, value, bit=0, row=0):
        """Add an integer to a bit: the same at every point, so that the shares stay on their polynomial."""
        for share in self.shares[dealer]:
            moved = [
                (int(x) + value) % p
                for x, p in zip(share[:, row, bit].tolist(), self.session.field.moduli, strict=True)
            ]
            share[:, row, bit] = torch.tensor(
                [x - p if x > p // 2 else x for x, p in zip(moved, self.session.field.moduli, strict=True)]
            )

    def published(self, clients=None):
        """What clients publish, as it travels."""
        for receiver, table in enumerate(self.tables):
            for dealer in range(self.session.num_clients):
                table.put(dealer, 0, self.shares[dealer][receiver])
                table.put_set_up(dealer, self.set_ups[dealer][receiver])
        found = {}
        for client in clients if clients is not None else range(self.session.num_clients):
            set_ups = held_set_ups(self.session, client, self.tables[client])
            said = examine_dealers(self.session, client, self.tables[client], set_ups, COINS)
            packed = said.pack(self.session)
            assert len(packed) == findings_bytes(self.session) <= most_findings_bytes(self.session)
            found[client] = Findings.unpack(self.session, client, said.hashes, packed)
        return found


@pytest.mark.parametrize("sizes", [{}, {"num_clients": 8, "num_shards": 2}, {"num_clients": 8, "max_colluders": 2}])
def test_honest_clients_conclude_that_all_is_well(sizes):
    session = session_of(**sizes)
    assert session.range_proof is not None
    assert conclude(session, Dealt(session).published()) == Conclusion(Verdict())


def test_the_open_mode_has_no_ranges():
    session = Session(NETWORK, CodeParameters(9, 1, 1, 4), (3,) * 9, seed=7)
    assert (session.range_proof, session.bit_layout, session.row_width) == (None, None, 5)
    published = Dealt(session).published()
    assert published[0].ranges is None
    assert conclude(session, published) == Conclusion(Verdict())


def test_trusted_dealers_deal_rows_as_they_are():
    session = session_of(trusted_dealers=True)
    assert (session.range_proof, session.row_width) == (None, 5)
    dealt = Dealt(session)
    dealt.shift(2, 2**80)
    assert conclude(session, dealt.published()) == Conclusion(Verdict())  # nobody proves anything


@pytest.mark.parametrize("value", [2, -2, 2**80])  # what is added to a bit
def test_a_bit_that_is_none_excludes_its_dealer(value):
    session = session_of()
    dealt = Dealt(session)
    dealt.shift(2, value, bit=5, row=1)
    assert conclude(session, dealt.published()).verdict == Verdict((2,), ())


def test_bad_degrees_bad_seeds_and_bad_ranges_together():
    session = session_of(num_clients=9)
    dealt = Dealt(session)
    dealt.shift(2, 2)  # out of range
    for receiver in (0, 3, 5):
        dealt.shares[4][receiver][0, 0, 0] += 1 if dealt.shares[4][receiver][0, 0, 0] <= 0 else -1  # no polynomial
    seed = next(number for number in session.seed_sets.dealt_by(6) if 7 in session.seed_sets.holders(number))
    place = session.seed_sets.dealt_by(6).index(seed)
    other = bytearray(dealt.set_ups[6][7])
    other[32 * place] ^= 1  # another seed than the others hold
    dealt.set_ups[6][7] = bytes(other)
    found = conclude(session, dealt.published())
    assert found == Conclusion(Verdict((2, 4), (7,)), ((6, 7),))


def test_everybody_who_is_there_comes_to_the_same_verdict_without_the_absent():
    session = session_of(num_clients=7)
    dealt = Dealt(session)
    dealt.shift(1, 2)
    assert checkers_needed(session) == 4
    assert conclude(session, dealt.published([0, 2, 3, 5, 6])).verdict == Verdict((1,), (1, 4))
    with pytest.raises(TooFewAnswers):
        conclude(session, dealt.published([0, 2, 3]))


def test_a_liar_deviates_and_excludes_nobody():
    session = session_of(num_clients=7)
    published = Dealt(session).published()
    ranges = published[3].ranges.clone()
    ranges[0, :, 0] += 1
    published[3] = replace(published[3], ranges=ranges)
    assert conclude(session, published).verdict == Verdict((), (3,))


@pytest.mark.parametrize("sizes", [{}, {"num_clients": 8, "num_shards": 2}])
def test_batches_are_the_rows_that_were_dealt(sizes):
    """What clients compute on decodes to the rows themselves, as it does where rows are not dealt as bits."""
    session = session_of(**sizes)
    dealt = Dealt(session)
    dealt.published()
    field, needed = session.field, session.num_shards + session.mask_degree
    batches = [TableRows(session, table).batch(3) for table in dealt.tables]
    rows = session.batch_rows(3)
    linear = replace(session.code, degree=1)
    for part in (0, 1):
        answers = torch.stack([batch[part][:, 0] for batch in batches[-needed:]], 1)
        found = field.lift(linear.decode(answers, range(session.num_clients - needed, session.num_clients)))  # (K,B,·)
        for place, (dealer, row) in enumerate(zip(rows.dealers.tolist(), rows.rows.tolist(), strict=True)):
            hidden = session.shard_rows(dealer)[row]
            assert torch.equal(found[:, place], dealt.rows[dealer][part][hidden].to(torch.float64))


def test_rows_out_of_range_are_refused_by_their_own_client():
    session = session_of()
    rows = session.client_rows[0]
    labels = F.one_hot(torch.zeros(rows, dtype=torch.int64), 2)
    for inputs, targets in (
        (torch.full((rows, 3), 5), labels),
        (torch.zeros((rows, 3), dtype=torch.int64), 1 - labels * 0),
    ):
        with pytest.raises(DataError):
            Client(session, 0, SecretSeed.fresh(), inputs, targets)


def test_the_layout_follows_from_the_settings():
    assert session_of().bit_layout == BitLayout(3, 2, -4, 4)
    assert session_of(nonnegative_inputs=True).bit_layout == BitLayout(3, 2, 0, 4)
    digests = {
        session_of(**settings).sharing_digest
        for settings in ({}, {"nonnegative_inputs": True}, {"trusted_dealers": True})
    }
    assert len(digests) == 3


def test_a_hidden_session_counts_the_choices_of_a_coordinator():
    """The dealers' check misses 2^6 times less often than it would where coins cannot be chosen from."""
    session = session_of()
    q = 2.0**-21
    assert 6 * 2**6 * (2 * q - q * q) ** num_combinations(session) < 2.0**-40
    assert checkers_needed(session) == 4


def test_moduli_that_prove_nothing_are_refused():
    session = session_of()
    with pytest.raises(InfeasiblePlan, match="cannot be proven"):
        plan_range_proof(
            session.field.moduli[:3],
            session.bit_layout,
            num_clients=6,
            max_deviating=1,
            num_masks=6,
            most_rows=5,
            kappa=72,
        )


def test_findings_of_another_form_are_refused():
    session = session_of()
    said = Dealt(session).published([0])[0]
    packed = said.pack(session)
    with pytest.raises(MessageError, match="hashes of seeds"):
        Findings.unpack(session, 0, said.hashes[1:], packed)
    with pytest.raises(MessageError, match="check values of"):
        Findings.unpack(session, 0, said.hashes, packed[1:])
    with pytest.raises(MessageError, match="not below its modulus"):
        Findings.unpack(session, 0, said.hashes, packed[:-3] + b"\xff\xff\xff")
