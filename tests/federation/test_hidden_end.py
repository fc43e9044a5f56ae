"""Hidden runs with proofs of ranges, to their end: the model, and what clients count on their own rows and sum up."""

import dataclasses

import pytest

from dresfl.federation.actions import Log
from dresfl.protocol import accuracy_counts

from .setting import hidden
from .world import World, small_and_fast


def played(seed, setting, **changes):
    """A schedule to its end; `changes` are to what the seed decides."""
    world = World(seed, setting)
    if changes:
        world.schedule = dataclasses.replace(world.schedule, **changes)
        world.faults_left = world.schedule.faults
    with small_and_fast(world):
        outcome = world.run().check()
    return world, outcome


def counted(world, dealers):
    """What the clients of a set count with the model, added up."""
    setting = world.setting
    model = next(disk.model for disk in world.disks if disk.model is not None)
    network = setting.session.network
    confusion = setting.agreement.hidden.totals == "confusion"
    vectors = [
        accuracy_counts(network, model.weights, *setting.rows[dealer], confusion=confusion) for dealer in dealers
    ]
    return tuple(sum(vectors).tolist())


@pytest.mark.parametrize("totals", ["accuracy", "confusion"])
@pytest.mark.parametrize("trusted", [False, True])
def test_an_undisturbed_run_ends_with_the_totals_of_all(totals, trusted):
    setting = hidden(5, trusted_dealers=trusted, totals=totals)
    world, outcome = played(3, setting, faults=0, patient=True, slow=None)
    assert outcome == "exact"
    found = world.machine.totals
    assert found.dealers == (0, 1, 2, 3, 4)
    assert found.values == counted(world, range(5))
    assert found.values[1] == sum(len(inputs) for inputs, _ in setting.rows)
    assert world.informed == set(range(5))


def test_without_an_agreement_nothing_is_counted():
    world, outcome = played(3, hidden(5, totals=""), faults=0, patient=True, slow=None)
    assert (outcome, world.machine.totals) == ("exact", None)


@pytest.mark.parametrize("chunk", range(4))
def test_schedules_with_faults_end_with_true_totals_or_none(chunk):
    """Whoever is missing, crashes or comes late: the model is exact, and totals are those of the set they name."""
    setting, found = hidden(5, trusted_dealers=False), []
    for seed in range(12 * chunk, 12 * chunk + 12):
        world, outcome = played(seed, setting)
        totals = world.machine.totals if world.machine is not None else None
        found.append(totals is not None)
        if totals is not None and outcome == "exact":
            assert len(totals.dealers) >= 3
            assert totals.values == counted(world, totals.dealers)
    assert any(found)


def test_a_bad_row_excludes_its_dealer_and_the_run_goes_on(monkeypatch):
    """A client that deals a 2 for a bit, past its own check: everybody excludes it, and trains without its rows."""
    from dresfl.protocol.hidden.bit_layout import BitLayout

    right = BitLayout.encode

    def wrong(self, rows):
        bits = right(self, rows)
        if (rows[..., : self.num_inputs] == marked).all():
            bits[..., 0, 0] = 2
        return bits

    setting = hidden(5, trusted_dealers=False)
    marked = setting.rows[2][0][:2].view(2, 1, 3)  # the first slice of client 2
    monkeypatch.setattr(BitLayout, "encode", lambda self, rows: wrong(self, rows) if rows.shape == (2, 1, 5) else right(self, rows))
    world = World(5, setting)
    world.schedule = dataclasses.replace(world.schedule, faults=0, patient=True, slow=None)
    world.faults_left = 0
    lines = []
    with small_and_fast(world):
        original = world.carry_out if hasattr(world, "carry_out") else None
        world.run()
    assert world.machine.rounds is not None
    assert world.machine._running.terms.verdict.excluded == (2,)
    assert world.machine._running.terms.verdict.deviating == ()
    assert original is None or lines == []
