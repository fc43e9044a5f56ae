"""T shares say nothing about the data: as algebra modulo every prime, and by counting in a small field."""

import itertools
import random
from collections import Counter

import flint
import pytest
import torch

from dresfl.coding.lagrange import LagrangeCode, recovery_threshold
from dresfl.field import ResidueField, choose_moduli, num_value_moduli
from reference.flint_field import FlintField

MODULI = {
    "cpu": choose_moduli(180, more_than=22),
    "8-bit": choose_moduli(270, more_than=22, limit=256),
    "smallest": (23, 29, 31),
}
PLANS = [(20, 1, 1), (20, 1, 2), (8, 3, 2), (9, 2, 3), (7, 1, 5), (6, 2, 4), (17, 3, 2)]  # N, K, T
FEASIBLE = [(name, plan) for name in MODULI for plan in PLANS if min(MODULI[name]) > sum(plan)]
MOST_MINORS = 60


def make(field, num_clients, num_shards, max_colluders):
    return LagrangeCode(field, num_clients, num_shards, max_colluders, degree=1)


def mask_columns(code, channel):
    return code.encoding_matrix[channel][:, code.num_shards :].tolist()


def some_combinations(items, size):
    every = list(itertools.combinations(items, size))
    return every if len(every) <= MOST_MINORS else random.Random(size).sample(every, MOST_MINORS)


@pytest.mark.parametrize(("name", "plan"), FEASIBLE)
def test_every_minor_of_the_mask_columns_is_invertible(name, plan):
    moduli = MODULI[name]
    num_clients, _, size = plan
    code = make(ResidueField(moduli, 1), *plan)
    for channel, p in enumerate(moduli):
        columns = [[int(x) for x in row] for row in mask_columns(code, channel)]
        assert len(columns) == num_clients
        assert len(columns[0]) == size
        for rows in some_combinations(range(num_clients), size):
            minor = flint.nmod_mat(size, size, [x for r in rows for x in columns[r]], p)
            assert int(minor.det()) != 0
            # fewer colluders: their mask columns keep full rank
            assert flint.nmod_mat(size - 1, size, [x for r in rows[1:] for x in columns[r]], p).rank() == size - 1


@pytest.mark.parametrize("prime", [2**200 - 75, 2**440 - 33])
def test_every_minor_is_invertible_modulo_the_papers_primes(prime):
    code = make(FlintField(prime), 7, 2, 3)
    columns = mask_columns(code, 0)
    for rows in itertools.combinations(range(7), 3):
        minor = flint.fmpz_mod_mat(3, 3, [x for r in rows for x in columns[r]], flint.fmpz_mod_ctx(prime))
        assert int(minor.det()) != 0


@pytest.mark.parametrize(("name", "plan"), FEASIBLE)
def test_points_are_distinct_modulo_every_prime(name, plan):
    code = make(ResidueField(MODULI[name], 1), *plan)
    points = code.data_points + code.mask_points + code.client_points
    assert len(points) == sum(plan)
    for p in MODULI[name]:
        assert len({z % p for z in points}) == len(points)


def test_points_are_distinct_in_the_tightest_field():
    code = make(ResidueField((11,), 1), 7, 2, 1)
    points = code.data_points + code.mask_points + code.client_points
    assert len({z % 11 for z in points}) == 10


def views(code, coalition, masks=None):
    """For each data set, how often the coalition sees each tuple of shares, over all masks."""
    p = code.field.modulus
    size, colluders = code.num_shards, code.max_colluders
    if masks is None:
        masks = list(itertools.product(range(p), repeat=colluders))
    data = list(itertools.product(range(p), repeat=size))
    shards = torch.tensor(data).repeat_interleave(len(masks), 0).T  # (K, data sets · masks)
    uniform = torch.tensor(masks).repeat(len(data), 1).T  # (T, data sets · masks)
    shares = code.encode(code.field.embed(shards), code.field.embed(uniform), coalition)[0]
    seen = [tuple(column) for column in shares.to(torch.int64).remainder(p).T.tolist()]
    return {x: Counter(seen[i * len(masks) : (i + 1) * len(masks)]) for i, x in enumerate(data)}


def hides(code, coalition, masks=None):
    """Whether the coalition's shares are exactly uniform, whatever the data."""
    p = code.field.modulus
    everything = list(itertools.product(range(p), repeat=len(coalition)))
    for counts in views(code, coalition, masks).values():
        if {counts[shares] for shares in everything} != {p ** (code.max_colluders - len(coalition))}:
            return False
    return True


TINY = [(7, 1, 1, 11), (5, 1, 2, 11), (4, 2, 1, 11), (4, 2, 2, 11), (3, 1, 1, 7), (4, 1, 3, 11)]  # N, K, T, p


@pytest.mark.parametrize(("num_clients", "num_shards", "max_colluders", "p"), TINY)
def test_every_coalition_of_t_sees_uniform_shares(num_clients, num_shards, max_colluders, p):
    code = make(ResidueField((p,), 1), num_clients, num_shards, max_colluders)
    for size in range(1, max_colluders + 1):
        for coalition in itertools.combinations(range(num_clients), size):
            assert hides(code, coalition)


@pytest.mark.parametrize(("num_clients", "max_colluders"), [(7, 1), (5, 2)])
def test_one_colluder_more_learns_the_data(num_clients, max_colluders):
    code = make(ResidueField((11,), 1), num_clients, 1, max_colluders)
    assert code.recovery_threshold == max_colluders + 1
    for coalition in itertools.combinations(range(num_clients), max_colluders + 1):
        seen = [set(counts) for counts in views(code, coalition).values()]
        assert all(a.isdisjoint(b) for a, b in itertools.combinations(seen, 2))


def test_zero_masks_leak():
    code = make(ResidueField((11,), 1), 5, 1, 2)
    assert not hides(code, (0, 1), masks=[(0, 0)])
    assert not hides(code, (0,), masks=[(0, 0)])


def test_one_constant_mask_leaks():
    code = make(ResidueField((11,), 1), 5, 1, 2)
    assert not hides(code, (0, 1), masks=[(u, 3) for u in range(11)])
    assert not hides(code, (0, 1), masks=[(u, u) for u in range(11)])


def test_biased_masks_leak():
    code = make(ResidueField((11,), 1), 5, 1, 1)
    assert hides(code, (0,))
    assert not hides(code, (0,), masks=[(word % 11,) for word in range(16)])


def test_without_masks_a_share_is_data():
    code = make(ResidueField((11,), 1), 4, 1, 0)
    assert recovery_threshold(1, 1, 0) == 1
    assert all(set(counts) == {data} for data, counts in views(code, (2,), masks=[()]).items())


def test_shares_of_real_masks_look_the_same_for_any_data():
    moduli = choose_moduli(60, more_than=22)
    field = ResidueField(moduli, num_value_moduli(moduli, 60))
    code = make(field, 4, 1, 1)
    key = torch.arange(8, dtype=torch.int32).view(1, 8)
    masks = field.uniform(key.expand(1, 8), torch.tensor([0]), 20_000)
    means = []
    for value in (0, 10**6):
        share = code.encode(field.embed(torch.full((1, 20_000), value)), masks, [2])
        means.append((share.view(len(moduli), -1) / torch.tensor(moduli).view(-1, 1)).mean(1))
    bound = 5 * (1 / 12 / 20_000) ** 0.5
    assert all(mean.abs().max() < bound for mean in means)
