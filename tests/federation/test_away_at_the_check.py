"""A client that is away when the dealers are checked, where without it nobody would be left to spare."""

import dataclasses
from typing import Any

import pytest

from dresfl.federation import Terms
from dresfl.federation.messages import Attested, Message, Ready

from .setting import hidden
from .world import Link, World, small_and_fast

DEADLINE = 30.0


class Away(World):
    """Client 2 dies when it would say that it is ready, or what it found of the dealers."""

    def __init__(self, at: type[Message], seconds: float) -> None:
        super().__init__(3, hidden(5))
        timing = dataclasses.replace(self.schedule.settings.timing, deadline=DEADLINE)
        settings = dataclasses.replace(self.schedule.settings, timing=timing)
        self.schedule = dataclasses.replace(self.schedule, settings=settings, patient=True, slow=None)
        self.machine = None
        self.start_coordinator()
        self.faults_left, self.kind, self.seconds, self.logged = 0, at.KIND, seconds, list[str]()

    def note(self, *words: object) -> None:
        super().note(*words)
        if words[0] == "coordinator:":
            self.logged.append(str(words[1]))

    def _deliver_up(self, link: Link) -> None:
        if link.client == 2 and link.up[0][0] == self.kind and self.seconds:
            seconds, self.seconds = self.seconds, 0.0
            link.up.clear()
            self.kill_client(2, seconds)
        else:
            super()._deliver_up(link)


def played(*arguments: Any) -> tuple[Away, Terms]:
    world = Away(*arguments)
    with small_and_fast(world):
        assert world.run().check() == "exact"
    return world, Terms.from_json(world.disk.terms or b"", world.setting.agreement)


@pytest.mark.parametrize("at", [Ready, Attested])
def test_the_check_waits_for_a_client_without_whom_nobody_would_be_to_spare(at: type[Message]) -> None:
    world, terms = played(at, 3 * DEADLINE)
    assert "checking waits" in world.logged
    assert "checking without" not in world.logged
    assert terms.verdict is not None
    assert terms.verdict.deviating == ()


@pytest.mark.parametrize("at", [Ready, Attested])
def test_it_does_not_wait_for_ever(at: type[Message]) -> None:
    world, terms = played(at, 50 * DEADLINE)
    assert world.logged.count("checking waits") == 1
    assert "checking without" in world.logged
    assert terms.verdict is not None
    assert terms.verdict.deviating == (2,)
