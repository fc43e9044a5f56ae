"""A chain's gradient in one call against the same network layer by layer, and rows combined and lifted in one pass."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.field import ResidueField, choose_moduli
from dresfl.kernels import canonical_, cpu
from dresfl.kernels.threads import torch_threads
from dresfl.model import Dense, Flatten, Network, Quadratic, Square, mlp
from dresfl.model.chain import chain_steps

pytestmark = pytest.mark.skipif(cpu._compiled is None, reason="Numba is not installed")

MODULI = choose_moduli(150.0, more_than=30, limit=2**24)
FIELD = ResidueField(MODULI, len(MODULI) - 1)


def residues(*shape, seed=0, field=FIELD):
    """Symmetric residues over their whole range, some at its very ends and beyond by what a reduction leaves."""
    generator = torch.Generator().manual_seed(seed)
    p = field._p.view(-1, *[1] * len(shape))
    found = torch.floor(torch.rand((len(field.moduli), *shape), generator=generator, dtype=torch.float64) * p) - p // 2
    ends = torch.rand(found.shape, generator=generator) < 0.1
    return torch.where(ends, (p // 2 + 2) * found.sign(), found)


def both(network, weights, clients, rows, seed=0, width=0):
    """The gradient in one call and layer by layer, canonical; inputs and targets are slices of coded rows."""
    size = network.input_size
    coded = residues(clients, rows, size + network.num_classes + width, seed=seed)
    given = FIELD, weights, coded[..., :size], coded[..., size : size + network.num_classes]
    whole, parts = network.gradient_parts(*given), network._gradient_by_layers(*given)
    assert len(whole) == 1
    return canonical_(whole[0].clone(), FIELD._p), canonical_(FIELD.concat(parts, 2).clone(), FIELD._p)


@st.composite
def chains(draw):
    sizes = st.integers(1, 70)
    layers = [Quadratic()] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        layers += [Dense(draw(sizes)), *draw(st.sampled_from([[], [Square()], [Quadratic()], [Square(), Square()]]))]
    return Network(tuple(layers), (draw(sizes),), 2, 3)


@given(chains(), st.integers(1, 3), st.integers(1, 30), st.sampled_from([1, 2**12, 2**29]), st.integers(0, 99))
def test_every_chain(network, clients, rows, width, seed):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randint(-width, width + 1, (network.num_parameters,), generator=generator)
    found, expected = both(network, weights, clients, rows, seed)
    assert found.equal(expected)


@pytest.mark.parametrize("rows", [1, 85, 86, 200])  # the inner length of a weight's gradient, in one pass or several
@pytest.mark.parametrize("inputs", [85, 170, 171])
def test_sums_in_several_passes(rows, inputs):
    network = mlp((inputs, 26, 3), input_bits=2, weight_bits=3)
    weights = torch.full((network.num_parameters,), 2**20)
    found, expected = both(network, weights, 1, rows, width=5)
    assert found.equal(expected)


def test_weights_without_an_exact_product_go_layer_by_layer():
    network = mlp((5, 4), input_bits=2, weight_bits=3)
    weights = torch.full((network.num_parameters,), 2**40)
    coded = residues(1, 3, 9)
    assert len(network.gradient_parts(FIELD, weights, coded[..., :5], coded[..., 5:])) > 1


def test_two_threads_find_the_same(monkeypatch):
    network = mlp((40, 30, 10), input_bits=2, weight_bits=3)
    weights = torch.arange(network.num_parameters) % 4001 - 2000
    monkeypatch.setattr(cpu.chain, "_LARGE", 0)
    with torch_threads(2):
        for seed in range(5):
            found, expected = both(network, weights, 3, 16, seed)
            assert found.equal(expected)


def test_which_networks_are_chains():
    dense = Network((Flatten(), Dense(4), Square(), Dense(2)), (2, 3, 1), 2, 3)
    assert [step.affine for step in chain_steps(dense.layers, dense.places)] == [True, False, True]
    from dresfl.model import SumPool

    pooled = Network((SumPool(2), Flatten(), Dense(2)), (4, 4, 1), 2, 3)
    assert chain_steps(pooled.layers, pooled.places) is None


# -- rows that lie apart -----------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 4), st.sampled_from([1, 7, 1023, 1024, 1025, 2100]), st.integers(0, 99))
def test_rows_are_combined(count, results, columns, seed):
    rows = [residues(columns + 3, seed=seed + j)[:, 1 : columns + 1] for j in range(count)]
    matrix = residues(results, count, seed=seed)
    found = FIELD.combine(matrix, rows)
    expected = FIELD.matmul(matrix, torch.stack(rows, 1))
    assert canonical_(found, FIELD._p).equal(canonical_(expected, FIELD._p))


@given(st.integers(1, 12), st.sampled_from([1, 127, 128, 129, 1023, 1024, 1025, 2100]), st.integers(0, 99))
def test_answers_are_decoded_where_they_lie(count, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-(2**60), 2**60, (count, columns), generator=generator)
    values >>= torch.randint(0, 60, values.shape, generator=generator)
    answers = [FIELD.embed(row) for row in values >> 8]
    answers = [FIELD.mul(x, FIELD.embed(torch.tensor([2**50]))) for x in answers]  # some of them out of range
    coefficients = FIELD.embed(torch.randint(-(2**20), 2**20, (count,), generator=generator))
    small = ResidueField(MODULI, 3)  # most values are out of its range
    for field in (FIELD, small):
        found, exceeded = field.decode_lift_answers(coefficients, answers)
        expected, beyond = field.lift_checked(field.matmul(coefficients.unsqueeze(1), torch.stack(answers, 1))[:, 0])
        assert found.equal(expected)
        assert int(exceeded) == int(beyond)


def test_without_compiled_kernels_the_same_comes_out(monkeypatch):
    rows = [residues(5000, seed=j) for j in range(3)]
    matrix = residues(2, 3, seed=9)
    fast = FIELD.combine(matrix, rows), *FIELD.decode_lift_answers(matrix[:, 0], rows)
    monkeypatch.setattr(cpu, "_compiled", None)
    slow = FIELD.combine(matrix, rows), *FIELD.decode_lift_answers(matrix[:, 0], rows)
    assert canonical_(fast[0], FIELD._p).equal(canonical_(slow[0], FIELD._p))
    assert fast[1].equal(slow[1])
    assert int(fast[2]) == int(slow[2])
