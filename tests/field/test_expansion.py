"""Sums of uniform residues and bounded integers are the addressed keystream, recomputed with OpenSSL and integers."""

import itertools
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import FieldError
from dresfl.field import ByteField, Domain, ResidueField
from dresfl.field.random import MOST_BITS, uniform_sum
from dresfl.kernels import cpu
from field.primes import TINY, prime_sets
from field.test_random import keys_of, keystream

REJECTING = (16647203, 16711943)  # 2^32 mod p nearly p: one word in 256 is rejected
COMPILED = cpu._compiled


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch):
    """Both paths; without Numba the compiled one is skipped."""
    if request.param == "torch":
        monkeypatch.setattr(cpu, "_compiled", None)
    elif COMPILED is None:
        pytest.skip("Numba is not installed")
    return request.param


def plain_words(key, channel, p, count):
    """r[m,j] by its definition, and how many words were rejected."""
    streams = (keystream(key, 256 * Domain.BLINDING + attempt, channel, count).tolist() for attempt in range(256))
    values, rejected = [None] * count, -count
    while None in values:
        stream = next(streams)
        rejected += sum(value is None for value in values)
        for j, word in enumerate(stream):
            if values[j] is None and word < 2**32 // p * p:
                values[j] = word
    return values, rejected


def plain_sum(keys, moduli, coefficients, count):
    """Σ_s coefficients[m][s]·r_s[m,j] modulo p_m, in integers."""
    sums, rejected = [], 0
    for channel, p in enumerate(moduli):
        total = [0] * count
        for key, coefficient in zip(keys, coefficients[channel], strict=True):
            values, more = plain_words(key, channel, p, count)
            rejected += more
            total = [(t + coefficient * v) % p for t, v in zip(total, values, strict=True)]
        sums.append(total)
    return sums, rejected


