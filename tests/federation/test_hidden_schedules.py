"""Random schedules of hidden runs: the model of one process, bit by bit, whoever was missing and whatever crashed.

`SCHEDULES=1000` plays more of them for each setting. The second half breaks the machine on purpose.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

from dresfl.federation import hidden_rounds
from dresfl.federation.actions import Action, StoreBroadcast

from . import memory_store
from .setting import Setting, hidden
from .world import FAULTS, Broken, World, small_and_fast

CHUNK = 5
CRASHES = {"kill client": 3, "kill coordinator": 3, "cut all": 2, "away": 1}
SETTINGS: dict[str, Callable[[], Setting]] = {
    "one of five may be missing": lambda: hidden(5, rounds=5),
    "all of three": lambda: hidden(3, layers=2, rounds=2, honest_clients=True),
    "one of four, honest": lambda: hidden(4, layers=2, rounds=2, honest_clients=True),
    "two shards": lambda: hidden(6, rounds=3, honest_clients=True, num_shards=2),
    "check C": lambda: hidden(5, rounds=4, check="C"),
    "for clients alone": lambda: hidden(5, rounds=2, model_for="clients"),
}


def play(seed: int, setting: Setting, kinds: dict[str, int] = FAULTS) -> World:
    world = World(seed, setting, kinds=kinds)
    with small_and_fast(world):
        assert world.run().check() in ("exact", "refused")
    return world


def chunks() -> list[range]:
    count = int(os.environ.get("SCHEDULES") or 15)
    return [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("chunk", chunks(), ids=lambda chunk: f"{chunk.start}-{chunk.stop - 1}")
def test_schedules(name: str, chunk: range) -> None:
    for seed in chunk:
        play(seed, SETTINGS[name]())


def test_crashes_in_the_rounds() -> None:
    """They do happen in the middle of rounds, and some clients are told what they have missed."""
    worlds = [play(seed, hidden(5, rounds=5), CRASHES) for seed in range(100, 112)]
    assert sum(world.played["kill coordinator"] for world in worlds if world.schedule.late) >= 3
    assert sum(world.played["kill client"] for world in worlds if world.schedule.late) >= 3
    assert any(world.histories for world in worlds)


# -- machines that are broken on purpose -----------------------------------------------------------------------


def published_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    right = hidden_rounds.HiddenRounds._publish

    def wrong(self: Any, *arguments: Any) -> list[Action]:
        return sorted(right(self, *arguments), key=lambda action: isinstance(action, StoreBroadcast))

    monkeypatch.setattr(hidden_rounds.HiddenRounds, "_publish", wrong)


def answered_before_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_store.KeptRun, "keep", lambda self, progress: None)


def hops_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator begins anew after a restart, with other answers."""
    monkeypatch.setattr(hidden_rounds.HiddenRounds, "_restore", lambda self, stored: None)


def the_last_round_is_never_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_rounds.HiddenRounds, "_long_histories", lambda self, clients: [])


MUTATIONS: list[tuple[Callable[[Any], None], str]] = [
    (published_before_it_is_stored, "before it was stored"),
    (answered_before_it_is_kept, "before it was on its disk"),
    (hops_forgotten, "was stored after|gave up"),
    (the_last_round_is_never_played_again, "no end"),
]


@pytest.mark.parametrize(("mutate", "reason"), MUTATIONS, ids=[mutate.__name__ for mutate, _ in MUTATIONS])
def test_a_broken_machine_is_found(mutate: Callable[[Any], None], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def play_many() -> None:
        for seed in range(200):
            play(seed, hidden(5, rounds=3), CRASHES)

    mutate(monkeypatch)
    with pytest.raises(Broken, match=reason):
        play_many()
