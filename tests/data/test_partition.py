from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.data import partition
from dresfl.errors import DataError, UsageError

labels_and_clients = st.lists(st.integers(0, 9), min_size=1, max_size=80).flatmap(
    lambda labels: st.tuples(st.just(np.array(labels, np.int64)), st.integers(1, len(labels)))
)
seeds = st.integers(0, 2**32 - 1)


def assert_partition(shares, num_rows, num_clients):
    assert len(shares) == num_clients
    assert all(len(share) > 0 and share.dtype == np.int64 for share in shares)
    assert all((np.diff(share) > 0).all() for share in shares)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(num_rows))


@given(labels_and_clients)
def test_label_sorted_is_an_even_partition_in_label_order(drawn):
    labels, num_clients = drawn
    shares = partition(labels, num_clients, "label-sorted")
    assert_partition(shares, len(labels), num_clients)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for left, right in pairwise(shares):
        assert labels[left].max() <= labels[right].min()
        # Stable: of a class cut in two, the earlier rows come first.
        cut = labels[left].max()
        if cut == labels[right].min():
            assert left[labels[left] == cut].max() < right[labels[right] == cut].min()


@given(labels_and_clients, seeds)
def test_iid_is_an_even_partition(drawn, seed):
    labels, num_clients = drawn
    shares = partition(labels, num_clients, "iid", seed=seed)
    assert_partition(shares, len(labels), num_clients)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(labels_and_clients, seeds, st.floats(1e-300, 1e300))
def test_dirichlet_is_a_partition_for_every_alpha(drawn, seed, alpha):
    labels, num_clients = drawn
    shares = partition(labels, num_clients, "dirichlet", alpha=alpha, seed=seed)
    assert_partition(shares, len(labels), num_clients)


def test_dirichlet_is_skewed_for_small_alpha_and_even_for_large():
    labels = np.repeat(np.arange(10), 500)

    def largest_fraction_of_a_class(alpha):
        shares = partition(labels, 10, "dirichlet", alpha=alpha, seed=7)
        counts = np.stack([np.bincount(labels[share], minlength=10) for share in shares])
        return (counts.max(axis=1) / counts.sum(axis=1)).mean()

    assert largest_fraction_of_a_class(1e4) < 0.15
    assert largest_fraction_of_a_class(0.05) > 0.6


@pytest.mark.parametrize("how", ["iid", "dirichlet"])
def test_the_seed_decides_everything(how):
    labels = np.arange(200) % 10
    one, same, other = (partition(labels, 7, how, alpha=0.3, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("how", ["label-sorted", "iid", "dirichlet"])
def test_refuses_what_cannot_be_cut(how):
    with pytest.raises(DataError, match="3 rows for 4 clients"):
        partition(np.zeros(3, np.int64), 4, how)
    with pytest.raises(UsageError, match="0 clients"):
        partition(np.zeros(3, np.int64), 0, how)
    with pytest.raises(DataError, match="float64 of 1 axes"):
        partition(np.zeros(3), 2, how)
    with pytest.raises(DataError, match="int64 of 2 axes"):
        partition(np.zeros((3, 1), np.int64), 2, how)


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.nan, np.inf, 1e308])
def test_refuses_an_alpha_without_a_distribution(alpha):
    with pytest.raises(UsageError, match="alpha"):
        partition(np.zeros(30, np.int64), 20, "dirichlet", alpha=alpha)
