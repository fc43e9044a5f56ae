"""The certificate agrees with ranks that python-flint computes, and refuses families that hide too little."""

import itertools
import random

import flint
import numpy as np
import pytest

from dresfl.errors import InfeasiblePlan
from dresfl.field import choose_moduli
from dresfl.masking import MaskFamily, certify, zero_sum_family
from dresfl.masking.certificate import membership, missing_ranks, points_of
from dresfl.masking.codewords import codeword_values


def flint_rank(rows, p):
    rows = [[int(x) for x in row] for row in rows]
    return flint.nmod_mat(len(rows), len(rows[0]), [x % p for row in rows for x in row], p).rank() if rows else 0


def vandermonde(points, threshold, p):
    return [[pow(z, i, p) for i in range(threshold)] for z in points]


@pytest.mark.parametrize(
    ("moduli", "num_clients", "num_shards", "max_colluders", "threshold"),
    [
        ((29, 31), 9, 2, 2, 7),
        ((16777213,), 8, 1, 2, 5),
        ((23,), 7, 1, 3, 4),
        ((17, 19), 9, 3, 1, 7),
        ((11,), 5, 2, 0, 4),
    ],
)
def test_every_coalition_of_at_most_t_by_flint(moduli, num_clients, num_shards, max_colluders, threshold):
    """The whole claim, with nothing taken from the proof: true dimensions, all sizes, full codewords."""
    family = zero_sum_family(moduli, num_clients, num_shards, max_colluders, threshold)
    data_points, client_points = points_of(num_clients, num_shards, max_colluders)
    for p, values in zip(moduli, codeword_values(moduli, family.sets, data_points, client_points), strict=True):
        total = [sum(column) % p for column in zip(*vandermonde(data_points, threshold, p), strict=True)]
        at_clients = vandermonde(client_points, threshold, p)
        for size in range(max_colluders + 1):
            for coalition in itertools.combinations(range(num_clients), size):
                conditions = [total, *(at_clients[c] for c in coalition)]
                dimension = threshold - flint_rank(conditions, p)
                unknown = [s for s, members in enumerate(family.sets) if set(coalition) <= set(members)]
                assert dimension == max(0, threshold - 1 - size)
                assert flint_rank([values[s] for s in unknown], p) == dimension


def test_missing_ranks_count_what_is_missing():
    moduli, (num_clients, num_shards, max_colluders, threshold) = (23,), (10, 1, 2, 7)
    data_points, client_points = points_of(num_clients, num_shards, max_colluders)
    rng = random.Random(5)
    sets = [tuple(sorted(rng.sample(range(num_clients), 5))) for _ in range(14)]
    values = codeword_values(moduli, sets, data_points, client_points)
    coalitions = np.array(list(itertools.combinations(range(num_clients), 2)))
    (found,) = missing_ranks(moduli, values, membership(sets, num_clients), coalitions, threshold)
    expected = [
        4 - flint_rank([values[0, s] for s, members in enumerate(sets) if {a, b} <= set(members)], 23)
        for a, b in coalitions.tolist()
    ]
    assert found.tolist() == expected
    assert len(set(expected)) > 2


def test_matrices_are_cut_into_pieces(monkeypatch):
    family = zero_sum_family((101, 103), 10, 1, 2, 7)
    monkeypatch.setattr("dresfl.masking.certificate._ELEMENTS", 1)
    certify((101, 103), family, 1)


@pytest.mark.parametrize(("num_clients", "max_colluders", "threshold"), [(12, 1, 9), (12, 2, 5), (5, 1, 2), (4, 1, 4)])
def test_a_family_without_one_of_its_sets_is_refused(num_clients, max_colluders, threshold):
    moduli = choose_moduli(60, more_than=20)
    family = zero_sum_family(moduli, num_clients, 1, max_colluders, threshold)
    certify(moduli, family, 1)
    for dropped in range(len(family.sets)):
        rest = family.sets[:dropped] + family.sets[dropped + 1 :]
        if not rest:
            continue
        with pytest.raises(InfeasiblePlan, match="hides too little"):
            certify(moduli, MaskFamily(num_clients, threshold, max_colluders, rest), 1)


def test_an_order_of_the_clients_can_be_bad_modulo_a_small_prime():
    """With two shards a codeword can vanish at one client more: windows of some orders fail where others do not."""
    p, num_clients, threshold = 29, 12, 9
    failed = 0
    for seed in range(20):
        order = random.Random(seed).sample(range(num_clients), num_clients)
        windows = [tuple(sorted(order[(s + i) % num_clients] for i in range(7))) for s in range(num_clients)]
        try:
            certify((p,), MaskFamily(num_clients, threshold, 1, tuple(windows)), 2)
        except InfeasiblePlan as error:
            failed += "modulo 29" in str(error)
    assert 0 < failed < 20


def test_a_codeword_that_is_zero_does_not_count():
    """One or two shards cannot make A = B = 0. Three can: here the sixth window hides nothing."""
    p, num_clients, num_shards, threshold = 13, 8, 3, 8
    windows = [tuple(sorted((s + i) % num_clients for i in range(6))) for s in range(num_clients)]
    (values,) = codeword_values((p,), windows, *points_of(num_clients, num_shards, 1))
    assert np.nonzero((values == 0).all(1))[0].tolist() == [5]
    with pytest.raises(InfeasiblePlan, match="modulo 13"):
        certify((p,), MaskFamily(num_clients, threshold, 1, tuple(windows)), num_shards)
    family = zero_sum_family((p,), num_clients, num_shards, 1, threshold)
    assert family.sets[:8] == tuple(windows)
    certify((p,), family, num_shards)


def test_settings_that_the_proof_does_not_cover_are_refused():
    family = MaskFamily(6, 3, 1, tuple((c,) for c in range(6)))
    with pytest.raises(InfeasiblePlan, match="no certificate"):
        certify((101,), family, 3)  # R < K + T
    with pytest.raises(InfeasiblePlan, match="no certificate"):
        certify((7,), family, 1)  # two points are the same modulo 7
