"""Rows and their clients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import EstimatorError
from dresfl.estimators.clients import hold_out, parts_by_chance, parts_by_key


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30))
def test_every_row_belongs_to_the_client_of_its_key(keys):
    names, parts = parts_by_key(np.array(keys))
    assert names.tolist() == sorted(set(keys))
    for name, part in zip(names, parts, strict=True):
        assert part.tolist() == [row for row, key in enumerate(keys) if key == name]


@given(st.integers(9, 60), st.floats(0, 0.99), st.integers(0, 5))
def test_rows_are_kept_or_held_out_and_nobody_trains_without_rows(rows, share, seed):
    parts = parts_by_chance(rows, 9, np.random.default_rng(seed))
    kept, held = hold_out(parts, share, np.random.default_rng(seed))
    assert sorted(np.concatenate([*kept, *held]).tolist()) == list(range(rows))
    for part, training, aside in zip(parts, kept, held, strict=True):
        assert set(training) | set(aside) == set(part)
        assert len(training) >= 1
        assert len(aside) <= len(part) * share + 1


def test_nothing_is_held_out_without_a_share():
    _, held = hold_out([np.arange(50), np.arange(50, 60)], 0.0, np.random.default_rng(0))
    assert [len(part) for part in held] == [0, 0]


def test_fewer_rows_than_clients_are_refused():
    with pytest.raises(EstimatorError, match="n_samples=8"):
        parts_by_chance(8, 9, np.random.default_rng(0))
