"""Hidden runs with proofs of ranges, to their end: the model, and what clients count on their own rows and sum up."""

import dataclasses

import pytest

from dresfl.protocol import Verdict, accuracy_counts
from dresfl.protocol.hidden.bit_layout import BitLayout

from .setting import hidden
from .world import World, small_and_fast

QUIET = {"faults": 0, "patient": True, "slow": None}
KINDS = {"cut": 4, "cut all": 1, "delay": 2, "kill client": 5, "kill coordinator": 4, "away": 2, "second connection": 2}


def played(seed, setting, **changes):
    """A schedule to its end, and how it ended. changes: of what the seed decides."""
    world = World(seed, setting, kinds=KINDS)
    world.schedule = dataclasses.replace(world.schedule, **changes)
    world.faults_left = world.schedule.faults
    with small_and_fast(world):
        return world, world.run().check()


def counted(world, dealers):
    """What the clients of a set count with the model, added up."""
    setting = world.setting
    model = next(disk.model for disk in world.disks if disk.model is not None)
    network, confusion = setting.session.network, setting.agreement.hidden.totals == "confusion"
    vectors = [accuracy_counts(network, model.weights, *setting.rows[d], confusion=confusion) for d in dealers]
    return tuple(sum(vectors).tolist())


@pytest.mark.parametrize(
    ("trusted", "totals"), [(False, "accuracy"), (False, "confusion"), (True, "accuracy"), (True, "")]
)
def test_an_undisturbed_run_ends_with_the_totals_of_all(trusted, totals):
    setting = hidden(5, trusted_dealers=trusted, totals=totals)
    world, outcome = played(3, setting, **QUIET)
    assert outcome == "exact"
    found = world.totals
    if not totals:
        assert found is None
        return
    assert found.dealers == (0, 1, 2, 3, 4)
    assert found.values == counted(world, range(5))
    assert found.values[1] == sum(len(inputs) for inputs, _ in setting.rows)


def test_a_model_for_clients_alone_is_counted_on_without_the_coordinator_knowing_it():
    world, outcome = played(3, hidden(5, trusted_dealers=True, model_for="clients"), **QUIET)
    assert outcome == "exact"
    assert world.totals.values == counted(world, range(5))


@pytest.mark.parametrize("chunk", range(3))
def test_schedules_with_faults_end_with_true_totals_or_none(chunk):
    """Whoever is missing, crashes or comes late: the model is exact, and totals are those of the set they name."""
    setting, found = hidden(5, trusted_dealers=False), 0
    for seed in range(10 * chunk, 10 * chunk + 10):
        world, outcome = played(seed, setting, late=True)
        totals = world.totals
        if totals is not None and outcome == "exact":
            found += 1
            assert len(totals.dealers) >= 3
            assert totals.values == counted(world, totals.dealers)
    assert found


def test_a_dealer_of_a_bad_row_is_excluded_by_everybody_and_the_run_goes_on(monkeypatch):
    """Client 2 deals a 2 for a bit, past its own check: all others find it, and train without its rows."""
    setting, right = hidden(6, trusted_dealers=False), BitLayout.encode
    first = setting.rows[2][0][0]

    def wrong(self, rows):
        bits = right(self, rows)
        bits[..., 0][(rows[..., :3] == first).all(-1)] = 2
        return bits

    owners = [i for i, (inputs, _) in enumerate(setting.rows) if (inputs == first).all(1).any()]
    assert owners == [2]
    monkeypatch.setattr(BitLayout, "encode", wrong)
    world, outcome = played(7, setting, **QUIET)
    assert outcome == "exact"
    assert [kept.verdict for disk in world.disks for kept in disk.sharings.values()] == [Verdict((2,), ())] * 6
