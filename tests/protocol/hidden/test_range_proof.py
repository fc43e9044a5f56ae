"""Proofs of ranges: honest rows pass, every kind of bad row is caught, and each part of the proof is needed for it."""

import itertools
import math
import random
from dataclasses import replace
from fractions import Fraction

import flint
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dresfl.coding import LagrangeCode
from dresfl.errors import InfeasiblePlan, MessageError, TooFewAnswers, UsageError
from dresfl.field import PublicStream, ResidueField, choose_moduli
from dresfl.protocol.hidden import range_proof
from dresfl.protocol.hidden.bit_layout import BitLayout
from dresfl.protocol.hidden.range_proof import (
    RangeProof,
    RangeVerdict,
    idempotents,
    judge_ranges,
    plan_range_proof,
    proof_digest,
    range_proof_cost,
    range_values,
    smallest_multiple,
)

MODULI = choose_moduli(120, more_than=30)
MODULUS = math.prod(MODULI)
FIELD = ResidueField(MODULI, len(MODULI))
LAYOUT = BitLayout(3, 2, -2, 4)  # weights 1, 2, 3: nine bits, then two of the label
DIGEST = proof_digest(bytes(32), bytes(range(32)))


def symmetric(integers):
    """Python integers (...) of any size as residues (M,...)."""
    table = np.array(integers, dtype=object)
    found = [np.asarray((table + p // 2) % p - p // 2, dtype=np.float64) for p in MODULI]
    return torch.from_numpy(np.stack(found))


def residues(*shape):
    """Uniform residues (M,*shape)."""
    return torch.stack([torch.randint(-(p // 2), p // 2 + 1, shape) for p in MODULI]).to(torch.float64)


class PlainMasks:
    """Masks of all clients without seeds: polynomials of the right degrees, whose values at β are drawn here."""

    def __init__(self, code, num_masks):
        self.code, self.num_masks, self.integers = code, num_masks, {}
        self._drawn = {}

    def bounded(self, label, bits, count):
        if label not in self._drawn:
            shape, code = (self.code.num_shards, count), self.code
            drawn = [sum(random.getrandbits(bits) for _ in range(self.num_masks)) for _ in range(math.prod(shape))]
            self.integers[label] = np.array(drawn, dtype=object).reshape(shape)  # (K,count)
            shards = symmetric(self.integers[label])
            self._drawn[label] = code.encode(shards, residues(code.max_colluders, count))  # (M,N,count)
        return self._drawn[label]

    def zeros(self, label, count):
        if label not in self._drawn:
            code = self.code
            free = code.recovery_threshold - code.num_shards
            words = [
                [math.prod(x - beta for beta in code.data_points) * x**power for power in range(free)]
                for x in code.client_points
            ]  # (N,R−K)
            self._drawn[label] = FIELD.matmul(symmetric(words), residues(free, count))  # (M,N,count)
        return self._drawn[label]


class ClientMasks:
    """Those of one client."""

    def __init__(self, masks, client):
        self.masks, self.client = masks, client

    def bounded(self, label, bits, count, *, total):
        assert not total
        found = self.masks.bounded(label, bits, count)[:, self.client]
        return found, found

    def zeros(self, label, count, *, total):
        assert not total
        return self.masks.zeros(label, count)[:, self.client]


class Table:
    """As much of a ShareTable as a proof reads."""

    def __init__(self, shares):
        self.shares = shares  # (M,rows,bits) for each dealer

    def missing(self, dealer):
        return [] if self.shares[dealer] is not None else [range(1)]

    def packed_rows(self, dealer, first, last):
        part = self.shares[dealer][:, first:last]
        packed = np.frombuffer(FIELD.pack(part.contiguous()), dtype=np.uint8)
        return packed.reshape(part.shape[0], part.shape[1], -1).swapaxes(0, 1)


class Sharing:
    """The bits of all dealers. Tests alter them before they are dealt, or the shares after that."""

    def __init__(self, num_clients=6, num_shards=1, mask_degree=1, degree=2, max_colluders=1, proof=None):
        sizes = {"num_clients": num_clients, "num_shards": num_shards, "max_colluders": mask_degree, "degree": degree}
        self.code, self.max_colluders = LagrangeCode(FIELD, **sizes), max_colluders
        self.coded_rows = [2 + i % 2 for i in range(num_clients)]
        self.proof = proof or plan_range_proof(
            MODULI, LAYOUT, num_clients=num_clients, max_deviating=1, num_masks=3, most_rows=3, kappa=40
        )
        self.bits = [self._honest(rows) for rows in self.coded_rows]  # (M,K,rows,bits) for each dealer
        self.masks = PlainMasks(self.code, self.proof.num_masks)
        self._shares = None

    def _honest(self, rows):
        shape = self.code.num_shards, rows
        inputs = torch.randint(LAYOUT.low, LAYOUT.high + 1, (*shape, LAYOUT.num_inputs))
        targets = torch.nn.functional.one_hot(torch.randint(0, 2, shape), 2)
        return FIELD.embed(LAYOUT.encode(torch.cat((inputs, targets), 2)))

    def set(self, dealer, bit, value, row=0, shard=0):
        """An integer of any size in place of a bit."""
        self.bits[dealer][:, shard, row, bit] = symmetric(value)

    @property
    def shares(self):
        """(M,N,rows,bits) for each dealer."""
        if self._shares is None:
            count = self.code.max_colluders
            self._shares = [self.code.encode(bits, residues(count, *bits.shape[2:])) for bits in self.bits]
        return self._shares

    def of(self, receiver):
        """(M,dealers,S+U)."""
        table = Table([shares[:, receiver] for shares in self.shares])
        return range_values(FIELD, self.proof, table, self.coded_rows, DIGEST, ClientMasks(self.masks, receiver))

    def published(self):
        """(M,dealers,S+U,receivers)."""
        return torch.stack([self.of(receiver) for receiver in range(self.code.num_clients)], 3)

    def judge(self, values=None, receivers=None, dealers=None):
        everybody = range(self.code.num_clients)
        return judge_ranges(
            self.code,
            self.proof,
            self.published() if values is None else values,
            everybody if receivers is None else receivers,
            everybody if dealers is None else dealers,
            self.max_colluders,
        )


HONEST = RangeVerdict((), ())
SETTINGS = [
    {},
    {"num_shards": 2, "num_clients": 8},
    {"degree": 4, "num_clients": 9},
    {"mask_degree": 2, "num_clients": 7},
    {"mask_degree": 2, "max_colluders": 2, "num_shards": 2, "num_clients": 12},
]
IDEMPOTENT = MODULUS // MODULI[0] * pow(MODULUS // MODULI[0], -1, MODULI[0])  # 1 in one channel, 0 in the others


def a_bit_of(value):
    return lambda sharing, dealer, shard: sharing.set(dealer, 4, value, 1, shard)


def two_ones(sharing, dealer, shard):
    for bit in (9, 10):
        sharing.set(dealer, bit, 1, 0, shard)


def no_one(sharing, dealer, shard):
    for bit in (9, 10):
        sharing.set(dealer, bit, 0, 0, shard)


def five_and_minus_four(sharing, dealer, shard):
    sharing.set(dealer, 9, 5, 0, shard)
    sharing.set(dealer, 10, -4, 0, shard)


def a_row_of_minus_ones(sharing, dealer, shard):
    for bit in range(LAYOUT.num_bits):
        sharing.set(dealer, bit, -1, 0, shard)


def a_label_that_differs(sharing, dealer, shard):
    """One class in one channel, the other one in the others: in every channel it is one-hot."""
    sharing.set(dealer, 9, IDEMPOTENT, 0, shard)
    sharing.set(dealer, 10, 1 - IDEMPOTENT, 0, shard)


CHEATS = {
    "a bit is 2": a_bit_of(2),
    "a bit is -1": a_bit_of(-1),
    "a bit is 2^131": a_bit_of(2**131),
    "a bit is M - 2": a_bit_of(MODULUS - 2),
    "a bit is 1 in one channel": a_bit_of(IDEMPOTENT),
    "a bit is 0 in one channel": a_bit_of(1 - IDEMPOTENT),
    "two ones in a label": two_ones,
    "no one in a label": no_one,
    "5 and -4 in a label": five_and_minus_four,
    "a row of -1": a_row_of_minus_ones,
    "a label differs between channels": a_label_that_differs,
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_honest_dealers_pass(setting):
    assert Sharing(**setting).judge() == HONEST


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_dealer_of_bad_rows_is_excluded_and_no_other(cheat):
    sharing = Sharing()
    CHEATS[cheat](sharing, 2, 0)
    assert sharing.judge() == RangeVerdict((2,), ())


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("setting", SETTINGS[1:2] + SETTINGS[4:])
def test_bad_rows_in_the_second_shard_alone_are_found(cheat, setting):
    sharing = Sharing(**setting)
    CHEATS[cheat](sharing, 5, 1)
    CHEATS[cheat](sharing, 6, 0)
    assert sharing.judge() == RangeVerdict((5, 6), ())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_value_that_is_not_a_bit_is_found(data):
    sharing = Sharing()
    channels = [data.draw(st.integers(0, 3)) for _ in MODULI]
    if len(set(channels)) == 1 and channels[0] < 2:
        channels[0] = 2
    value = sum(MODULUS // p * pow(MODULUS // p, -1, p) * c for p, c in zip(MODULI, channels, strict=True))
    dealer, bit = data.draw(st.integers(0, 5)), data.draw(st.integers(0, LAYOUT.num_bits - 1))
    sharing.set(dealer, bit, value, data.draw(st.integers(0, 1)))
    assert sharing.judge() == RangeVerdict((dealer,), ())


# -- controls: what passes if a part of the proof is left out --------------------------------------------------------


def test_without_squares_a_bit_of_two_passes():
    sharing = Sharing()
    sharing.proof = replace(sharing.proof, num_squares=0)
    for cheat in ("a bit is 2", "two ones in a label", "5 and -4 in a label"):
        CHEATS[cheat](sharing, 2, 0)
    assert sharing.judge() == HONEST


def test_without_sums_bits_that_differ_between_channels_pass():
    sharing = Sharing()
    sharing.proof = replace(sharing.proof, num_sums=0)
    for cheat in ("a bit is 1 in one channel", "a label differs between channels"):
        CHEATS[cheat](sharing, 2, 0)
    assert sharing.judge() == HONEST


def test_without_the_sum_of_a_label_two_ones_pass(monkeypatch):
    whole = range_proof._square_factors

    def without_the_sum(*arguments):
        sigma, rho = whole(*arguments)
        sigma[:, -1] = 0
        return sigma, rho

    monkeypatch.setattr(range_proof, "_square_factors", without_the_sum)
    sharing = Sharing()
    two_ones(sharing, 2, 0)
    no_one(sharing, 3, 0)
    assert sharing.judge() == HONEST


def test_where_the_limit_is_above_the_smallest_multiple_false_bits_pass():
    planned = Sharing().proof
    wide = replace(planned, num_sums=1, num_masks=1, mask_bits=MODULUS.bit_length() - 3)
    assert planned.fits(MODULI)
    assert not wide.fits(MODULI)
    excluded = {}
    for proof in (replace(planned, num_sums=1), wide):
        sharing = Sharing(proof=proof)
        for dealer in range(6):
            sharing.set(dealer, dealer, IDEMPOTENT)
        found = set()
        for _ in range(40):
            sharing.masks = PlainMasks(sharing.code, proof.num_masks)
            found.add(sharing.judge().excluded)
        excluded[proof.mask_bits] = found
    assert excluded[planned.mask_bits] == {tuple(range(6))}
    assert min(map(len, excluded[wide.mask_bits])) < 6


def test_with_fewer_than_r_plus_t_receivers_one_of_them_has_a_bad_dealer_pass():
    sharing = Sharing()
    sharing.set(2, 4, 2)
    threshold = sharing.code.recovery_threshold
    receivers = list(range(threshold))
    values = sharing.published()[..., receivers]
    with pytest.raises(TooFewAnswers, match=f"{threshold} clients can judge .* {threshold + 1} are needed"):
        sharing.judge(values, receivers)
    opened = sharing.code.decode(values.permute(0, 3, 1, 2).contiguous(), receivers)[:, 0]  # (M,dealers,S+U)
    wrong = opened[:, 2, : sharing.proof.num_squares]
    assert wrong.any()
    factor = FIELD.inverse(sharing.code.decoding_matrix(receivers)[:, 0, -1])  # how the last one moves what is opened
    squares = slice(0, sharing.proof.num_squares)
    values[:, 2, squares, -1] = FIELD.sub(values[:, 2, squares, -1], FIELD.mul(wrong, factor.unsqueeze(1)))
    sharing.max_colluders = 0
    assert sharing.judge(values, receivers) == HONEST


# -- receivers that lie, dealers off the polynomial ------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, 8), max_size=2), st.integers(0, 8), st.data())
def test_few_liars_are_named_and_change_nothing(liars, bad, data):
    sharing = Sharing(num_clients=9, max_colluders=2)  # R = 3: min(6/2, 4) = 3 errors are located
    sharing.set(bad, 3, 2)
    values = sharing.published()
    for liar in liars:
        for dealer in data.draw(st.sets(st.integers(0, 8), min_size=1)):
            place = (
                data.draw(st.integers(0, values.shape[0] - 1)),
                dealer,
                data.draw(st.integers(0, values.shape[2] - 1)),
            )
            values[(*place, liar)] += data.draw(st.integers(1, 10**6))
    assert sharing.judge(values) == RangeVerdict((bad,), tuple(sorted(liars)))


def test_more_liars_than_can_be_named_exclude_nobody():
    sharing = Sharing(num_clients=5, degree=4)  # R = 5 − 0: there is no spare receiver beyond it
    with pytest.raises(TooFewAnswers, match="5 clients can judge"):
        sharing.judge()
    sharing = Sharing(num_clients=6, degree=4)  # R + T = 6: one lie is seen, but not located
    values = sharing.published()
    assert sharing.judge(values) == HONEST
    values[0, 3, 0, 1] += 1
    with pytest.raises(TooFewAnswers, match="none can be named"):
        sharing.judge(values)


def test_a_share_that_is_off_the_polynomial_is_its_receivers_deviation():
    """The dealers' check finds it: then the receiver takes no part. If it did, it would be named here."""
    sharing = Sharing()
    sharing.shares[3][0, 2, 0, 0] += 1
    values = sharing.published()
    assert sharing.judge(values) == RangeVerdict((), (2,))
    others = [client for client in range(6) if client != 2]
    assert sharing.judge(values[..., others], others) == HONEST


def test_dealers_without_polynomials_are_not_judged_here():
    sharing = Sharing()
    for receiver in (0, 2, 4):
        sharing.shares[3][0, receiver, 0, 0] += 1 + receiver
    values = sharing.published()
    with pytest.raises(TooFewAnswers, match="none can be named"):
        sharing.judge(values)
    assert sharing.judge(values, dealers=[0, 1, 2, 4, 5]) == HONEST
    assert sharing.judge(values, dealers=[]) == HONEST


# -- what is published -----------------------------------------------------------------------------------------------


def test_what_is_published_is_what_the_module_states(monkeypatch):
    """The slow obvious twin, in Python integers, with the rows in several blocks."""
    monkeypatch.setattr(range_proof, "_WORDS", 1)
    sharing, receiver = Sharing(num_shards=2, num_clients=8), 4
    proof = sharing.proof
    stream = PublicStream(int.from_bytes(DIGEST, "little"))
    sigma, rho = range_proof._square_factors(stream, proof, 3)
    factors = range_proof._sum_factors(stream, proof, 0, 3)
    assert (sigma.shape, rho.shape) == ((proof.num_squares, LAYOUT.num_bits + 1), (proof.num_squares, 3))
    assert factors.shape == (proof.num_sums, 3, LAYOUT.num_bits)
    assert 0 <= factors.min() <= factors.max() < 2**proof.factor_bits
    assert len({tuple(part) for part in (*sigma.tolist(), *factors.reshape(-1, LAYOUT.num_bits).tolist())}) > 9
    published = sharing.of(receiver)
    masks = sharing.masks.bounded(DIGEST + b"sums", proof.mask_bits, 8 * proof.num_sums)[:, receiver].view(
        len(MODULI), 8, -1
    )
    zeros = sharing.masks.zeros(DIGEST + b"zero", 8 * proof.num_values)[:, receiver].view(len(MODULI), 8, -1)
    for dealer, (m, p) in itertools.product((0, 3), enumerate(MODULI)):
        share = sharing.shares[dealer][m, receiver].to(torch.int64).tolist()
        for s in range(proof.num_squares):
            total = int(zeros[m, dealer, s])
            for r, row in enumerate(share):
                inner = sum(int(sigma[s, j]) * (x * x - x) for j, x in enumerate(row))
                total += int(rho[s, r]) * (inner + int(sigma[s, -1]) * (row[9] + row[10] - 1))
            assert total % p == int(published[m, dealer, s]) % p
        for u in range(proof.num_sums):
            total = int(zeros[m, dealer, proof.num_squares + u]) + int(masks[m, dealer, u])
            total += sum(int(factors[u, r, j]) * x for r, row in enumerate(share) for j, x in enumerate(row))
            assert total % p == int(published[m, dealer, proof.num_squares + u]) % p


def test_an_opened_sum_is_the_sum_under_its_mask():
    """It is the integer Σ c·bit + r, below the limit, and says of the bits what a mask of κ more bits lets through."""
    sharing = Sharing()
    proof, values = sharing.proof, sharing.published()
    opened = sharing.code.decode(values[..., :3].permute(0, 3, 1, 2).contiguous(), [0, 1, 2])[:, 0]
    factors = range_proof._sum_factors(PublicStream(int.from_bytes(DIGEST, "little")), proof, 0, 3)
    masks = sharing.masks.integers[DIGEST + b"sums"].reshape(6, proof.num_sums)
    for dealer, u in itertools.product(range(6), range(proof.num_sums)):
        bits = sharing.bits[dealer][0, 0].to(torch.int64).numpy()  # (rows,bits)
        total = int((factors[u, : len(bits)] * bits).sum())
        assert FIELD.lift_exact(opened[:, dealer, proof.num_squares + u]) == [total + masks[dealer, u]]
        assert total < 2 ** (proof.mask_bits - 40)


def test_other_coins_have_other_factors_and_other_masks():
    sharing, seen = Sharing(), []
    masks = ClientMasks(sharing.masks, 0)
    table = Table([shares[:, 0] for shares in sharing.shares])
    for coins in (bytes(32), bytes(range(32))):
        digest = proof_digest(bytes(32), coins)
        seen.append(range_values(FIELD, sharing.proof, table, sharing.coded_rows, digest, masks))
    assert not (seen[0] == seen[1]).any()
    assert len(sharing.masks.integers) == 2
    assert proof_digest(bytes(32), bytes(32)) != proof_digest(bytes([1] * 32), bytes(32))


# -- the moduli ------------------------------------------------------------------------------------------------------

SMALL = st.sets(st.sampled_from([3, 5, 7, 11, 13, 17, 19, 23]), min_size=2, max_size=4).map(lambda s: tuple(sorted(s)))


@given(SMALL, st.integers(1, 200))
def test_the_smallest_multiple_is_the_least_of_all(moduli, most):
    product = math.prod(moduli)
    everything = [e for e in range(2, product) if e * e % product == e]
    assert sorted(idempotents(moduli)) == everything
    assert len(everything) == 2 ** len(moduli) - 2
    magnitudes = (min(d * e % product, -d * e % product) for e in everything for d in range(1, most + 1))
    assert smallest_multiple(moduli, most) == min(magnitudes)


def test_idempotents_agree_with_flint():
    found = idempotents(MODULI)
    context = flint.fmpz_mod_ctx(MODULUS)
    assert len(set(found)) == 2 ** len(MODULI) - 2
    for e in found:
        element = context(e)
        assert element * element == element
        assert element * (context(1) - element) == context(0)
    assert {int(flint.nmod(e, p)) for e in found for p in MODULI} == {0, 1}


def test_at_most_one_factor_lets_a_false_bit_pass():
    """Exhaustive over the factors of one bit, for all idempotents, whatever the other bits and the mask are."""
    proof = RangeProof(LAYOUT, 1, 1, 8, 12, 3, 2)
    moduli = choose_moduli(24, more_than=30)
    assert proof.fits(moduli)
    product = math.prod(moduli)
    for e in idempotents(moduli):
        for _ in range(20):
            rest = random.randrange(product)  # other bits may be anything, too
            passing = 0
            for c in range(2**proof.factor_bits):
                reached = (rest + c * e) % product
                # some mask in its range brings the sum into 0 … L
                passing += reached <= proof.limit or reached + proof.most_mask >= product
            assert passing <= 1


def test_the_planned_numbers_of_sums_are_the_least_that_miss_seldom_enough():
    for clients in (3, 20, 90):
        proof = plan_range_proof(
            MODULI, LAYOUT, num_clients=clients, max_deviating=1, num_masks=20, most_rows=3000, kappa=72
        )
        tries = 2 * clients * clients * 2 ** min(clients, 64)
        q = Fraction(1, 2**21)
        for missed, count in ((2 * q - q * q, proof.num_squares), (Fraction(1, 2**proof.factor_bits), proof.num_sums)):
            assert tries * missed**count < Fraction(1, 2**40) <= tries * missed ** (count - 1)
        assert proof.fits(MODULI)
        assert proof.mask_bits >= math.log2(proof.most_rows * LAYOUT.num_bits * (2**proof.factor_bits - 1)) + 72


def test_the_widest_factors_that_fit_are_planned():
    sizes = {"num_clients": 20, "max_deviating": 1, "num_masks": 20, "most_rows": 3000, "kappa": 72}
    layout = BitLayout(784, 10, 0, 16)
    assert layout.num_bits == 3930
    for bits, width in ((95, range(1, 21)), (140, range(21, 22))):
        moduli = choose_moduli(bits, more_than=30)
        proof = plan_range_proof(moduli, layout, **sizes)
        assert proof.factor_bits in width
        if proof.factor_bits < 21:
            wider = proof.factor_bits + 1
            more = replace(proof, factor_bits=wider, mask_bits=proof.mask_bits + 1)
            assert not more.fits(moduli)


def test_moduli_that_are_too_small_are_refused():
    sizes = {"num_clients": 20, "max_deviating": 1, "num_masks": 20, "most_rows": 3000, "kappa": 72}
    with pytest.raises(InfeasiblePlan, match="cannot be proven"):
        plan_range_proof(choose_moduli(60, more_than=30), LAYOUT, **sizes)
    with pytest.raises(InfeasiblePlan, match="too many idempotents"):
        plan_range_proof(choose_moduli(400, more_than=30), LAYOUT, **sizes)


def test_the_cost_is_that_of_the_sizes():
    layout = BitLayout(784, 10, 0, 16)
    moduli = choose_moduli(140, more_than=30)
    proof = plan_range_proof(moduli, layout, num_clients=20, max_deviating=1, num_masks=20, most_rows=3000, kappa=72)
    cost = range_proof_cost(ResidueField(moduli, 7), proof, (3000,) * 20)
    assert cost.growth == 3930 / 794
    assert cost.share_bytes == 20 * 3000 * 3930 * 7 * 3
    assert cost.published_bytes == 20 * (proof.num_squares + proof.num_sums) * 7 * 3
    assert 0.5 < cost.seconds < 20 * 3000 * 3930 * 100e-9


def test_wrong_arguments_are_refused():
    sharing = Sharing()
    with pytest.raises(UsageError, match="published values"):
        sharing.judge(sharing.published()[..., 1:])
    table = Table([shares[:, 0] for shares in sharing.shares])
    table.shares[3] = None
    with pytest.raises(MessageError, match="shares are missing"):
        range_values(FIELD, sharing.proof, table, sharing.coded_rows, DIGEST, ClientMasks(sharing.masks, 0))


def test_targets_that_are_numbers_are_proven_like_inputs(monkeypatch):
    """There is no label whose classes sum to 1: honest dealers pass, and one whose target leaves its range does not."""
    monkeypatch.setitem(globals(), "LAYOUT", BitLayout(3, 2, -2, 4, target_limit=2))
    proof = plan_range_proof(MODULI, LAYOUT, num_clients=6, max_deviating=1, num_masks=3, most_rows=3, kappa=40)
    assert Sharing(proof=proof).judge() == HONEST
    cheating = Sharing(proof=proof)
    cheating.set(2, LAYOUT.num_bits - 1, 2)
    assert cheating.judge() == RangeVerdict((2,), ())
