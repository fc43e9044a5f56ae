"""The network against plain torch, its shapes, scales and bits."""

import hashlib
import itertools
import math
import random
import struct

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import UsageError
from dresfl.field import PublicStream, Reals
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool, mlp, weights_sha256

NETWORKS = {
    "linear": Network((Dense(3),), (4,), 2, 5),
    "mlp": mlp((4, 6, 5, 3), input_bits=3, weight_bits=7),
    "own bits": Network((Dense(6, weight_bits=3), Quadratic(), Dense(3, weight_bits=9)), (4,), 3, 7),
    "square at both ends": Network((Square(), Dense(3), Square()), (4,), 2, 5),
    "conv": Network((Conv2d(4, 3, 2, 1), Square(), Flatten(), Dense(5), Quadratic(), Dense(3)), (7, 6, 2), 4, 8),
    "conv, pool": Network((Conv2d(3, 2), SumPool(2), Quadratic(), Flatten(), Dense(3)), (6, 5, 1), 4, 8),
    "pool first": Network((SumPool(2, 1), Conv2d(2, 2, 1, 2), Square(), Flatten(), Dense(2)), (4, 5, 2), 3, 6),
    "pool overlaps": Network((Conv2d(2, 3, 1, 1), Square(), SumPool(3, 2), Flatten(), Dense(2)), (7, 7, 1), 3, 6),
    "two convs": Network((Conv2d(3, 3), Square(), Conv2d(2, 3, 2, 1), Flatten(), Dense(3)), (8, 8, 1), 3, 6),
}


def torch_outputs(network, tensors, x):
    """The real network on (B,F), from torch's own layers: images move to (B,C,H,W) and back."""
    x = x.view(-1, *network.input_shape)
    for index, layer in enumerate(network.layers):
        if isinstance(layer, Dense):
            x = x @ tensors[f"layers.{index}.weight"] + tensors[f"layers.{index}.bias"]
        elif isinstance(layer, Conv2d):
            weight = tensors[f"layers.{index}.weight"].view(layer.kernel, layer.kernel, x.shape[3], layer.channels)
            weight, bias = weight.permute(3, 2, 0, 1), tensors[f"layers.{index}.bias"]
            z = F.conv2d(x.permute(0, 3, 1, 2), weight, bias, stride=layer.stride, padding=layer.padding)
            x = z.permute(0, 2, 3, 1)
        elif isinstance(layer, SumPool):
            pooled = F.avg_pool2d(x.permute(0, 3, 1, 2), layer.kernel, layer.stride, divisor_override=1)
            x = pooled.permute(0, 2, 3, 1)
        elif isinstance(layer, Flatten):
            x = x.flatten(1)
        else:
            x = x * x + (x if isinstance(layer, Quadratic) else 0)
    return x


def example(network, rows=5):
    """Integer weights, inputs (B,F) and one-hot targets (B,C)."""
    rng = random.Random(3)
    weights = network.initial_weights(PublicStream(1))
    for p in network.parameters:
        weights[p.bias] = torch.tensor(
            [rng.randint(-(2**p.place.weight_bits), 2**p.place.weight_bits) for _ in range(p.fan[1])]
        )
    inputs = torch.tensor(
        [rng.randint(-(2**network.input_bits), 2**network.input_bits) for _ in range(rows * network.input_size)]
    )
    targets = F.one_hot(torch.tensor([rng.randrange(network.num_classes) for _ in range(rows)]), network.num_classes)
    return weights, inputs.view(rows, -1), targets


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_torchs_times_the_scale(name):
    network = NETWORKS[name]
    weights, inputs, _ = example(network)
    found = network.outputs(Reals(), weights, Reals().embed(inputs).unsqueeze(1))[0, 0] / 2.0**network.out_scale
    expected = torch_outputs(network, network.tensors(weights), inputs.double() / 2**network.input_bits)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_over_its_scales_is_autograds(name):
    network = NETWORKS[name]
    weights, inputs, targets = example(network)
    field = Reals()
    found = network.gradient(field, weights, field.embed(inputs).unsqueeze(1), field.embed(targets).unsqueeze(1))
    found = found[0, 0] / network.gradient_scales

    tensors = {name: tensor.requires_grad_() for name, tensor in network.tensors(weights).items()}
    outputs = torch_outputs(network, tensors, inputs.double() / 2**network.input_bits)
    (outputs - targets).square().sum().backward()
    expected = torch.cat([tensor.grad.flatten() for tensor in tensors.values()])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12 * float(expected.abs().max()))


