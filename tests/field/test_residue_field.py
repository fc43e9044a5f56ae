"""The residue field is Z_M: held against Python integers and against one big-integer field per channel."""

import copy
import hashlib
import itertools
import math
import pickle
import random
import struct

import flint
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import FieldError, MessageError
from dresfl.field import (
    HEADROOM_BITS,
    Domain,
    PublicStream,
    ResidueField,
    SecretSeed,
    choose_moduli,
    modulus_limit,
    num_value_moduli,
)
from dresfl.field.moduli import LARGEST_MODULUS, is_prime
from dresfl.field.random import uniform_elements
from dresfl.kernels import SLACK, exact_inner_length
from dresfl.model import mlp
from reference.flint_field import FlintField

TINY = [p for p in range(5, 256) if flint.fmpz(p).is_prime()]
MIDDLE = [257, 1009, 65521, 65537, 1048573]
LARGE = [4194301, 6780383, 16777183, 16777199, 16777213]
BIG = FlintField(2**440 - 33)

prime_sets = st.one_of(
    st.lists(st.sampled_from(TINY), min_size=1, max_size=5, unique=True),
    st.lists(st.sampled_from(LARGE), min_size=1, max_size=5, unique=True),
    st.lists(st.sampled_from(TINY + MIDDLE + LARGE), min_size=1, max_size=5, unique=True),
).map(lambda primes: tuple(sorted(primes)))
fields = prime_sets.map(lambda primes: ResidueField(primes, len(primes)))
seeds = st.integers(0, 2**32)
big = st.integers(-(2**120), 2**120)


