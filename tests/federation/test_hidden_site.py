"""A client's machine in the hidden mode, event by event."""

from dataclasses import replace

import pytest

from dresfl.errors import HeadroomAlarm, MessageError
from dresfl.federation import Site
from dresfl.federation.actions import (
    Disconnect,
    EndRun,
    GiveUp,
    JudgeDealers,
    Leave,
    Log,
    ResumeRun,
    SendToCoordinator,
    Stand,
    TakeHops,
    Work,
)
from dresfl.federation.hidden_answering import HopResult
from dresfl.federation.messages import (
    Alarm,
    Attestations,
    Done,
    HopAnswered,
    Informed,
    Judged,
    Opened,
    Resume,
    Standing,
    Weights,
)
from dresfl.federation.site import Judgement
from dresfl.federation.terms import Introduction, Terms
from dresfl.protocol import Task, Verdict

from .setting import hidden
from .test_site import CHALLENGE, INDEX, Client

STANDING = Standing(0, 0, b"c" * 32, 1, b"s" * 64)


class HiddenSite(Client):
    """A site in the hidden mode, and a coordinator that says what it is told to."""

    def __init__(self, verdict=Verdict()):
        self.setting, self.verdict = hidden(5, rounds=2), verdict
        rows = [len(inputs) for inputs, _ in self.setting.rows]
        self.introduction = Introduction(rows[INDEX], b"x" * 64)
        self.terms = Terms.settle([Introduction(count, b"x" * 64) for count in rows])
        self.session = replace(self.terms.session(self.setting.agreement), run=b"r" * 32)
        self.site = Site(
            self.setting.agreement, self.setting.roster, INDEX, lambda: self.introduction, lambda: CHALLENGE
        )
        self.now = 50.0


def works(actions):
    return [action for action in actions if isinstance(action, Work)]


def sent(actions):
    return [action.message for action in actions if isinstance(action, SendToCoordinator)]


@pytest.fixture
def standing():
    """A client that has said where it stands."""
    client = HiddenSite()
    (work,) = works(client.join())
    assert isinstance(work, Stand)
    assert sent(client.done(work, HopResult((STANDING,)))) == [STANDING]
    return client


def test_it_stands_once_on_each_connection(standing):
    assert works(standing.hear(Attestations((), ()))) == []
    standing.site.disconnected(standing.now)
    assert [type(work) for work in works(standing.join())] == [Stand]


def test_it_judges_the_dealers_itself():
    client = HiddenSite(verdict=None)
    assert works(client.join()) == []
    (gone,) = client.hear(Judged(Verdict()))
    assert isinstance(gone, Disconnect)  # the coordinator's word does not count
    client = HiddenSite(verdict=None)
    client.join()
    (work,) = works(client.hear(Attestations((), ())))
    assert isinstance(work, JudgeDealers)
    actions = client.done(work, Judgement(Verdict((3,)), client.session))
    assert [type(work) for work in works(actions)] == [Stand]
    assert client.site.session is client.session


def test_a_client_that_deviates_never_answers():
    client = HiddenSite(verdict=None)
    client.join()
    (work,) = works(client.hear(Attestations((), ())))
    actions = client.done(work, Judgement(Verdict((), (INDEX,)), client.session))
    assert not works(actions)
    assert "silent" in [action.event for action in actions if isinstance(action, Log)]
    restarted = HiddenSite(Verdict((), (INDEX,)))
    assert not works(restarted.join())


def test_a_model_is_taken_from_hops_alone(standing):
    task = Task(2, standing.setting.session.hidden_plan.initial_weights(standing.session.stream))
    (gone,) = standing.hear(Done(task.encode(standing.session)))
    assert isinstance(gone, Disconnect)
    silent = HiddenSite(Verdict((), (INDEX,)))
    silent.join()
    (work,) = works(silent.hear(Done(task.encode(silent.session))))  # it has no part in hops
    assert isinstance(work, EndRun)


def test_hops_that_come_while_it_works_are_taken_together(standing):
    (first,) = works(standing.hear(Opened(0, 0, b"a")))
    assert isinstance(first, TakeHops)
    assert works(standing.hear(Opened(0, 1, b"b"))) == works(standing.hear(Opened(1, 0, b"c"))) == []
    assert works(standing.hear(Resume(1, 1, b"c" * 32, b""))) == []
    actions = standing.done(first, HopResult((HopAnswered(bytes(60)),)))
    assert len(sent(actions)) == 1
    (second,) = works(actions)
    assert [hop.published for hop in second.opened] == [b"b", b"c"]
    (third,) = works(standing.done(second, HopResult()))
    assert isinstance(third, ResumeRun)
    assert standing.site.rounds_answered == 1
    assert standing.site.came_far is False
    standing.done(third, HopResult())
    standing.hear(Opened(1, 1, b"d"))
    assert standing.site.came_far


def test_what_cannot_be_used_ends_the_connection(standing):
    (work,) = works(standing.hear(Opened(0, 0, b"a")))
    (gone,) = standing.done(work, MessageError("not so many bytes"))
    assert gone == Disconnect("not so many bytes")
    again = HiddenSite()
    again.join()
    (gone,) = again.hear(Weights(b""))
    assert isinstance(gone, Disconnect)


@pytest.mark.parametrize("alarm", [HeadroomAlarm("out of range"), None], ids=["its own", "the coordinator's"])
def test_an_alarm_ends_it(standing, alarm):
    if alarm is None:
        actions = standing.hear(Alarm("answers do not agree"))
    else:
        actions = standing.done(works(standing.hear(Opened(0, 0, b"a")))[0], alarm)
    (end,) = [action for action in actions if isinstance(action, GiveUp)]
    assert isinstance(end.error, HeadroomAlarm)


@pytest.mark.parametrize("model", [True, False], ids=["with a model", "without one"])
def test_the_end(standing, model):
    task = Task(2, standing.setting.session.hidden_plan.initial_weights(standing.session.stream)) if model else None
    (work,) = works(standing.hear(Opened(2, 0, b"a")))
    (end,) = works(standing.done(work, HopResult(ended=True, final=task)))
    assert end == EndRun(task)
    assert sent(standing.done(end)) == [Informed(2)]
    assert standing.site.disconnected(standing.now) == [Leave(task)]