def test_scales_multiply_through():
    network = Network((Dense(4, weight_bits=3), Square(), Dense(4), Quadratic(), Dense(2, weight_bits=9)), (5,), 4, 7)
    assert [place.out_scale for place in network.places] == [7, 14, 21, 42, 51]
    assert network.out_scale == 51
    sizes = [(5 * 4 + 4, 3), (4 * 4 + 4, 7), (4 * 2 + 2, 9)]
    assert network.weight_scales.tolist() == [2.0**bits for size, bits in sizes for _ in range(size)]
    assert network.gradient_scales.tolist() == [2.0 ** (102 - bits) for size, bits in sizes for _ in range(size)]


def test_tensors_hold_the_weights_once_by_name():
    network = NETWORKS["own bits"]
    weights = torch.arange(network.num_parameters) - 17
    tensors = network.tensors(weights)
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        "layers.0.weight": (4, 6),
        "layers.0.bias": (6,),
        "layers.2.weight": (6, 3),
        "layers.2.bias": (3,),
    }
    assert (tensors["layers.0.weight"][2, 1] * 2**3).item() == 2 * 6 + 1 - 17
    back = torch.cat([(t * (2.0**3 if "0" in name else 2.0**9)).flatten() for name, t in tensors.items()])
    assert back.tolist() == weights.tolist()


def test_initial_weights_have_the_stated_spread_and_no_bias():
    network = Network((Dense(300), Square(), Dense(50), Square(), Dense(50, init=2.0)), (200,), 4, 12)
    weights = network.initial_weights(PublicStream(9))
    assert torch.equal(weights, network.initial_weights(PublicStream(9)))
    assert not torch.equal(weights, network.initial_weights(PublicStream(10)))
    for p, spread in zip(network.parameters, (1.0, 0.5, 2.0), strict=True):
        assert not weights[p.bias].any()
        reals = weights[p.weight].double() / 2**12 * math.sqrt(p.fan[0])
        assert float(reals.std()) == pytest.approx(spread, rel=0.05)
        assert float(reals.abs().max()) <= spread * math.sqrt(3) + 0.01
        assert float(reals.mean()) == pytest.approx(0, abs=0.05 * spread)


def test_weights_sha256_is_of_little_endian_int64():
    weights = torch.tensor([1, -2, 2**40])
    assert weights_sha256(weights) == hashlib.sha256(struct.pack("<3q", 1, -2, 2**40)).hexdigest()
    assert weights_sha256(torch.tensor([[1, 9], [2, 9]])[:, 0]) == hashlib.sha256(struct.pack("<2q", 1, 2)).hexdigest()


# -- bits ------------------------------------------------------------------------------------------------------


@st.composite
def initialised(draw):
    """A random network as training begins, with rows of inputs in its stated range and one-hot targets."""
    hidden = draw(st.lists(st.integers(1, 24), max_size=2))
    activations = [draw(st.sampled_from([Square(), Quadratic()])) for _ in hidden]
    magnitude = draw(st.sampled_from([0.0, 0.0, 1.0]))
    classes = draw(st.integers(1, 10))
    tail = [part for pair in zip(map(Dense, hidden), activations, strict=True) for part in pair] + [Dense(classes)]
    if draw(st.booleans()):
        pool = [SumPool(2)] if draw(st.booleans()) else []
        layers = [Conv2d(draw(st.integers(1, 6)), 3, draw(st.integers(1, 2))), Square(), *pool, Flatten(), *tail[-3:]]
        shape = (draw(st.integers(6, 9)), draw(st.integers(6, 9)), draw(st.integers(1, 2)))
    else:
        layers, shape = tail, (draw(st.integers(1, 64)),)
    bits, weight_bits = draw(st.integers(0, 6)), draw(st.integers(4, 12))
    network = Network(tuple(layers), shape, bits, weight_bits, magnitude)
    return network, draw(st.integers(1, 32)), draw(st.integers(0, 2**31))


