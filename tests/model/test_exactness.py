"""What the server decodes is the gradient over the integers, bit for bit."""

import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.coding import CodeParameters
from dresfl.coding.lagrange import LagrangeCode
from dresfl.errors import HeadroomAlarm
from dresfl.field import SecretSeed, choose_moduli
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool
from dresfl.protocol import Session, encode_rows
from reference import integer_gradient
from reference.flint_field import FlintField


@st.composite
def networks(draw):
    """Dense and convolutional stacks with 0 to 2 activations, anywhere."""
    bits = st.none() | st.integers(1, 6)
    left = draw(st.integers(0, 2))

    def activation(at_least=0):
        nonlocal left
        count = draw(st.integers(min(left, at_least), left))
        left -= count
        return [draw(st.sampled_from([Square(), Quadratic()])) for _ in range(count)]

    if draw(st.booleans()):
        shape = (draw(st.integers(3, 4)), draw(st.integers(3, 4)), draw(st.integers(1, 2)))
        kernel, stride, padding = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(0, 1))
        pools = min(shape[:2]) + 2 * padding >= kernel + stride  # the convolution leaves 2x2 or more
        pool = [SumPool(2, draw(st.sampled_from([None, 1, 2])))] if pools and draw(st.booleans()) else []
        conv = Conv2d(draw(st.integers(1, 2)), kernel, stride, padding, draw(bits))
        body = [*activation(), conv, *activation(), *pool, Flatten()]
    else:
        shape = (draw(st.integers(1, 5)),)
        body = [*activation(), Dense(draw(st.integers(1, 4)), draw(bits))]
    body += activation(at_least=1)
    body += [Dense(draw(st.integers(1, 3)), draw(bits)), *activation()]
    network = Network(tuple(body), shape, draw(st.integers(0, 4)), draw(st.integers(1, 6)))
    return replace(network, target_bits=min(draw(st.sampled_from([0, 0, 3, 9])), network.out_scale))


@st.composite
def rounds(draw):
    """A network, sizes N, K, T with R of the N surviving in some order, integer weights and rows."""
    network = draw(networks())
    shards, colluders = draw(st.sampled_from([(1, 1), (1, 0), (2, 1), (1, 2)]))
    needed = network.gradient_degree * (shards + colluders - 1) + 1
    clients = needed + draw(st.integers(0, 3))
    batch = draw(st.integers(1, 3))
    rng = random.Random(draw(st.integers(0, 2**32)))
    width = 2 ** draw(st.integers(0, 7))
    weights = torch.tensor([rng.randint(-width, width) for _ in range(network.num_parameters)])
    # rows (B,K,W): inputs, then targets; both of either sign
    size = network.input_size + network.num_classes
    rows = torch.tensor([rng.randint(-16, 16) for _ in range(batch * shards * size)]).view(batch, shards, size)
    survivors = rng.sample(range(clients), needed)
    # the widest integers these weights can make, so that nothing wraps
    bits = max(bits_of(network, width, batch * shards), network.needed_bits(batch * shards))
    limit = draw(st.sampled_from([256, 2**16, 2**22, 2**24] if bits < 200 else [2**16, 2**22, 2**24]))
    moduli = choose_moduli(bits, more_than=clients + shards + colluders, limit=limit)
    session = Session(
        network, CodeParameters(clients, shards, colluders, batch), (batch,) * clients, seed=0, moduli=moduli
    )
    return session, weights, rows, survivors


def bits_of(network, width, rows):
    """Bits of the largest gradient there can be, with |x| and |y| at most 16 and |w| at most `width`: crude, sure."""
    value, scale, slope = 16, network.input_bits, 1
    for layer, place in zip(network.layers, network.places, strict=True):
        if isinstance(layer, Dense | Conv2d):
            fan_in = layer.fan(place.in_shape)[0]
            slope = math.prod(place.in_shape) * slope * width + value + 2**scale
            value = fan_in * value * width + width * 2**scale
            scale += place.weight_bits
        elif isinstance(layer, SumPool):
            value, slope = value * layer.kernel**2, slope * layer.kernel**2
        elif isinstance(layer, Square | Quadratic):
            slope, value, scale = (2 * value + 2**scale) * slope, value**2 + 2**scale * value, 2 * scale
    return (2 * rows * network.num_classes * (value + 2 ** (scale + 4)) * slope).bit_length() + 1


def integers(network, weights, rows):
    """The reference's answer for rows (B,K,W)."""
    flat = rows.flatten(0, 1).tolist()
    size = network.input_size
    return integer_gradient.gradient(
        network.layers,
        network.input_shape,
        network.input_bits,
        network.weight_bits,
        weights.tolist(),
        [row[:size] for row in flat],
        [row[size:] for row in flat],
        network.target_bits,
    )


