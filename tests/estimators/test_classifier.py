"""DresClassifier: scikit-learn's own checks, its tools around it, and what the federation adds."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, make_classification
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import dresfl as dr
from dresfl.errors import DresError, EstimatorError

QUICK = {"rounds": 30, "learning_rate": 0.05, "engine": "direct", "random_state": 0}


@pytest.fixture(scope="module")
def table():
    return make_classification(240, 6, n_informative=4, n_classes=3, class_sep=2.0, random_state=3)


def failed(estimator):
    results = check_estimator(estimator, on_skip=None, on_fail=None)
    return [
        (found["check_name"], found["exception"]) for found in results if found["status"] not in ("passed", "skipped")
    ]


def test_scikit_learns_checks_pass_with_few_rounds():
    assert failed(dr.DresClassifier(rounds=30, learning_rate=0.05, engine="direct")) == []


@pytest.mark.slow
def test_scikit_learns_checks_pass_with_the_defaults():
    assert failed(dr.DresClassifier()) == []


def test_the_coded_protocol_is_the_default_and_gives_the_weights_of_the_direct_one(table):
    settings = {**QUICK, "engine": "coded", "rounds": 5}
    coded = dr.DresClassifier(**settings).fit(*table)
    direct = dr.DresClassifier(**{**settings, "engine": "direct"}).fit(*table)
    assert dr.DresClassifier().engine == "coded"
    assert (coded.summary_.engine, direct.summary_.engine) == ("coded", "direct")
    assert coded.model_.weights_sha256 == direct.model_.weights_sha256


def test_learns_the_breast_cancer_table():
    X, y = load_breast_cancer(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(X))
    found = dr.DresClassifier(**{**QUICK, "rounds": 100, "learning_rate": None}).fit(X[rows[:400]], y[rows[:400]])
    assert found.score(X[rows[400:]], y[rows[400:]]) > 0.93


def test_clients_are_the_keys_of_the_rows(table):
    X, y = table
    keys = np.array([f"hospital-{i % 7}" for i in range(len(X))], dtype=object)
    found = dr.DresClassifier(**QUICK).fit(X, y, clients=keys)
    assert found.clients_.tolist() == sorted(set(keys))
    by_chance = dr.DresClassifier(**QUICK, num_clients=7).fit(X, y)
    assert found.model_.weights_sha256 != by_chance.model_.weights_sha256
    assert found.calibration_rows_ < len(X) / 5


def test_who_is_away_does_not_change_the_model(table):
    away = dr.DresClassifier(**QUICK, dropout_rates=(0.99, 0.99, 0.99, *[0.0] * 6)).fit(*table)
    there = dr.DresClassifier(**QUICK).fit(*table)
    assert away.model_.weights_sha256 == there.model_.weights_sha256


def test_rows_that_are_held_out_are_not_trained_on(table):
    X, y = table
    found = dr.DresClassifier(**QUICK, calibration_share=0.25).fit(X, y)
    assert 40 <= found.calibration_rows_ <= 80
    none = dr.DresClassifier(**QUICK, calibration_share=0.0).fit(X, y)
    assert none.calibration_rows_ == 0
    assert none.model_.weights_sha256 != found.model_.weights_sha256


def test_the_hidden_mode_has_defaults_of_its_own():
    X, y = load_iris(return_X_y=True)
    found = dr.DresClassifier(hidden_layer_sizes=(8,), rounds=60, mode="hidden", engine="direct", random_state=0)
    assert found.fit(X, y).score(X, y) > 0.85


def test_works_inside_scikit_learns_tools(table):
    X, y = table
    whole = make_pipeline(StandardScaler(), dr.DresClassifier(**QUICK))
    assert cross_val_score(whole, X, y, cv=2).mean() > 0.6
    grid = GridSearchCV(dr.DresClassifier(**{**QUICK, "rounds": 5}), {"hidden_layer_sizes": [(), (8,)]}, cv=2).fit(X, y)
    assert grid.best_params_["hidden_layer_sizes"] in [(), (8,)]


def test_clients_are_routed_through_a_pipeline_and_cross_validation(table):
    X, y = table
    keys = np.arange(len(X)) % 6
    with sklearn.config_context(enable_metadata_routing=True):
        asked = dr.DresClassifier(**QUICK).set_fit_request(clients=True)
        whole = make_pipeline(StandardScaler(), asked)
        assert len(cross_val_score(whole, X, y, cv=2, params={"clients": keys})) == 2
        whole.fit(X, y, clients=keys)
    assert whole[-1].clients_.tolist() == list(range(6))


def test_a_pickle_predicts_the_same_and_a_clone_is_unfitted(table):
    X, y = table
    found = dr.DresClassifier(**QUICK).fit(X, y)
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again.predict_proba(X), found.predict_proba(X))
    assert clone(found).get_params() == found.get_params()
    assert not hasattr(clone(found), "model_")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"num_clients": 4}, "5 clients"),
        ({"num_clients": 300}, "n_samples=240"),
        ({"hidden_layer_sizes": 32}, "tuple"),
        ({"hidden_layer_sizes": (0,)}, "tuple"),
        ({"clip": 0.0}, "positive"),
        ({"calibration_share": 1.0}, "calibration_share"),
        ({"rounds": 0}, "rounds"),
        ({"mode": "secret"}, "mode"),
        ({"dropout_rates": (0.5, 0.5)}, "dropouts"),
        ({"device": "tpu"}, "cpu"),
    ],
)
def test_what_cannot_be_fitted_is_a_value_error_with_a_hint(table, changed, word):
    with pytest.raises(EstimatorError) as caught:
        dr.DresClassifier(**{**QUICK, **changed}).fit(*table)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DresError)
    assert word in f"{caught.value} {caught.value.hint}"


def test_wrong_clients_are_refused(table):
    X, y = table
    with pytest.raises(ValueError, match="inconsistent"):
        dr.DresClassifier(**QUICK).fit(X, y, clients=[1, 2, 3])
    with pytest.raises(EstimatorError, match="cannot decode"):
        dr.DresClassifier(**QUICK).fit(X, y, clients=np.arange(len(X)) % 3)


def test_sparse_rows_sample_weights_and_partial_fit_are_not_there(table):
    from scipy.sparse import csr_array

    X, y = table
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        dr.DresClassifier(**QUICK).fit(csr_array(X), y)
    with pytest.raises(TypeError, match="sample_weight"):
        dr.DresClassifier(**QUICK).fit(X, y, sample_weight=np.ones(len(y)))
    assert not hasattr(dr.DresClassifier, "partial_fit")
