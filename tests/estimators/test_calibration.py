"""Probabilities from one slope: the best one on held-out rows, and near the usual one if there are few."""

import numpy as np
import pytest

from dresfl.estimators.calibration import USUAL_SLOPE, fit_slope, probabilities


@pytest.mark.parametrize("true_slope", [1.0, 6.0])
def test_the_slope_that_made_the_labels_is_found(true_slope):
    generator = np.random.default_rng(1)
    outputs = generator.normal(0.5, 0.5, size=(20_000, 3))
    chances = probabilities(outputs, true_slope).cumsum(axis=1)
    labels = (generator.random((20_000, 1)) > chances).sum(axis=1)
    assert fit_slope(outputs, labels) == pytest.approx(true_slope, rel=0.05)


def test_probabilities_are_a_distribution_whose_largest_is_of_the_largest_output():
    outputs = np.random.default_rng(0).normal(size=(50, 4)) * 1e3
    found = probabilities(outputs, 3.0)
    assert np.allclose(found.sum(axis=1), 1)
    assert np.isfinite(found).all()
    assert np.array_equal(found.argmax(axis=1), outputs.argmax(axis=1))


def test_one_row_does_not_make_probabilities_certain():
    right = fit_slope(np.array([[0.0, 1.0]]), np.array([1]))
    wrong = fit_slope(np.array([[0.0, 1.0]]), np.array([0]))
    assert wrong < USUAL_SLOPE < right < 3 * USUAL_SLOPE


def test_many_right_rows_and_many_wrong_rows():
    outputs = np.tile([[0.0, 1.0]], (400, 1))
    labels = (np.arange(400) % 4 > 0).astype(np.int64)  # three of four are right: log(3) is the best slope
    assert fit_slope(outputs, labels) == pytest.approx(np.log(3), rel=0.05)
