"""The blinded answers tell the sum and nothing else: counted over all seeds in small fields, not sampled."""

import itertools

import numpy as np
import pytest

from dresfl.errors import InfeasiblePlan
from dresfl.masking import MaskFamily, certify, zero_sum_family
from dresfl.masking.certificate import points_of
from dresfl.masking.codewords import codeword_values

from .exhaustive import evaluations, views

SETTINGS = [  # p, N, K, T, R; in the last, two colluders see all there is to see
    (7, 4, 1, 1, 2),
    (7, 4, 1, 1, 3),
    (7, 4, 1, 1, 4),
    (7, 3, 2, 1, 3),
    (7, 3, 1, 2, 3),
]


def codewords_of(p, num_clients, num_shards, max_colluders, threshold):
    """The family and its codewords (S,N)."""
    family = zero_sum_family((p,), num_clients, num_shards, max_colluders, threshold)
    (table,) = codeword_values((p,), family.sets, *points_of(num_clients, num_shards, max_colluders))
    return family, table


def polynomials(p, num_clients, num_shards, max_colluders, threshold):
    """The answers (F,N) of all polynomials of degree below R whose sum is 0 or 3, and these sums (F,)."""
    data_points, client_points = points_of(num_clients, num_shards, max_colluders)
    every = np.stack(np.meshgrid(*[np.arange(p)] * threshold, indexing="ij"), -1).reshape(-1, threshold)
    sums = evaluations(every, data_points, p).sum(1) % p
    chosen = (sums == 0) | (sums == 3)
    return evaluations(every[chosen], client_points, p), sums[chosen]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_view_depends_on_the_sum_and_on_the_coalitions_own_values_alone(setting):
    p, num_clients, _, max_colluders, _ = setting
    family, table = codewords_of(*setting)
    answers, sums = polynomials(*setting)
    for size in range(max_colluders + 1):
        for coalition in itertools.combinations(range(num_clients), size):
            seen = views(p, table, family, coalition, answers)
            own = np.concatenate((sums[:, None], answers[:, coalition]), 1)
            kinds = np.unique(own, axis=0)
            assert len(kinds) == 2 * p**size
            first = [seen[(own == kind).all(1)] for kind in kinds]
            assert all((alike == alike[0]).all() for alike in first)
            assert len({alike[0].tobytes() for alike in first}) == len(kinds)  # what is known anyway is seen


@pytest.mark.slow
def test_two_colluders_who_do_not_see_everything():
    setting = 11, 4, 1, 2, 4
    family, table = codewords_of(*setting)
    answers, sums = polynomials(*setting)
    for coalition in itertools.combinations(range(4), 2):
        alike = answers[(sums == 0) & (answers[:, coalition] == 0).all(1)]
        assert len(alike) == 11
        seen = views(11, table, family, coalition, alike[[0, 1, 10]])
        assert (seen == seen[0]).all()


@pytest.mark.parametrize("dropped", range(4))
def test_with_a_seed_less_a_client_and_the_coordinator_learn_more(dropped):
    (family, table), (answers, sums) = codewords_of(7, 4, 1, 1, 3), polynomials(7, 4, 1, 1, 3)
    rest = [s for s in range(4) if s != dropped]
    poorer = MaskFamily(4, 3, 1, tuple(family.sets[s] for s in rest))
    (colluder,) = family.sets[dropped]  # the one client that did not hold it
    seen = views(7, table[rest], poorer, (colluder,), answers)
    alike = seen[(sums == 0) & (answers[:, colluder] == 0)]
    assert len(np.unique(alike, axis=0)) == len(alike) == 7
    with pytest.raises(InfeasiblePlan, match=rf"clients \[{colluder}\]: modulo 7"):
        certify((7,), poorer, 1)


def test_without_blinding_the_answers_are_seen():
    answers, sums = polynomials(7, 4, 1, 1, 3)
    assert len(np.unique(answers[sums == 0], axis=0)) == 49
