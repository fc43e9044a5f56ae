"""DresRegressor: scikit-learn's own checks, its tools around it, and what the federation adds."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import dresfl as dr
from dresfl.errors import EstimatorError

QUICK = {"rounds": 30, "learning_rate": 0.05, "engine": "direct", "random_state": 0}


@pytest.fixture(scope="module")
def table():
    return make_friedman1(300, 6, noise=0.5, random_state=1)


def failed(estimator):
    results = check_estimator(estimator, on_skip=None, on_fail=None)
    passed = ("passed", "skipped")
    return [(found["check_name"], found["exception"]) for found in results if found["status"] not in passed]


def test_scikit_learns_checks_pass_with_few_rounds():
    assert failed(dr.DresRegressor(rounds=30, learning_rate=0.05, engine="direct")) == []


@pytest.mark.slow
def test_scikit_learns_checks_pass_with_the_defaults():
    assert failed(dr.DresRegressor()) == []


def test_the_coded_protocol_is_the_default_and_gives_the_weights_of_the_direct_one(table):
    settings = {**QUICK, "rounds": 5}
    coded = dr.DresRegressor(**{**settings, "engine": dr.DresRegressor().engine}).fit(*table)
    direct = dr.DresRegressor(**settings).fit(*table)
    assert (coded.summary_.engine, direct.summary_.engine) == ("coded", "direct")
    assert coded.model_.weights_sha256 == direct.model_.weights_sha256


def test_learns_what_is_not_linear_in_the_unit_of_the_target(table):
    X, y = table
    found = dr.DresRegressor(**QUICK).fit(X[:200], 1000 * y[:200] - 5e6)
    assert found.score(X[200:], 1000 * y[200:] - 5e6) > 0.7
    assert found.clipped_targets_ == 0


def test_learns_the_diabetes_table():
    X, y = load_diabetes(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(X))
    found = dr.DresRegressor(engine="direct", rounds=100, random_state=0).fit(X[rows[:300]], y[rows[:300]])
    assert found.score(X[rows[300:]], y[rows[300:]]) > 0.35


def test_who_is_away_does_not_change_the_model(table):
    keys = np.arange(300) % 9
    away = dr.DresRegressor(**QUICK, dropout_rates=(0.99, 0.99, 0.99, *[0.0] * 6)).fit(*table, clients=keys)
    there = dr.DresRegressor(**QUICK).fit(*table, clients=keys)
    assert away.model_.weights_sha256 == there.model_.weights_sha256


def test_a_target_far_away_is_clipped_and_counted(table):
    X, y = table
    far = y.copy()
    far[7] = 1e9
    found = dr.DresRegressor(**QUICK).fit(X, far)
    assert found.clipped_targets_ == 1
    assert np.isfinite(found.predict(X)).all()


def test_a_constant_target_is_predicted(table):
    X, _ = table
    found = dr.DresRegressor(**{**QUICK, "rounds": 200}).fit(X, np.full(len(X), 7.0))
    assert np.abs(found.predict(X) - 7).max() < 0.5


def test_the_hidden_mode_has_defaults_of_its_own(table):
    found = dr.DresRegressor(hidden_layer_sizes=(8,), rounds=60, mode="hidden", engine="direct", random_state=0)
    assert found.fit(*table).score(*table) > 0.4


def test_works_inside_scikit_learns_tools(table):
    X, y = table
    keys = np.arange(len(X)) % 6
    with sklearn.config_context(enable_metadata_routing=True):
        whole = make_pipeline(StandardScaler(), dr.DresRegressor(**QUICK).set_fit_request(clients=True))
        assert cross_val_score(whole, X, y, cv=2, params={"clients": keys}).min() > 0.5
        whole.fit(X, y, clients=keys)
    again = pickle.loads(pickle.dumps(whole))
    assert np.array_equal(again.predict(X), whole.predict(X))
    assert whole[-1].clients_.tolist() == list(range(6))


@pytest.mark.parametrize(
    ("changed", "word"),
    [({"num_clients": 4}, "5 clients"), ({"target_bits": 0}, "1..16"), ({"target_bits": 17}, "0..16")],
)
def test_what_cannot_be_fitted_is_a_value_error_with_a_reason(table, changed, word):
    with pytest.raises(EstimatorError) as caught:
        dr.DresRegressor(**{**QUICK, **changed}).fit(*table)
    assert word in f"{caught.value} {caught.value.hint}"