def canonical(residues, moduli):
    """Residues (M,...) as integers in [0, p); the stored ones are symmetric."""
    p = torch.tensor(moduli).view(-1, *[1] * (residues.dim() - 1))
    assert residues.abs().le(p // 2).all()
    return (residues.to(torch.int64) % p).tolist()


@given(primes=prime_sets, seeds=st.integers(0, 4), count=st.integers(0, 70), rng=st.randoms(use_true_random=False))
def test_sums_are_the_addressed_keystream(primes, seeds, count, rng):
    keys = [rng.randbytes(32) for _ in range(seeds)]
    coefficients = [[rng.randrange(p) for _ in keys] for p in primes]
    table = keys_of(*keys) if keys else torch.empty((0, 8), dtype=torch.int32)
    symmetric = [[c - p if c > p // 2 else c for c in row] for row, p in zip(coefficients, primes, strict=True)]
    found = ResidueField(primes, 1).uniform_sum(table, torch.tensor(symmetric, dtype=torch.float64), count)
    assert canonical(found, primes) == plain_sum(keys, primes, coefficients, count)[0]


@pytest.mark.parametrize("count", [255, 1537])
def test_rejected_words_are_drawn_again(path, count):
    rng = random.Random(count)
    keys = [rng.randbytes(32) for _ in range(3)]
    coefficients = [[rng.randrange(p) for _ in keys] for p in REJECTING]
    expected, rejected = plain_sum(keys, REJECTING, coefficients, count)
    assert rejected > count // 50
    field = ResidueField(REJECTING, 1)
    found = field.uniform_sum(keys_of(*keys), torch.tensor(coefficients, dtype=torch.float64), count)
    assert canonical(found, REJECTING) == expected


def test_a_byte_field_has_the_same_sums(path):
    primes, keys = tuple(TINY[-4:]), keys_of(bytes(32), bytes(range(32)))
    coefficients = torch.tensor([[3, -1], [4, 1], [-5, 9], [2, 6]])
    found = ByteField(primes, 1).uniform_sum(keys, coefficients.to(torch.int8), 100)
    assert found.dtype == torch.int8
    assert ResidueField(primes, 1).uniform_sum(keys, coefficients.to(torch.float64), 100).equal(found.double())


def test_a_longer_sum_begins_with_the_shorter(path):
    field, keys = ResidueField(REJECTING, 1), keys_of(bytes(32), bytes(range(32)))
    coefficients = field.embed(torch.tensor([5, 7]))
    long = field.uniform_sum(keys, coefficients, 900)
    assert all(field.uniform_sum(keys, coefficients, n).equal(long[:, :n]) for n in (1, 16, 256, 300))


def test_torch_works_a_few_words_at_a_time(monkeypatch):
    monkeypatch.setattr(cpu, "_compiled", None)
    field, keys = ResidueField(REJECTING, 1), keys_of(bytes(32), bytes(range(32)))
    coefficients = field.embed(torch.tensor([5, 7]))
    whole = field.uniform_sum(keys, coefficients, 500)
    monkeypatch.setattr("dresfl.field.random._WORDS_HELD", 200)
    assert field.uniform_sum(keys, coefficients, 500).equal(whole)


def test_channels_and_keys_never_share_a_stream():
    field, one = ResidueField((16777199, 16777213), 1), torch.ones((2, 1), dtype=torch.float64)
    found = [field.uniform_sum(keys_of(key), one, 64)[m] for key in (bytes(32), bytes(range(32))) for m in range(2)]
    assert all(len(set(a.tolist()) & set(b.tolist())) < 3 for a, b in itertools.combinations(found, 2))


def test_a_broken_keystream_ends():
    p = torch.tensor([2.0**33], dtype=torch.float64)
    with pytest.raises(FieldError, match="256 rejected words"):
        uniform_sum(p, 1 / p, keys_of(bytes(32)), torch.ones((1, 1), dtype=torch.float64), 1)


def test_coefficients_of_another_shape_are_refused():
    with pytest.raises(FieldError, match=r"\(2,1\) expected"):
        ResidueField(REJECTING, 1).uniform_sum(keys_of(bytes(32)), torch.ones((2, 2)), 1)


def plain_bounded(key, bits, count):
    limbs = [keystream(key, 256 * Domain.BOUNDED, i, count).tolist() for i in range(-(-bits // 32))]
    return [sum(words[j] << (32 * i) for i, words in enumerate(limbs)) % 2**bits for j in range(count)]


@pytest.mark.parametrize("bits", [1, 31, 32, 33, 64, 200])
def test_bounded_integers_are_the_addressed_keystream(path, bits):
    primes, keys, count = (23, 65521, 16777213), [bytes(32), bytes(range(32))], 300
    found = canonical(ResidueField(primes, 1).bounded(keys_of(*keys), bits, count), primes)
    integers = [plain_bounded(key, bits, count) for key in keys]
    assert max(map(max, integers)).bit_length() == bits
    assert found == [[[x % p for x in row] for row in integers] for p in primes]


def test_bounded_integers_lift_to_themselves(path):
    field = ResidueField((16777153, 16777183, 16777199, 16777213), 3)
    found = field.lift_exact(field.bounded(keys_of(bytes(32)), 70, 20))
    assert found == plain_bounded(bytes(32), 70, 20)


@pytest.mark.parametrize("bits", [0, -1, MOST_BITS + 1])
def test_a_wrong_number_of_bits_is_refused(bits):
    with pytest.raises(FieldError, match=f"not {bits}"):
        ResidueField((23,), 1).bounded(keys_of(bytes(32)), bits, 1)


def test_the_most_bits(path):
    found = ResidueField((251, 16777213), 1).bounded(keys_of(bytes(32)), MOST_BITS, 2)
    assert canonical(found, (251, 16777213)) == [
        [[x % p for x in plain_bounded(bytes(32), MOST_BITS, 2)]] for p in (251, 16777213)
    ]


def plain_bounded_sum(keys, moduli, coefficients, bits, count, first):
    """Σ_s coefficients[m][s]·x_s[first + j] modulo p_m, in integers."""
    drawn = [plain_bounded(key, bits, first + count)[first:] for key in keys]
    return [
        [sum(c * x for c, x in zip(row, column, strict=True)) % p for column in zip(*drawn, strict=True)]
        for p, row in zip(moduli, coefficients, strict=True)
    ]


@pytest.mark.parametrize(
    ("seeds", "bits", "count", "first"),
    [(1, 1, 1, 0), (3, 18, 40, 7), (2, 126, 700, 0), (5, 32, 513, 513), (70, 125, 20, 3), (300, 31, 18, 16)],
)
def test_sums_of_bounded_integers_are_the_addressed_keystream(path, seeds, bits, count, first):
    primes, rng = (23, 65521, 16777199, 16777213), random.Random(count)
    keys = [rng.randbytes(32) for _ in range(seeds)]
    coefficients = [[rng.randrange(p) for _ in keys] for p in primes]
    symmetric = [[c - p if c > p // 2 else c for c in row] for row, p in zip(coefficients, primes, strict=True)]
    expected = plain_bounded_sum(keys, primes, coefficients, bits, count, first)
    for given_ in (coefficients, symmetric):
        table = torch.tensor(given_, dtype=torch.float64)
        found = ResidueField(primes, 1).bounded_sum(keys_of(*keys), table, bits, count, first)
        assert canonical(found, primes) == expected


@pytest.mark.parametrize(("bits", "seeds"), [(MOST_BITS, 2), (64, 1000), (32, 256), (32, 255)])
def test_long_sums_of_the_largest_terms(path, bits, seeds):
    """Many products of a 24-bit coefficient and a 32-bit word: sums are reduced before they overflow."""
    p, keys = 16777213, [bytes([s % 256, s // 256]) * 16 for s in range(seeds)]
    coefficients = torch.full((1, seeds), -1.0, dtype=torch.float64)
    found = ResidueField((p,), 1).bounded_sum(keys_of(*keys), coefficients, bits, 3)
    assert canonical(found, (p,)) == plain_bounded_sum(keys, (p,), [[p - 1] * seeds], bits, 3, 0)


def test_a_byte_field_has_the_same_bounded_sums(path):
    primes, keys = tuple(TINY[-4:]), keys_of(bytes(32), bytes(range(32)))
    coefficients = torch.tensor([[3, -1], [4, 1], [-5, 9], [2, 6]])
    found = ByteField(primes, 1).bounded_sum(keys, coefficients.to(torch.int8), 77, 100, 5)
    assert found.dtype == torch.int8
    assert ResidueField(primes, 1).bounded_sum(keys, coefficients.to(torch.float64), 77, 100, 5).equal(found.double())


def test_torch_sums_a_few_bounded_integers_at_a_time(monkeypatch):
    monkeypatch.setattr(cpu, "_compiled", None)
    field, keys = ResidueField(REJECTING, 1), keys_of(bytes(32), bytes(range(32)))
    coefficients = field.embed(torch.tensor([5, 7]))
    whole = field.bounded_sum(keys, coefficients, 40, 500, 21)
    monkeypatch.setattr("dresfl.field.random._WORDS_HELD", 200)
    assert field.bounded_sum(keys, coefficients, 40, 500, 21).equal(whole)


def test_no_bounded_integers_no_sum(path):
    field = ResidueField(REJECTING, 1)
    none = torch.empty((0, 8), dtype=torch.int32)
    assert field.bounded_sum(none, torch.empty((2, 0), dtype=torch.float64), 40, 5).eq(0).all()
    assert field.bounded_sum(keys_of(bytes(32)), torch.ones((2, 1), dtype=torch.float64), 40, 0).shape == (2, 0)


def test_bounded_sums_refuse_what_does_not_fit():
    field = ResidueField(REJECTING, 1)
    with pytest.raises(FieldError, match=r"\(2,1\) expected"):
        field.bounded_sum(keys_of(bytes(32)), torch.ones((2, 2)), 9, 1)
    with pytest.raises(FieldError, match="not 0"):
        field.bounded_sum(keys_of(bytes(32)), torch.ones((2, 1)), 0, 1)
