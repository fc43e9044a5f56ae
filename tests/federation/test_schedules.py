"""Random schedules of the whole federation: exact weights, or a refusal that the faults explain; never a hang.

`SCHEDULES=100000` plays more of them, `SEED=17` that one. The second half breaks the machine on purpose, to see that
the scheduler would notice.
"""

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dresfl.federation import Terms, coordinator, enrolment, open_rounds, relay, site, workplace
from dresfl.federation.actions import Action, Record, SendToCoordinator, StoreTerms
from dresfl.protocol import MemoryAnswers

from . import memory_store
from .world import BENT, BENT_WEIGHTS, Broken, play

CHUNK = 50


def seeds() -> list[range]:
    if os.environ.get("SEED"):
        seed = int(os.environ["SEED"])
        return [range(seed, seed + 1)]
    count = int(os.environ.get("SCHEDULES") or 1000)
    return [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


@pytest.mark.parametrize("chunk", seeds(), ids=lambda chunk: f"{chunk.start}-{chunk.stop - 1}")
def test_schedules(chunk: range) -> None:
    outcomes = Counter(play(seed)[0] for seed in chunk)
    assert outcomes.total() == len(chunk)


def test_a_seed_decides_everything() -> None:
    for seed in (3, 11, 29):
        first, second = (play(seed)[1] for _ in range(2))
        assert first.steps == second.steps
        assert first.events == second.events


def test_faults_are_played() -> None:
    """Of every kind, and some schedules end without a fault, some with skipped rounds, some with refused ones."""
    played, outcomes = Counter[str](), Counter[str]()
    for seed in range(200):
        outcome, world = play(seed)
        played += world.played
        outcomes[outcome] += 1
    assert min(played.values()) >= 3, played
    assert len(played) == 15
    for seed in range(40):  # answers that are bent cannot be decoded
        outcomes[play(seed, {BENT: 1})[0]] += 1
    assert {"exact", "skipped", "round refused"} <= set(outcomes)


# -- machines that are broken on purpose -----------------------------------------------------------------------

Patch = Callable[[Any], None]


def record_after_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    right = open_rounds.OpenRounds._next_round

    def wrong(self: Any, now: float) -> list[Action]:
        return sorted(right(self, now), key=lambda action: isinstance(action, Record))

    monkeypatch.setattr(open_rounds.OpenRounds, "_next_round", wrong)


def terms_stored_after_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    right = coordinator.Coordinator._hello

    def wrong(self: Any, *arguments: Any) -> list[Action]:
        return sorted(right(self, *arguments), key=lambda action: isinstance(action, StoreTerms))

    monkeypatch.setattr(coordinator.Coordinator, "_hello", wrong)


def stale_hello_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment.Enrolment, "leave", lambda self, client: None)


def no_check_of_secret_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the coordinator nor by the client itself."""
    right = Terms.check_for
    monkeypatch.setattr(Terms, "check_client", lambda self, index, client: None)
    monkeypatch.setattr(
        Terms,
        "check_for",
        lambda self, *parts, own, held_nonces: right(self, *parts, own=True, held_nonces=held_nonces),
    )


def acknowledged_before_it_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    right = site.Site._flush

    def wrong(self: Any) -> list[Action]:
        actions = right(self)
        return [*(SendToCoordinator(ack) for ack in self._flushing), *actions]

    monkeypatch.setattr(site.Site, "_flush", wrong)


def answered_rounds_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_store.MemoryStore, "answered", lambda self, session: MemoryAnswers())


def asked_of_a_dealer_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked of it is not asked again."""
    right = relay.Relay.client_left

    def wrong(self: Any, client: int) -> None:
        asked, self._asked[client] = self._asked[client], set()
        right(self, client)
        self._asked[client] = asked

    monkeypatch.setattr(relay.Relay, "client_left", wrong)


def lost_slices_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.Coordinator, "slice_lost", lambda self, receiver, dealer, number: [])


def a_window_that_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = relay.Relay._forget

    def wrong(self: Any, receiver: int, dealer: int, number: int) -> list[Action]:
        taken = self._taken[receiver]
        actions = right(self, receiver, dealer, number)
        self._taken[receiver] = taken
        return actions

    monkeypatch.setattr(relay.Relay, "_forget", wrong)


def ready_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose last slice has come does not say that it is ready."""
    acknowledged = lambda self: [SendToCoordinator(self._flushing.pop()) for _ in range(len(self._flushing))]  # noqa: E731
    monkeypatch.setattr(site.Site, "_flushed", acknowledged)


def messages_before_the_client_has_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    right = coordinator.Coordinator._begin

    def wrong(self: Any, client: int, state: Any, running: Any) -> list[Action]:
        state.joined = True
        running.relay.client_came(client)
        return right(self, client, state, running)

    monkeypatch.setattr(coordinator.Coordinator, "_begin", wrong)


def shares_that_are_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = workplace.Workplace._perform
    monkeypatch.setattr(
        workplace.Workplace,
        "_perform",
        lambda self, work: None if type(work).__name__ == "Flush" else right(self, work),
    )


def a_client_that_does_not_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    join = workplace.Workplace._join

    def without(self: Any, *arguments: Any) -> Any:
        self._blinded = self.index != 1
        return join(self, *arguments)

    monkeypatch.setattr(workplace.Workplace, "_join", without)


def a_verdict_sent_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = coordinator.Coordinator._has_checked

    def hasty(self: Any, *arguments: Any) -> list[Action]:
        return sorted(checked(self, *arguments), key=lambda action: isinstance(action, StoreTerms))

    monkeypatch.setattr(coordinator.Coordinator, "_has_checked", hasty)


MUTATIONS: list[tuple[Patch, str, dict[str, int] | None]] = [
    (record_after_sending, "before the record", None),
    (terms_stored_after_sending, "not on the disk", None),
    (stale_hello_kept, "were there", None),
    (no_check_of_secret_and_rows, "other weights|gives up", {"other rows": 1, "kill client": 1}),
    (a_client_that_does_not_blind, "without a reason", None),
    (a_verdict_sent_before_it_is_stored, "verdict was sent", None),
    (acknowledged_before_it_is_on_the_disk, "not on the disk", None),
    (answered_rounds_forgotten, "two sets of weights", {BENT_WEIGHTS: 3, "kill client": 1}),
    (asked_of_a_dealer_that_left, "seed", None),
    (lost_slices_not_asked_again, "no end", {"lose slice": 1}),
    (a_window_that_stays_closed, "no end", None),
    (ready_forgotten, "no end", None),
    (messages_before_the_client_has_joined, "came before Begin", None),
    (shares_that_are_not_flushed, "not on the disk", None),
]


@pytest.mark.parametrize(("mutate", "reason", "kinds"), MUTATIONS, ids=[mutate.__name__ for mutate, _, _ in MUTATIONS])
def test_a_broken_machine_is_found(
    mutate: Patch, reason: str, kinds: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play_many() -> None:
        for seed in range(400):
            play(seed, kinds)

    mutate(monkeypatch)
    with pytest.raises(Broken, match=reason):
        play_many()
