"""The residue field is Z_M: held against Python integers and against one big-integer field per channel."""

import math
import random

import flint
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import FieldError, MessageError
from dresfl.field import (
    ResidueField,
    choose_moduli,
    modulus_limit,
    num_value_moduli,
)
from dresfl.kernels import SLACK
from dresfl.model import mlp
from field.primes import prime_sets
from reference.flint_field import FlintField

BIG = FlintField(2**440 - 33)

fields = prime_sets.map(lambda primes: ResidueField(primes, len(primes)))
seeds = st.integers(0, 2**32)
big = st.integers(-(2**120), 2**120)


def loose(field, shape, rng):
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
    x, y = loose(field, (3, 4), rng), loose(field, (4,), rng).unsqueeze(1)
    fast = getattr(field, name)(x, y)
    assert_same(field, fast, [getattr(slow, name)(a, b) for slow, a, b in twins(field, x, y)])


@pytest.mark.parametrize("name", ["scale", "add_integer"])
@given(field=fields, seed=seeds, integer=big)
def test_with_one_integer_of_any_size(name, field, seed, integer):
    x = loose(field, (2, 3), random.Random(seed))
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
    x = loose(field, (5, 7), random.Random(seed))
    assert_same(field, field.sum(x, axis), [slow.sum(a, axis) for slow, a in twins(field, x)])


def test_sum_of_a_million_extremes():
    field = ResidueField((16777213,), 1)
    x = torch.full((1, 10**6), 8388608.0, dtype=torch.float64)
    assert int(field.sum(x, 1)) % 16777213 == 8388608 * 10**6 % 16777213


@given(field=fields, seed=seeds, axis=st.sampled_from([1, 2, -1]))
def test_concat(field, seed, axis):
    rng = random.Random(seed)
    parts = [loose(field, (3, 3), rng) for _ in range(3)]
    fast = field.concat(parts, axis)
    assert_same(field, fast, [slow.concat(arrays, axis) for slow, *arrays in twins(field, *parts)])


@given(field=fields, seed=seeds, index=st.lists(st.integers(-1, 5), min_size=6, max_size=6))
def test_take(field, seed, index):
    x = loose(field, (2, 6), random.Random(seed))
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
    x, y = loose(field, shape[0], rng), loose(field, shape[1], rng)
    assert_same(field, field.matmul(x, y), [slow.matmul(a, b) for slow, a, b in twins(field, x, y)])


def test_matmul_longer_than_one_exact_sum():
    rng = random.Random(5)
    field = ResidueField((251, 16777199, 16777213), 2)
    x, y = loose(field, (2, 700), rng), loose(field, (700, 2), rng)
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
    x = loose(field, (*batch, 5), rng)
    got = field.matmul_public(x, field.public(weights))
    assert_same(field, got, [slow.matmul_public(a, slow.public(weights)) for slow, a in twins(field, x)])
    y = loose(field, (*batch, 4), rng)
    back = field.matmul_public(y, field.public(weights).transposed)
    assert_same(field, back, [slow.matmul_public(a, slow.public(weights.T)) for slow, a in twins(field, y)])


@pytest.mark.parametrize("bits", [10, 29, 40, 52])
def test_matmul_public_longer_than_one_exact_sum(bits):
    rng = random.Random(bits)
    field = ResidueField((251, 16777199, 16777213), 2)
    middle = 2**bits // 16777213 * 16777213 + 16777213 // 2  # the largest residue of the largest modulus
    weights = torch.tensor([middle - rng.randrange(9) for _ in range(1400)]).view(700, 2)
    x = loose(field, (1, 2, 700), rng).abs()
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


# -- bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("primes", "width"), [((23, 251), 1), ((23, 257), 2), ((251, 65521), 2), ((3, 65537), 3)])
def test_residue_bytes(primes, width):
    assert ResidueField(primes, 1).residue_bytes == width


@given(field=fields, seed=seeds, shape=st.sampled_from([(), (0,), (1,), (5,), (2, 3)]))
def test_pack_is_little_endian_and_unpack_its_inverse(field, seed, shape):
    x = loose(field, shape, random.Random(seed))
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
    x = loose(field, (3, 4), random.Random(1))
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
