"""The scaling of several clients is that of all rows together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dresfl.estimators.scaling import scaling_of_clients

FINITE = st.floats(-1e6, 1e6, allow_nan=False, width=32)


@given(arrays(np.float64, (12, 2), elements=FINITE), st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_totals_of_clients_give_the_scaling_of_pooled_rows(values, owners):
    parts = [np.flatnonzero(np.array(owners) == client) for client in range(4)]
    found = scaling_of_clients(values, parts, clip=2.0)
    assert np.allclose(found.mean, values.mean(axis=0), rtol=1e-9, atol=1e-6)
    spread = values.std(axis=0)
    varies = spread > 1e-9 * np.abs(values.mean(axis=0))
    assert np.allclose(found.spread[varies], spread[varies], rtol=1e-6, atol=1e-6)


def test_columns_of_large_mean_lose_no_digits():
    values = 1e9 + np.arange(9.0)[:, None]
    found = scaling_of_clients(values, [np.arange(4), np.arange(4, 9)], clip=2.0)
    assert np.allclose(found.spread, np.std(np.arange(9.0)), rtol=1e-12)


def test_constant_columns_become_zero():
    values = np.full((6, 1), 0.1)
    found = scaling_of_clients(values, [np.arange(3), np.arange(3, 6)], clip=2.0)
    assert np.abs(found.apply(values)).max() < 1e-12


def test_values_beyond_the_clip_end_at_one():
    values = np.array([[0.0], [0.0], [0.0], [0.0], [100.0]])
    found = scaling_of_clients(values, [np.arange(5)], clip=1.5)
    assert found.apply(np.array([[1e30], [-1e30]])).ravel().tolist() == [1.0, -1.0]
