"""The figures of a model, held against scikit-learn's."""

import numpy as np
import pytest
from sklearn import metrics

import dresfl as dr
from dresfl.api.evaluation import class_report, number_report, shares

GENERATOR = np.random.default_rng(3)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_classes_as_scikit_learn_measures_them(classes):
    labels = GENERATOR.integers(0, classes, 500)
    outputs = np.eye(classes)[labels] * 0.5 + GENERATOR.normal(0.2, 0.4, (500, classes)).round(1)  # with ties
    report = class_report(outputs, labels)
    predicted = outputs.argmax(1)
    assert report.accuracy == metrics.accuracy_score(labels, predicted)
    assert np.array(report.confusion).tolist() == metrics.confusion_matrix(labels, predicted).tolist()
    areas = [metrics.roc_auc_score(labels == place, outputs[:, place]) for place in range(classes)]
    assert report.auc == pytest.approx(np.mean(areas), abs=1e-12)
    found = shares(outputs)
    np.testing.assert_allclose(found.sum(1), 1)
    assert report.brier == pytest.approx(np.square(found - np.eye(classes)[labels]).sum(1).mean(), abs=1e-12)
    assert sum(one.rows for one in report.calibration) == 500
    gaps = [one.rows * abs(one.mean_share - one.accuracy) for one in report.calibration]
    assert report.calibration_error == pytest.approx(sum(gaps) / 500)


def test_a_single_output_tells_two_classes_apart():
    labels = GENERATOR.integers(0, 2, 400)
    outputs = (2 * labels - 1 + GENERATOR.normal(0, 1.5, 400))[:, None]
    report = class_report(outputs, labels)
    assert report.accuracy == ((outputs[:, 0] > 0) == labels).mean()
    assert report.auc == pytest.approx(metrics.roc_auc_score(labels, outputs[:, 0]), abs=1e-12)
    assert report.classes == ("0", "1")


def test_a_sure_and_right_model_is_calibrated():
    labels = np.array([0, 1, 2, 1])
    report = class_report(np.eye(3)[labels], labels, ("a", "b", "c"))
    assert (report.accuracy, report.auc, report.brier, report.calibration_error) == (1.0, 1.0, 0.0, 0.0)
    assert [(one.low, one.high, one.rows) for one in report.calibration] == [(0.9, 1.0, 4)]


def test_one_class_alone_has_no_auc():
    assert class_report(np.array([[1.0, 0.0], [0.4, 0.6]]), np.array([0, 0])).auc is None


@pytest.mark.parametrize("targets", [1, 2])
def test_numbers_as_scikit_learn_measures_them(targets):
    wanted = GENERATOR.normal(3, 2, (200, targets))
    found = wanted + GENERATOR.normal(0, 1, (200, targets))
    report = number_report(found, wanted, "mg")
    assert report.r2 == pytest.approx(metrics.r2_score(wanted, found), abs=1e-12)
    assert report.mae == pytest.approx(metrics.mean_absolute_error(wanted, found), abs=1e-12)
    assert report.rmse == pytest.approx(metrics.mean_squared_error(wanted, found) ** 0.5, abs=1e-12)
    assert report.to_dict()["unit"] == "mg"


def test_equal_targets_have_no_r2():
    assert number_report(np.array([1.0, 2.0]), np.array([1.0, 1.0])).r2 is None


@pytest.mark.parametrize(
    ("outputs", "labels"), [(np.eye(2), [0]), (np.eye(2), [0, 2]), (np.eye(2), [0, -1]), (np.zeros((0, 2)), [])]
)
def test_labels_that_do_not_fit_are_refused(outputs, labels):
    with pytest.raises(dr.DataError) as caught:
        class_report(outputs, np.array(labels, np.int64))
    assert caught.value.hint


def test_targets_that_do_not_fit_are_refused():
    for targets in (np.ones(3), np.array([1.0, np.nan])):
        with pytest.raises(dr.DataError):
            number_report(np.ones(2), targets)