def coded_sum(session, weights, rows, survivors):
    """Encode each row with fresh secrets, let the survivors compute, decode: residues (M,P)."""
    keys = torch.stack([SecretSeed.fresh().mask_key(b"") for _ in range(rows.shape[0])])
    shares = encode_rows(session, keys, torch.arange(rows.shape[0]), rows, survivors)
    size = session.network.input_size
    answers = session.network.gradient(session.field, weights, shares[..., :size], shares[..., size:])
    return session.code.decode_sum(answers, survivors)


@given(rounds())
def test_decoded_integers_are_the_gradient(drawn):
    session, weights, rows, survivors = drawn
    expected = integers(session.network, weights, rows)
    total = coded_sum(session, weights, rows, survivors)
    assert session.field.lift_exact(total) == expected
    if max(map(abs, expected)) <= session.field.value_bound:
        assert session.field.lift(total).tolist() == [float(v) for v in expected]
    else:
        with pytest.raises(HeadroomAlarm):
            session.field.lift(total)


@given(rounds())
def test_uncoded_rows_give_the_same_integers(drawn):
    session, weights, rows, _ = drawn
    network, field = session.network, session.field
    flat = field.embed(rows.flatten(0, 1)).unsqueeze(1)  # (M,1,BK,W)
    total = network.gradient(field, weights, flat[..., : network.input_size], flat[..., network.input_size :])
    assert field.lift_exact(total[:, 0]) == integers(network, weights, rows)


def flint_round(prime, session, weights, rows, survivors, rng):
    """The whole coded round over one large prime, with uniform masks."""
    field, network = FlintField(prime), session.network
    code = LagrangeCode(
        field,
        num_clients=session.num_clients,
        num_shards=session.num_shards,
        max_colluders=session.max_colluders,
        degree=network.gradient_degree,
    )
    masks = field.random((session.max_colluders, *rows.shape[::2]), rng)
    shares = code.encode(field.embed(rows.swapaxes(0, 1)), masks, survivors)
    answers = network.gradient(field, weights, shares[..., : network.input_size], shares[..., network.input_size :])
    return field.lift(code.decode_sum(answers, survivors))


@given(rounds(), st.randoms(use_true_random=False))
def test_a_large_prime_gives_the_same_integers(drawn, rng):
    session, weights, rows, survivors = drawn
    expected = integers(session.network, weights, rows)
    prime = 2**200 - 75
    assert flint_round(prime, session, weights, rows, survivors, rng) == [
        (v + prime // 2) % prime - prime // 2 for v in expected
    ]


def test_the_papers_primes_give_the_same_integers_at_the_papers_scales():
    rng = random.Random(5)
    layers = (Conv2d(2, 2, 2), Square(), Flatten(), Dense(3), Square(), Dense(2))
    network = Network(layers, (5, 4, 1), input_bits=4, weight_bits=10)
    session = Session(network, CodeParameters(18, 2, 1, 2), (2,) * 18, seed=0)
    weights = torch.tensor([rng.randint(-400, 400) for _ in range(network.num_parameters)])
    rows = torch.tensor([rng.randint(0, 16) for _ in range(2 * 2 * 22)]).view(2, 2, 22)
    survivors = rng.sample(range(18), 17)
    expected = integers(network, weights, rows)
    assert max(map(abs, expected)).bit_length() > 160
    assert session.field.lift_exact(coded_sum(session, weights, rows, survivors)) == expected
    for prime in (2**200 - 75, 2**440 - 33):
        assert flint_round(prime, session, weights, rows, survivors, rng) == expected


@given(networks(), st.randoms(use_true_random=False))
def test_the_reference_is_the_derivative_of_its_loss(network, rng):
    """Along a random direction the loss is a polynomial in t; its slope at 0 from exact interpolation."""
    weights, direction = ([rng.randint(-5, 5) for _ in range(network.num_parameters)] for _ in range(2))
    inputs = [[rng.randint(-9, 9) for _ in range(network.input_size)] for _ in range(2)]
    targets = [[rng.randint(0, 1) for _ in range(network.num_classes)] for _ in range(2)]
    about = network.layers, network.input_shape, network.input_bits, network.weight_bits

    def loss(t):
        moved = [w + t * v for w, v in zip(weights, direction, strict=True)]
        return integer_gradient.loss(*about, moved, inputs, targets)

    # two affine layers and two squares reach degree 2·(4 + 4) in the weights
    nodes = [t for t in range(-8, 9) if t]
    values = {t: loss(t) for t in [0, *nodes]}
    slope = Fraction(0)
    for t in nodes:
        term = Fraction(values[t] - values[0], t)
        for other in nodes:
            if other != t:
                term *= Fraction(-other, t - other)
        slope += term
    found = integer_gradient.gradient(*about, weights, inputs, targets)
    assert sum(g * v for g, v in zip(found, direction, strict=True)) == slope