def wide(field, shape, rng):
    """Residues (M,*shape) as loose as the kernels leave them, |r| ≤ p/2 + SLACK, often at the edge."""

    def one(p):
        edge = p // 2 + SLACK
        return rng.choice((rng.randint(-edge, edge), edge, -edge, p // 2, -(p // 2), 0, 1))

    count = math.prod(shape)
    return torch.tensor([[one(p) for _ in range(count)] for p in field.moduli]).double().view(len(field.moduli), *shape)


def twins(field, *elements):
    """Per channel, the slow field and the same elements in it."""
    for c, p in enumerate(field.moduli):
        slow = FlintField(p)
        yield (slow, *(slow.embed(x[c].to(torch.int64)) for x in elements))


def assert_same(field, fast, slow):
    """fast (M,...) congruent to slow, one (1,...) array per channel, and no looser than the kernels promise."""
    for channel, p, want in zip(fast, field.moduli, slow, strict=True):
        assert channel.abs().max() <= p / 2 + SLACK
        assert tuple(channel.shape) == want.shape[1:]
        assert [int(x) % p for x in channel.flatten().tolist()] == want.ravel().tolist()


def symmetric(x, p):
    return (x + p // 2) % p - p // 2


# -- arithmetic ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
@given(field=fields, seed=seeds)
def test_elementwise(name, field, seed):
    rng = random.Random(seed)
    x, y = wide(field, (3, 4), rng), wide(field, (4,), rng).unsqueeze(1)
    fast = getattr(field, name)(x, y)
    assert_same(field, fast, [getattr(slow, name)(a, b) for slow, a, b in twins(field, x, y)])


@pytest.mark.parametrize("name", ["scale", "add_integer"])
@given(field=fields, seed=seeds, integer=big)
def test_with_one_integer_of_any_size(name, field, seed, integer):
    x = wide(field, (2, 3), random.Random(seed))
    fast = getattr(field, name)(x, integer)
    assert_same(field, fast, [getattr(slow, name)(a, integer) for slow, a in twins(field, x)])


@given(field=fields, seed=seeds)
def test_inverse(field, seed):
    rng = random.Random(seed)
    x = torch.stack([torch.tensor([symmetric(rng.randrange(1, p), p) for _ in range(6)]) for p in field.moduli])
    x = x.to(torch.float64).view(-1, 2, 3)
    inverse = field.inverse(x)
    assert_same(field, inverse, [slow.inverse(a) for slow, a in twins(field, x)])
    assert field.lift_exact(field.mul(x, inverse)) == [1] * 6


@pytest.mark.parametrize("p", [3, 5, 23, 251])
def test_inverse_of_every_element(p):
    x = torch.arange(1, p, dtype=torch.float64).sub(p // 2 + 1)
    x = x[x != 0].view(1, -1)
    assert_same(ResidueField((p,), 1), ResidueField((p,), 1).inverse(x), [FlintField(p).inverse(x.long().numpy() % p)])


@pytest.mark.parametrize("zero", [[0, 0], [1, 0], [0, 1]])
def test_zero_in_any_channel_has_no_inverse(zero):
    with pytest.raises(FieldError, match="zero has no inverse"):
        ResidueField((5, 7), 2).inverse(torch.tensor(zero, dtype=torch.float64).view(2, 1))


@given(field=fields, seed=seeds, axis=st.sampled_from([1, 2, -1, -2]))
def test_sum(field, seed, axis):
    x = wide(field, (5, 7), random.Random(seed))
    assert_same(field, field.sum(x, axis), [slow.sum(a, axis) for slow, a in twins(field, x)])


def test_sum_of_a_million_extremes():
    field = ResidueField((16777213,), 1)
    x = torch.full((1, 10**6), 8388608.0, dtype=torch.float64)
    assert int(field.sum(x, 1)) % 16777213 == 8388608 * 10**6 % 16777213


@given(field=fields, seed=seeds, axis=st.sampled_from([1, 2, -1]))
def test_concat(field, seed, axis):
    rng = random.Random(seed)
    parts = [wide(field, (3, 3), rng) for _ in range(3)]
    fast = field.concat(parts, axis)
    assert_same(field, fast, [slow.concat(arrays, axis) for slow, *arrays in twins(field, *parts)])


@given(field=fields, seed=seeds, index=st.lists(st.integers(-1, 5), min_size=6, max_size=6))
def test_take(field, seed, index):
    x = wide(field, (2, 6), random.Random(seed))
    table = torch.tensor(index).view(3, 2)
    got = field.take(x, table)
    assert got.shape == (len(field.moduli), 2, 3, 2)
    assert_same(field, got, [slow.take(a, table) for slow, a in twins(field, x)])
    for place, source in enumerate(index):
        expected = x[..., source] if source >= 0 else torch.zeros_like(x[..., 0])
        assert got.flatten(2)[..., place].equal(expected)


@given(field=fields, integers=st.lists(st.integers(-(2**53 - 2**25), 2**53 - 2**25), min_size=1))
def test_embed(field, integers):
    tensor = torch.tensor(integers)
    got = field.embed(tensor)
    assert got.dtype == torch.float64
    assert_same(field, got, [FlintField(p).embed(tensor) for p in field.moduli])


@pytest.mark.parametrize("p", [3, 251, 4194301, 16776691, 16777213])
def test_embed_up_to_53_bits(p):
    field = ResidueField((p,), 1)
    integers = [s * (2**53 - d) for d in (*range(1, 9), *range(9, 2**25, 100_003)) for s in (1, -1)]
    assert_same(field, field.embed(torch.tensor(integers)), [FlintField(p).embed(torch.tensor(integers))])
    for integer in integers[:100]:
        assert (int(field.embed(torch.tensor([integer]))) - integer) % p == 0


def test_embed_keeps_its_input():
    integers = torch.tensor([1e6, -1e6], dtype=torch.float64)
    ResidueField((101,), 1).embed(integers)
    assert integers.tolist() == [1e6, -1e6]


@given(
    field=fields, seed=seeds, shape=st.sampled_from([((2, 3), (3, 2)), ((2, 2, 3), (2, 3, 1)), ((2, 1, 5), (2, 5, 2))])
)
def test_matmul(field, seed, shape):
    rng = random.Random(seed)
    x, y = wide(field, shape[0], rng), wide(field, shape[1], rng)
    assert_same(field, field.matmul(x, y), [slow.matmul(a, b) for slow, a, b in twins(field, x, y)])


def test_matmul_longer_than_one_exact_sum():
    rng = random.Random(5)
    field = ResidueField((251, 16777199, 16777213), 2)
    x, y = wide(field, (2, 700), rng), wide(field, (700, 2), rng)
    assert_same(field, field.matmul(x, y), [slow.matmul(a, b) for slow, a, b in twins(field, x, y)])


@given(
    field=fields,
    seed=seeds,
    bits=st.sampled_from([1, 10, 24, 29, 30, 31, 40, 52]),
    batch=st.sampled_from([(3,), (2, 3), (2, 2, 3)]),
)
def test_matmul_public(field, seed, bits, batch):
    rng = random.Random(seed)
    weights = torch.tensor([rng.choice((rng.randint(-(2**bits), 2**bits), 2**bits, -(2**bits))) for _ in range(20)])
    weights = weights.view(5, 4)
    x = wide(field, (*batch, 5), rng)
    got = field.matmul_public(x, field.public(weights))
    assert_same(field, got, [slow.matmul_public(a, slow.public(weights)) for slow, a in twins(field, x)])
    y = wide(field, (*batch, 4), rng)
    back = field.matmul_public(y, field.public(weights).transposed)
    assert_same(field, back, [slow.matmul_public(a, slow.public(weights.T)) for slow, a in twins(field, y)])


@pytest.mark.parametrize("bits", [10, 29, 40, 52])
def test_matmul_public_longer_than_one_exact_sum(bits):
    rng = random.Random(bits)
    field = ResidueField((251, 16777199, 16777213), 2)
    middle = 2**bits // 16777213 * 16777213 + 16777213 // 2  # the largest residue of the largest modulus
    weights = torch.tensor([middle - rng.randrange(9) for _ in range(1400)]).view(700, 2)
    x = wide(field, (1, 2, 700), rng).abs()
    got = field.matmul_public(x, field.public(weights))
    assert_same(field, got, [slow.matmul_public(a, slow.public(weights)) for slow, a in twins(field, x)])


def test_public_splits_by_channel_only_when_it_must():
    field = ResidueField((101, 16777213), 1)
    one, many = field.public(torch.tensor([[2**29]])), field.public(torch.tensor([[-(2**31)]]))
    assert one.values.shape == (1, 1)
    assert many.values.shape == (2, 1, 1)


@pytest.mark.parametrize("weight", [3, 2**40])
def test_matmul_public_of_one_vector(weight):
    field = ResidueField((101, 16777213), 2)
    weights = torch.tensor([[weight, 1, 2], [1, weight, 3]])
    got = field.matmul_public(field.embed(torch.tensor([5, 7])), field.public(weights))
    assert got.shape == (2, 3)
    assert field.lift_exact(got) == [symmetric(x, field.modulus) for x in (5 * weight + 7, 5 + 7 * weight, 31)]


@given(seed=seeds)
def test_same_integers_as_the_papers_prime(seed):
    rng = random.Random(seed)
    moduli = choose_moduli(210, more_than=22, limit=modulus_limit(64))
    fast = ResidueField(moduli, num_value_moduli(moduli, 210))
    integers = [torch.tensor([rng.randint(-(2**52), 2**52) for _ in range(9)]).view(3, 3) for _ in range(3)]

    def compute(field):
        x, y, w = (field.embed(integers[0]), field.embed(integers[1]), field.public(integers[2]))
        z = field.matmul_public(field.add(field.mul(x, y), field.scale(x, 2**40 + 1)), w)
        return field.sum(field.add_integer(field.sub(z, field.matmul(x, y)), -(2**150)), 1)

    assert fast.lift_exact(compute(fast)) == BIG.lift(compute(BIG))


def test_network_gradient_is_the_same_in_the_papers_field():
    rng = random.Random(11)
    network = mlp((3, 4, 2), input_bits=3, weight_bits=5)
    bits = network.needed_bits(5) + 20
    moduli = choose_moduli(bits, more_than=22)
    weights = torch.tensor([rng.randint(-40, 40) for _ in range(network.num_parameters)])
    inputs = torch.tensor([rng.randint(-8, 8) for _ in range(2 * 5 * 3)]).view(2, 5, 3)
    targets = torch.tensor([rng.randint(0, 1) for _ in range(2 * 5 * 2)]).view(2, 5, 2)
    fast, slow = ResidueField(moduli, num_value_moduli(moduli, bits)), FlintField(2**200 - 75)
    gradients = [network.gradient(f, weights, f.embed(inputs), f.embed(targets)) for f in (fast, slow)]
    assert gradients[1].shape == (1, 2, network.num_parameters)
    assert fast.lift_exact(gradients[0]) == slow.lift(gradients[1])


@pytest.mark.parametrize(
    ("primes", "values"),
    [((7, 5), 1), ((5, 5), 1), ((4, 7), 1), ((2, 7), 1), ((1, 7), 1), ((5, 7), 0), ((5, 7), 3), ((), 0)],
)
def test_bad_moduli_are_refused(primes, values):
    with pytest.raises(FieldError):
        ResidueField(primes, values)


def test_more_moduli_than_lift_exactly_are_refused():
    primes = [p for p in range(2**24, 2**24 - 1200, -1) if flint.fmpz(p).is_prime()]
    ResidueField(tuple(sorted(primes[:37])), 30)
    with pytest.raises(FieldError):
        ResidueField(tuple(sorted(primes[:39])), 30)


@pytest.mark.parametrize("p", [536870909, 268435399])
def test_primes_beyond_exact_products_are_refused(p):
    with pytest.raises(FieldError):
        ResidueField((p,), 1)


# -- moduli --------------------------------------------------------------------------------------------------


def test_is_prime():
    numbers = [*range(-3, 3000), 2**24 - 3, 2**24 - 1, 4093**2, 4093 * 4091, 4099**2]
    assert [is_prime(n) for n in numbers] == [n > 1 and bool(flint.fmpz(n).is_prime()) for n in numbers]


@given(needed=st.floats(1, 400), more_than=st.integers(2, 5000), inner=st.integers(1, 3000))
def test_choose_moduli(needed, more_than, inner):
    limit = modulus_limit(inner)
    moduli = choose_moduli(needed, more_than=more_than, limit=limit)
    kept = num_value_moduli(moduli, needed)
    assert list(moduli) == sorted(set(moduli))
    assert all(more_than < p < limit and flint.fmpz(p).is_prime() for p in moduli)
    field = ResidueField(moduli, kept)
    assert math.log2(field.value_bound) >= needed - 1e-9
    assert math.prod(moduli[kept:]) >= 2**HEADROOM_BITS
    # without the smallest of these, the largest there are, the bits do not suffice
    assert num_value_moduli(moduli[1:], needed) is None


@pytest.mark.parametrize(("needed", "more_than", "limit"), [(5, 22, 62), (11, 22, 80), (1, 28, 62), (14, 30, 90)])
def test_choose_moduli_takes_the_fewest(needed, more_than, limit):
    moduli = choose_moduli(needed, more_than=more_than, limit=limit)
    available = [p for p in range(more_than + 1, limit) if is_prime(p)]
    for count in range(len(moduli)):
        for fewer in itertools.combinations(available, count):
            assert num_value_moduli(fewer, needed) is None


def test_choose_moduli_has_edges():
    assert choose_moduli(6.5, more_than=4194300, limit=4194320)[0] > 4194300
    with pytest.raises(FieldError, match="headroom"):
        choose_moduli(400, more_than=22, limit=256)
    most = math.log2(math.prod(p for p in range(23, 239) if is_prime(p))) - 1.01  # 239, 241 and 251 are headroom
    assert choose_moduli(most, more_than=22, limit=252)[0] == 23
    for more_than, limit in ((23, 252), (22, 251)):
        with pytest.raises(FieldError, match="headroom"):
            choose_moduli(most, more_than=more_than, limit=limit)


@given(moduli=st.lists(st.sampled_from(TINY + MIDDLE + LARGE), unique=True, max_size=7), needed=st.floats(0, 100))
def test_num_value_moduli(moduli, needed):
    ordered = sorted(moduli)
    kept = num_value_moduli(moduli, needed)

    def headroom(count):
        return math.prod(ordered[count:]) >= 2**HEADROOM_BITS

    most = max((count for count in range(len(ordered) + 1) if headroom(count)), default=0)
    holds = most > 0 and (math.prod(ordered[:most]) - 1) // 2 >= 2**needed
    assert kept == (most if holds else None)


@given(st.integers(1, 10**7))
def test_modulus_limit(inner):
    limit = modulus_limit(inner)
    assert 2**22 <= limit <= LARGEST_MODULUS == 2**24
    bound = (limit - 1) // 2 + 1 + SLACK
    if limit > 2**22:
        assert exact_inner_length(bound, bound) >= inner
    if 2**22 < limit < 2**24:
        assert exact_inner_length(bound + 4, bound + 4) < inner


# -- bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("primes", "width"), [((23, 251), 1), ((23, 257), 2), ((251, 65521), 2), ((3, 65537), 3)])
def test_residue_bytes(primes, width):
    assert ResidueField(primes, 1).residue_bytes == width


@given(field=fields, seed=seeds, shape=st.sampled_from([(), (0,), (1,), (5,), (2, 3)]))
def test_pack_is_little_endian_and_unpack_its_inverse(field, seed, shape):
    x = wide(field, shape, random.Random(seed))
    packed = field.pack(x)
    canonical = [int(v) % p for channel, p in zip(x, field.moduli, strict=True) for v in channel.flatten()]
    assert packed == b"".join(v.to_bytes(field.residue_bytes, "little") for v in canonical)
    back = field.unpack(packed, shape)
    assert back.dtype == torch.float64
    assert back.shape == x.shape
    expected = [symmetric(int(v), p) for channel, p in zip(x, field.moduli, strict=True) for v in channel.flatten()]
    assert back.flatten().tolist() == expected
    assert field.unpack(memoryview(packed), shape).equal(back)


def test_pack_reads_strided_tensors():
    field = ResidueField((23, 251), 1)
    x = wide(field, (3, 4), random.Random(1))
    assert field.pack(x.swapaxes(1, 2)) == field.pack(x.swapaxes(1, 2).contiguous())


@pytest.mark.parametrize("primes", [(23, 251), (257, 65521), (251, 16777213)])
def test_unpack_refuses_what_pack_never_writes(primes):
    field = ResidueField(primes, 1)
    width = field.residue_bytes
    good = field.pack(field.embed(torch.tensor([-1, 0, 1])))
    for bad in (good[:-1], good + b"\0", b""):
        with pytest.raises(MessageError, match="bytes of residues expected"):
            field.unpack(bad, (3,))
    for place in range(6):
        p = primes[place // 3]
        for residue in (p, p + 1, 256**width - 1):
            bad = bytearray(good)
            bad[place * width : (place + 1) * width] = residue.to_bytes(width, "little")
            with pytest.raises(MessageError, match="not below its modulus"):
                field.unpack(bytes(bad), (3,))
        largest = bytearray(good)
        largest[place * width : (place + 1) * width] = (p - 1).to_bytes(width, "little")
        assert field.unpack(bytes(largest), (3,)).flatten()[place] == -1


# -- randomness ----------------------------------------------------------------------------------------------

KEY = bytes(range(100, 132))


def keystream(key, first_word, index, count):
    """`count` words of the stream with nonce (first_word, index, 0), from OpenSSL."""
    nonce = struct.pack("<IIII", 0, first_word, index, 0)
    size = -(-count // 16) * 64
    return np.frombuffer(Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(size)), "<u4")[:count]


def plain_uniform(key, row, moduli, count):
    """The definition, word by word: (M,count) integers, and how many attempts each took."""
    streams = []

    def word(attempt, place):
        while len(streams) <= attempt:
            stream = keystream(key, 256 * Domain.MASKS + len(streams), row, len(moduli) * count)
            streams.append([int(w) for w in stream])
        return streams[attempt][place]

    values, attempts = [], []
    for channel, p in enumerate(moduli):
        for j in range(count):
            attempt = 0
            while word(attempt, channel * count + j) >= 2**32 // p * p:
                attempt += 1
            values.append(word(attempt, channel * count + j) % p)
            attempts.append(attempt)
    return values, attempts


def keys_of(*seeds):
    return torch.stack([SecretSeed(seed).key() for seed in seeds])


@given(
    primes=prime_sets,
    key=st.binary(min_size=32, max_size=32),
    row=st.integers(0, 2**32 - 1) | st.sampled_from([2**31 - 1, 2**31, 2**32 - 1]),
    count=st.integers(1, 40),
)
def test_uniform_is_the_addressed_keystream(primes, key, row, count):
    field = ResidueField(primes, 1)
    got = field.uniform(keys_of(key), torch.tensor([row]), count)
    assert got.shape == (len(primes), 1, count)
    assert got.abs().le(torch.tensor(primes).view(-1, 1, 1) // 2).all()
    values, _ = plain_uniform(key, row, primes, count)
    assert [int(x) % p for channel, p in zip(got, primes, strict=True) for x in channel[0]] == values


def test_uniform_tries_rejected_words_again():
    primes = (16647203, 16711943)  # 2^32 mod p nearly p: one word in 256 is rejected
    rows = range(3)
    got = ResidueField(primes, 1).uniform(keys_of(KEY, KEY, KEY), torch.tensor([*rows]), 3000)
    for row in rows:
        values, attempts = plain_uniform(KEY, row, primes, 3000)
        assert sum(a > 0 for a in attempts) > 10
        assert [int(x) % p for c, p in enumerate(primes) for x in got[c, row]] == values


def uniform_words(moduli, keys, rows, count):
    """uniform_elements as integers in [0, p)."""
    p = torch.tensor(moduli, dtype=torch.float64)
    elements = uniform_elements(moduli, p, 1 / p, keys, rows, count)
    return elements.to(torch.int64) % p.to(torch.int64).view(-1, 1, 1)


@pytest.mark.parametrize("moduli", [(2**31 + 11,), (2**31 + 11, 7, 2**31 + 45), (2**32 - 5, 2**30 + 3)])
def test_uniform_tries_as_often_as_it_takes(moduli):
    count = 45
    got = uniform_words(moduli, keys_of(KEY, bytes(32)), torch.tensor([9, 2**31 + 1]), count)
    most = 0
    for place, (key, row) in enumerate([(KEY, 9), (bytes(32), 2**31 + 1)]):
        values, attempts = plain_uniform(key, row, moduli, count)
        assert got[:, place].flatten().tolist() == values
        most = max(most, *attempts)
    assert most >= 2 or 2**31 + 11 not in moduli


def test_uniform_gives_up_on_a_broken_keystream():
    with pytest.raises(FieldError, match="256 rejected words"):
        uniform_words((2**33,), keys_of(KEY), torch.tensor([0]), 1)


@given(seed=seeds)
def test_a_row_is_the_same_alone_and_in_a_batch(seed):
    rng = random.Random(seed)
    field = ResidueField((251, 16711943), 1)
    rows = torch.tensor([rng.randrange(2**32) for _ in range(5)])
    keys = keys_of(*(rng.randbytes(32) for _ in range(5)))
    batch = field.uniform(keys, rows, 300)
    for i in rng.sample(range(5), 5):
        assert field.uniform(keys[i : i + 1], rows[i : i + 1], 300).equal(batch[:, i : i + 1])
    assert len({tuple(batch[0, i].tolist()) for i in range(5)}) == 5


def test_channels_rows_and_keys_never_share_masks():
    field = ResidueField((16777199, 16777213), 1)
    got = field.uniform(keys_of(KEY, KEY, bytes(32)), torch.tensor([0, 1, 0]), 64)
    streams = [tuple(got[c, r].tolist()) for c in range(2) for r in range(3)]
    assert all(len(set(a) & set(b)) < 3 for a, b in itertools.combinations(streams, 2))


def test_every_residue_is_equally_likely():
    p = 23
    got = ResidueField((p,), 1).uniform(keys_of(KEY).expand(100, 8), torch.arange(100), 2300)
    counts = torch.bincount(got.flatten().to(torch.int64) + p // 2, minlength=p).to(torch.float64)
    assert counts.shape == (p,)
    chi_square = float(((counts - 10**4) ** 2 / 10**4).sum())
    assert 5 < chi_square < 60  # 22 degrees of freedom


@pytest.mark.parametrize("domain", list(Domain))
def test_public_stream_is_the_addressed_keystream(domain):
    key = hashlib.sha256(b"dresfl public stream 42").digest()
    for index in (0, 5, 2**31, 2**32 - 1):
        words = keystream(key, 256 * domain, index, 40).tolist()
        assert PublicStream(42).words(domain, index, 40).tolist() == words
        assert PublicStream(42).uniform(domain, index, 40).tolist() == [(w + 0.5) / 2**32 for w in words]
    indices = torch.tensor([5, 2**31, 0])
    rows = [PublicStream(42).words(domain, int(index), 7).tolist() for index in indices]
    assert PublicStream(42).words_of(domain, indices, 7).tolist() == rows


def test_domains_are_distinct_bytes():
    assert len({int(d) for d in Domain}) == len(Domain.__members__)
    assert all(0 < int(d) < 2**23 for d in Domain)


# -- secrets -------------------------------------------------------------------------------------------------


def test_secret_seed_is_not_shown():
    shown = f"{SecretSeed(KEY)!r} {SecretSeed(KEY)} {[SecretSeed(KEY)]}"
    assert "redacted" in shown
    assert KEY.hex() not in shown
    assert repr(KEY)[2:10] not in shown
    assert repr(SecretSeed(KEY)) == repr(SecretSeed(bytes(32)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_secret_seed_is_not_pickled(protocol):
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps({"seed": SecretSeed(KEY)}, protocol)


def test_secret_seed_is_not_copied():
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            duplicate(SecretSeed(KEY))


def test_fresh_seeds_differ():
    keys = {tuple(SecretSeed.fresh().key().tolist()) for _ in range(50)}
    assert len(keys) == 50
    assert all(len(key) == 8 for key in keys)


def test_secret_seed_key_is_its_bytes():
    assert SecretSeed(KEY).key().numpy().astype("<i4").tobytes() == KEY


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_secret_seed_of_a_wrong_length_is_refused(length):
    with pytest.raises(FieldError, match="32 bytes"):
        SecretSeed(bytes(length))
