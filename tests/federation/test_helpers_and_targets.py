"""Random schedules with clients that have no rows, and with real targets: exact, or refused, as for everybody else."""

import functools

import pytest

from dresfl.model import Dense, Square
from dresfl.protocol.hidden.settings import HiddenSettings

from .setting import Setting
from .world import FAULTS, World, small_and_fast

PROVEN = HiddenSettings(schedule="S2", honest_clients=True)  # ranges are proved
TRUSTED = HiddenSettings(schedule="S2", honest_clients=True, trusted_dealers=True)


@functools.cache
def setting(name: str) -> Setting:
    if name == "helpers, open":
        return Setting((Dense(3),), 5, 3, row_counts=(3, 0, 5, 0, 4))
    if name == "one value, open":
        return Setting((Dense(1),), 5, 3)
    if name == "regression, open":
        return Setting((Dense(2), Square(), Dense(2)), 6, 2, target_bits=5)
    if name == "helpers, hidden, proved":
        return Setting((Dense(2),), 5, 2, hidden=PROVEN, row_counts=(0, 2, 5, 0, 4))
    if name == "one value, hidden, proved":
        return Setting((Dense(1),), 5, 2, hidden=PROVEN)
    if name == "regression, hidden, proved":
        return Setting((Dense(1),), 5, 2, hidden=PROVEN, row_counts=(3, 2, 0, 2, 4), target_bits=5)
    return Setting((Dense(2), Square(), Dense(1)), 5, 2, hidden=TRUSTED, target_bits=5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "name",
    [
        "helpers, open",
        "one value, open",
        "regression, open",
        "helpers, hidden, proved",
        "one value, hidden, proved",
        "regression, hidden, proved",
        "regression, hidden, trusted",
    ],
)
def test_schedules(name: str, seed: int) -> None:
    world = World(seed, setting(name), kinds=FAULTS)
    with small_and_fast(world):
        assert world.run().check() in ("exact", "refused", "skipped")


def test_runs_without_faults_end_with_the_exact_model() -> None:
    for name in ("helpers, open", "regression, open", "regression, hidden, proved"):
        world = World(1, setting(name), kinds={"away": 0, "cut all": 1})
        world.faults_left = 0
        with small_and_fast(world):
            assert world.run().check() == "exact"
        assert world.final is not None
