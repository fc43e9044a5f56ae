"""The plan of a hidden run: what it needs and costs, why its schedule, and what it refuses."""

import json

import pytest

import dresfl as dr
from dresfl.errors import InfeasiblePlan, UsageError

NETWORK = dr.mlp((784, 64, 64, 10), input_bits=4, weight_bits=10)
TRUSTED = dr.HiddenSettings(trusted_dealers=True)


def planned(clients=20, settings=TRUSTED, **more):
    return dr.plan_hidden(NETWORK, num_clients=clients, rounds=20_000, rows=60_000, settings=settings, **more)


def test_the_setting_of_the_design_costs_what_it_says():
    """N = 20, T = 1, two hidden layers, B = 64: 5 trips, 1.6 MB each way, 40 bits left."""
    found = planned()
    assert (found.schedule, found.recovery_threshold, found.answers_needed, found.max_dropouts) == ("S4", 5, 6, 14)
    assert found.trips == 5
    assert found.upload_bytes == found.download_bytes <= 1_600_000
    assert 40 <= found.security_bits < 42
    assert found.range_proofs is None
    assert found.mask_seeds == 20
    assert json.loads(json.dumps(found.to_dict()))["schedule"] == "S4"


def test_seconds_follow_the_round_trips_and_the_reason_names_the_other_schedule():
    found = planned(round_trips=(0.0, 0.1))
    assert found.seconds_per_round["100"] - found.seconds_per_round["0"] == pytest.approx(0.5)
    assert "S2 would take 10 trips" in found.why
    assert "16 of 20 clients could be missing" in found.why


def test_few_clients_need_the_frugal_schedule_and_are_told_so():
    found = planned(4)
    assert (found.schedule, found.answers_needed, found.max_dropouts) == ("S2", 4, 0)
    assert "S4 is not possible" in found.why
    assert any("one missing client halts the run" in warning for warning in found.warnings)
    honest = planned(3, dr.HiddenSettings(trusted_dealers=True, honest_clients=True))
    assert (honest.answers_needed, honest.max_dropouts) == (3, 0)
    assert any("honest" in warning for warning in honest.warnings)
    with pytest.raises(InfeasiblePlan, match="3 clients are too few"):
        planned(3)


def test_a_schedule_that_an_agreement_would_not_choose_is_said():
    """Without round trips S2 is nearly as fast, and needs fewer answers."""
    quick = planned(round_trips=(0.0,))
    if quick.schedule != planned(round_trips=(0.02,)).schedule:
        assert any(f'schedule = "{quick.schedule}"' in warning for warning in quick.warnings)
    chosen = planned(settings=dr.HiddenSettings(trusted_dealers=True, schedule="S2"))
    assert chosen.schedule == "S2"
    assert chosen.why.startswith("said so in the settings")


def test_proofs_of_ranges_have_a_price_and_trust_has_a_warning():
    proved = planned(settings=dr.HiddenSettings())
    assert proved.range_proofs is not None
    assert proved.share_bytes_per_client == proved.range_proofs.share_bytes > 5 * planned().share_bytes_per_client
    assert any("dealers are trusted" in warning for warning in planned().warnings)
    assert not any("dealers are trusted" in warning for warning in proved.warnings)


def test_check_c_doubles_the_trips():
    assert planned(settings=dr.HiddenSettings(trusted_dealers=True, check="C")).trips == 10


def test_a_ramp_has_fewer_seeds_and_needs_more_answers():
    plain = dr.HiddenSettings(trusted_dealers=True, schedule="S2")
    ramp = dr.HiddenSettings(trusted_dealers=True, schedule="S2", mask_degree=4)
    few, many = planned(max_colluders=2, settings=ramp), planned(max_colluders=2, settings=plain)
    assert few.mask_seeds < many.mask_seeds
    assert few.answers_needed > many.answers_needed


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [(dr.Optimizer(method="adam"), "cannot use adam"), (dr.Optimizer(max_norm=1.0), "cannot clip")],
)
def test_what_the_mode_cannot_run_is_refused_by_name(optimizer, message):
    with pytest.raises(UsageError, match=message):
        planned(optimizer=optimizer)


def test_a_kappa_that_is_too_small_is_refused_with_one_that_does():
    with pytest.raises(UsageError, match="kappa = 60 is too little") as found:
        planned(settings=dr.HiddenSettings(trusted_dealers=True, kappa=60))
    assert "kappa = 71" in found.value.hint


def test_wrong_sizes_are_refused():
    with pytest.raises(UsageError, match="rows must be at least 20"):
        dr.plan_hidden(NETWORK, num_clients=20, rounds=5, rows=19)
    with pytest.raises(UsageError, match="round trips"):
        planned(round_trips=())
