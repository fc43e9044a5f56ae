"""The byte field is the float64 field of the same primes, stored otherwise."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from dresfl.coding.lagrange import LagrangeCode
from dresfl.errors import FieldError, HeadroomAlarm
from dresfl.field import ByteField, PublicStream, ResidueField, SecretSeed, choose_moduli, num_value_moduli
from dresfl.kernels import matmul_int8
from dresfl.kernels.cpu import bytes_of_totals
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
PRIMES = (3, 29, 101, 127, 251)


def fields(device="cpu", primes=PRIMES):
    floats = ResidueField(primes, len(primes) - 1, device)
    return floats, ByteField(primes, len(primes) - 1, device)


def both(drawn, device="cpu"):
    """The same elements in both fields: every residue of every prime occurs, the extremes included."""
    floats, octets = fields(device)
    generator = torch.Generator().manual_seed(drawn)
    values = torch.randint(-(2**30), 2**30, (4, 6), generator=generator)
    values[0] = torch.tensor([0, 1, -1, 125, -125, 50])
    return floats, octets, floats.embed(values), octets.embed(values)


def same(floats, octets, left, right):
    assert right.dtype == torch.int8
    assert (
        right.abs() <= (torch.tensor(floats.moduli, device=right.device).view(-1, *[1] * (right.dim() - 1)) // 2)
    ).all()
    assert octets.lift_exact(right) == floats.lift_exact(left)


@pytest.mark.parametrize("device", DEVICES)
@given(seed=st.integers(0, 2**32), factor=st.integers(-(10**30), 10**30))
def test_every_operation_agrees(device, seed, factor):
    floats, octets, x, b = both(seed, device)
    _, _, y, c = both(seed + 1, device)
    same(floats, octets, floats.add(x, y), octets.add(b, c))
    same(floats, octets, floats.sub(x, y), octets.sub(b, c))
    same(floats, octets, floats.mul(x, y), octets.mul(b, c))
    same(floats, octets, floats.scale(x, factor), octets.scale(b, factor))
    same(floats, octets, floats.add_integer(x, factor), octets.add_integer(b, factor))
    same(floats, octets, floats.sum(x, 1), octets.sum(b, 1))
    same(floats, octets, floats.matmul(x, y.mT), octets.matmul(b, c.mT))
    integers = torch.arange(-9, 9).view(6, 3) * 1000
    same(
        floats,
        octets,
        floats.matmul_public(x, floats.public(integers)),
        octets.matmul_public(b, octets.public(integers)),
    )
    index = torch.tensor([[5, -1], [0, 2]])
    same(floats, octets, floats.take(x, index), octets.take(b, index))
    same(floats, octets, floats.concat((x, y), 2), octets.concat((b, c), 2))
    ones = torch.full((3,), 2)
    same(floats, octets, floats.inverse(floats.embed(ones)), octets.inverse(octets.embed(ones)))
    assert octets.unpack(octets.pack(b), b.shape[1:]).equal(b)


@pytest.mark.parametrize("device", DEVICES)
def test_masks_are_the_same(device):
    floats, octets = fields(device)
    keys = SecretSeed(b"k" * 32).mask_key(b"").expand(3, 8).to(device)
    rows = torch.arange(3, device=device)
    assert octets.uniform(keys, rows, 50).equal(floats.uniform(keys, rows, 50).to(torch.int8))


@pytest.mark.parametrize("device", DEVICES)
def test_a_coded_round_decodes_to_the_same_integers(device):
    layers = (Conv2d(3, 3, 2, 1), Quadratic(), SumPool(2, 1), Flatten(), Dense(6), Square(), Dense(4))
    network = Network(layers, (9, 9, 2), 4, 8)
    bits = network.needed_bits(5)
    primes = choose_moduli(bits, more_than=14, limit=256)
    floats = ResidueField(primes, num_value_moduli(primes, bits), device)
    field = ByteField(primes, num_value_moduli(primes, bits), device)
    weights = network.initial_weights(PublicStream(1)).to(device)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 17, (1, 5, network.input_size), generator=generator)
    targets = torch.nn.functional.one_hot(torch.randint(0, 4, (1, 5), generator=generator), 4)
    whole = torch.cat((rows, targets), -1)
    key = SecretSeed.fresh().mask_key(b"").view(1, 8).to(device)
    masks = field.uniform(key, torch.zeros(1, dtype=torch.int64, device=device), whole.numel())
    code = LagrangeCode(field, 12, 1, 1, network.gradient_degree)
    shares = code.encode(field.embed(whole), masks.view(len(primes), *whole.shape))
    size, survivors = network.input_size, [11, 2, 3, 4, 5, 6, 7, 8, 9]
    answers = network.gradient(field, weights, shares[..., :size], shares[..., size:])[:, survivors]
    plain = network.gradient(floats, weights, floats.embed(rows), floats.embed(targets))[:, 0]
    assert field.lift_exact(code.decode_sum(answers, survivors)) == floats.lift_exact(plain)
    values, exceeded = field.decode_lift(code.sum_decoders(torch.tensor([survivors]))[:, 0], answers)
    assert values.equal(floats.lift(plain))
    assert int(exceeded) == 0


def test_headroom_is_watched():
    floats, octets = fields()
    beyond = torch.tensor([floats.value_bound + 1])
    with pytest.raises(HeadroomAlarm):
        octets.lift(octets.embed(beyond))
    assert int(octets.lift_checked(octets.embed(beyond))[1]) == 1


def test_what_does_not_fit_a_byte_is_refused():
    with pytest.raises(FieldError, match="257 is too large a modulus"):
        ByteField((251, 257), 1)
    _, octets = fields()
    with pytest.raises(FieldError, match="too long"):
        octets.sum(torch.zeros((5, 40_000), dtype=torch.int8), 1)


@pytest.mark.parametrize("p", [3, 29, 127, 251])
def test_totals_become_the_unique_byte(p):
    edges = [0, 1, -1, p // 2, -(p // 2), p // 2 + 1, 2**31 - 1, -(2**31) + 1, p * 2**22, 5 * p + p // 2]
    totals = torch.tensor([edges + [k * p + d for k in range(-400, 400) for d in (-1, 0, p // 2, p // 2 + 1)]] * 2)
    moduli = torch.tensor([p, p], dtype=torch.int32)
    found = bytes_of_totals(totals.to(torch.int32), moduli)
    assert found.dtype == torch.int8
    assert found.to(torch.int64).equal((totals + p // 2) % p - p // 2)


def test_products_on_the_cpu_are_exact_at_the_extremes():
    moduli = torch.tensor([251, 127], dtype=torch.int32)
    half = torch.tensor([125, 63], dtype=torch.int8).view(-1, 1, 1)
    left, right = half.expand(2, 40, 700).contiguous(), -half.expand(2, 700, 33).contiguous()
    wanted = (left.to(torch.int64) @ right.to(torch.int64)) % moduli.view(-1, 1, 1)
    assert ((matmul_int8(left, right, moduli).to(torch.int64) - wanted) % moduli.view(-1, 1, 1) == 0).all()
