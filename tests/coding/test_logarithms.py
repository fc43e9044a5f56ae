"""Coefficients by discrete logarithms are those that the definition gives, on both ways and for every size of grid."""

import random

import flint
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dresfl.coding import logarithms
from dresfl.coding.lagrange import LagrangeCode, lagrange_matrices, lagrange_matrix, lagrange_sums
from dresfl.coding.logarithms import grid_factors
from dresfl.field import ByteField, ResidueField, choose_moduli
from reference.flint_field import FlintField

PRIMES = (3, 5, 7, 23, 67, 251, 257, 65537, 8446303, 16777199, 16777213)
seeds = st.integers(0, 2**32)


def by_definition(p, nodes, targets):
    """ℓ_j(z) for each target and node, one factor at a time."""
    field = flint.fmpz_mod_ctx(p)
    found = []
    for z in targets:
        row = []
        for j, x in enumerate(nodes):
            value = field(1)
            for i, other in enumerate(nodes):
                if i != j:
                    value *= field(z - other) / field(x - other)
            row.append(int(value))
        found.append(row)
    return found


def coefficients(p, nodes, targets):
    """(sets,targets,nodes), from the factors."""
    found = grid_factors([p], nodes, targets)
    scaled = found.at_targets[0][:, :, None] * found.inverses[0] % p
    return (scaled * found.weights[0][:, None] % p).tolist()


@given(seed=seeds, p=st.sampled_from(PRIMES[2:]), count=st.integers(1, 20), targets=st.integers(1, 4))
def test_factors_give_the_coefficients(seed, p, count, targets):
    rng, largest = random.Random(seed), min(p, 300)
    targets = min(targets, largest - 1)
    count = min(count, largest - targets)
    points = rng.sample(range(largest), count + targets)
    elsewhere, rest = points[:targets], points[targets:]
    sets = [rng.sample(rest, count) for _ in range(2)]
    assert coefficients(p, sets, elsewhere) == [by_definition(p, nodes, elsewhere) for nodes in sets]


@pytest.mark.parametrize("p", PRIMES)
def test_logarithms_are_logarithms(p):
    reach = min(p, 3000)
    g, logs = logarithms._logarithms(p, reach)
    assert logs[0] == 0
    assert all(pow(g, int(e), p) == d for d, e in enumerate(logs.tolist()) if d)
    assert logs.min() >= 0
    assert logs.max() < p - 1


@given(seed=seeds, count=st.integers(1, 300))
@settings(max_examples=20)
def test_the_transform_sums_as_the_plain_way_does(seed, count):
    rng, moduli = random.Random(seed), (65537, 16777199, 16777213)
    grid = logarithms._grid(moduli, 2048)
    nodes = np.array([rng.sample(range(2048), count) for _ in range(3)])
    points = np.array([rng.sample(range(2048), 50) for _ in range(3)])
    difference = grid.sums(nodes, points) - grid.plain_sums(nodes, points)
    assert (difference == 0).all()


def test_the_transform_is_exact_in_the_largest_grid():
    grid = logarithms._grid((16777213,), logarithms.LARGEST_GRID)
    nodes = np.arange(1, 65536)[None]  # as many clients as messages can number
    points = np.array([[0, 1, 2, 70_000, 131_071]])
    exact = [sum(int(grid.logs[0, z - x + grid.reach]) for x in nodes[0].tolist()) for z in points[0].tolist()]
    assert grid.sums(nodes, points)[0, 0].tolist() == exact


def test_blocks_of_sets_do_not_matter(monkeypatch):
    rng = random.Random(1)
    sets = [rng.sample(range(4, 90), 60) for _ in range(5)]
    whole = grid_factors((257, 16777213), sets, [1, 2])
    monkeypatch.setattr(logarithms, "_BYTES_AT_A_TIME", 1)
    one_by_one = grid_factors((257, 16777213), sets, [1, 2])
    for name in ("at_targets", "weights", "inverses"):
        assert np.array_equal(getattr(whole, name), getattr(one_by_one, name))


@pytest.mark.parametrize(
    "field", [ResidueField((257, 16777199, 16777213), 2), ByteField((239, 241, 251), 1), FlintField(2**200 - 75)]
)
def test_sums_are_those_of_the_matrices(field):
    rng = random.Random(2)
    nodes = torch.tensor([rng.sample(range(8, 200), 17) for _ in range(3)])
    sums, matrices = lagrange_sums(field, nodes, range(1, 8)), lagrange_matrices(field, nodes, range(1, 8))
    summed = field.sum(matrices, 2)
    assert sums.shape == summed.shape == (len(field.moduli), 3, 17)
    assert sums.tolist() == summed.tolist()


def test_points_outside_the_grid_take_the_plain_way():
    field = ResidueField((16777199, 16777213), 1)
    nodes, targets = [1, logarithms.LARGEST_GRID + 5, -7], [2, 10**6]
    matrix = lagrange_matrix(field, nodes, targets)
    for p, found in zip(field.moduli, matrix.tolist(), strict=True):
        assert [[int(x) % p for x in row] for row in found] == by_definition(p, nodes, targets)


def test_a_code_of_505_answers_decodes_and_no_fewer_do():
    moduli = choose_moduli(30, more_than=1064)
    field = ResidueField(moduli, len(moduli) - 1)
    code = LagrangeCode(field, num_clients=1000, num_shards=32, max_colluders=32, degree=8)
    assert code.recovery_threshold == 505
    rng, generator = random.Random(3), torch.Generator().manual_seed(3)
    shards, masks = (field.embed(torch.randint(-4, 5, (32, 3), generator=generator)) for _ in range(2))
    shares = code.encode(shards, masks)

    def eighth_power(x):
        for _ in range(3):
            x = field.mul(x, x)
        return x

    answers, truth = eighth_power(shares), eighth_power(shards)
    survivors = rng.sample(range(1000), 505)
    assert code.decode(answers[:, survivors], survivors).equal(truth)
    assert code.decode_sum(answers[:, survivors], survivors).equal(field.sum(truth, 1))
    few = [code.client_points[j] for j in survivors[:504]]
    guess = field.matmul(lagrange_matrix(field, few, code.data_points), answers[:, survivors[:504]])
    assert not (guess == truth).any(0).any()