@given(initialised())
def test_needed_bits_suffice_for_fresh_networks(drawn):
    network, rows, seed = drawn
    generator = torch.Generator().manual_seed(seed)
    largest = int(2 ** (network.input_bits + network.input_magnitude))
    inputs = torch.randint(-largest, largest + 1, (rows, network.input_size), generator=generator)
    targets = F.one_hot(torch.randint(network.num_classes, (rows,), generator=generator), network.num_classes)
    field, weights = Reals(), network.initial_weights(PublicStream(seed))
    found = network.gradient(field, weights, field.embed(inputs).unsqueeze(1), field.embed(targets).unsqueeze(1))
    assert float(found.abs().max()) <= 2.0 ** network.needed_bits(rows)


def test_needed_bits_grow_with_everything_that_makes_integers_larger():
    def bits(rows=8, input_bits=4, weight_bits=8, magnitude=0.0, sizes=(5, 4, 3)):
        layers = [part for units in sizes[1:] for part in (Dense(units), Square())][:-1]
        return Network(tuple(layers), (5,), input_bits, weight_bits, magnitude).needed_bits(rows)

    base = bits()
    assert bits(rows=16) == base + 1
    assert bits(input_bits=5) == base + 4  # S grows by 2, the gradient stands at 2S − lw
    assert bits(weight_bits=9) == base + 5
    assert bits(magnitude=2.0) > base
    assert bits(sizes=(5, 4, 4, 3)) > base + 20
    assert all(a < b for a, b in itertools.pairwise(bits(rows=r) for r in range(1, 9)))


def test_longest_product_counts_rows_and_positions():
    assert mlp((9, 4, 2), input_bits=1, weight_bits=1).longest_product(7) == 7
    assert NETWORKS["conv"].longest_product(7) == 7 * 4 * 3


# -- refusals --------------------------------------------------------------------------------------------------

REFUSED = {
    "at least one layer with weights": ((Square(),), (3,)),
    "end the model with flatten and dense": ((Conv2d(2, 2),), (3, 3, 1)),
    "put a flatten layer before it": ((Conv2d(2, 2), Dense(3)), (3, 3, 1)),
    "give the model an image input": ((Conv2d(2, 2), Flatten(), Dense(3)), (9,)),
    "put flatten after the last image layer": ((Flatten(), SumPool(2), Dense(3)), (4, 4, 1)),
    "window of 4 does not fit an image of 3x3": ((Conv2d(2, 4), Flatten(), Dense(3)), (3, 3, 1)),
    "window of 5 does not fit an image of 4x9": ((SumPool(5), Flatten(), Dense(3)), (4, 9, 1)),
    "units of dense must be positive": ((Dense(0),), (3,)),
    "channels of conv2d must be positive": ((Conv2d(-1, 2), Flatten(), Dense(1)), (3, 3, 1)),
    "kernel of conv2d must be positive": ((Conv2d(1, 0), Flatten(), Dense(1)), (3, 3, 1)),
    "stride of conv2d must be positive": ((Conv2d(1, 1, 0), Flatten(), Dense(1)), (3, 3, 1)),
    "padding of conv2d must not be negative": ((Conv2d(1, 1, 1, -1), Flatten(), Dense(1)), (3, 3, 1)),
    "kernel of sumpool must be positive": ((SumPool(0), Flatten(), Dense(1)), (3, 3, 1)),
    "stride of sumpool must be positive": ((SumPool(2, 0), Flatten(), Dense(1)), (3, 3, 1)),
    "weight_bits must lie in 1..24, not 25": ((Dense(1, weight_bits=25),), (3,)),
    "weight_bits must lie in 1..24, not 0": ((Dense(1, weight_bits=0),), (3,)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_stack_that_cannot_be_is_refused_with_a_reason(words):
    layers, shape = REFUSED[words]
    with pytest.raises(UsageError) as caught:
        Network(layers, shape, 4)
    assert words in f"{caught.value} {caught.value.hint}"


def test_mlp_needs_two_sizes():
    with pytest.raises(UsageError, match="at least an input and an output"):
        mlp((3,), input_bits=1, weight_bits=1)
    assert mlp((3, 5, 2), input_bits=1, weight_bits=1).layers == (Dense(5), Square(), Dense(2))
