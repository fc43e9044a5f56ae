"""Liars at the coordinator's machine: named, left out, not asked again; the run goes on, or ends by name."""

import pytest
import torch

from dresfl.errors import TooFewAnswers
from dresfl.federation import CoordinatorSettings, RoundTiming
from dresfl.federation.actions import Finish, Log, Record
from dresfl.federation.messages import ANY_ROUND, Answered, Declined, Done, Weights
from dresfl.model import weights_sha256
from dresfl.protocol import Answer

from .setting import watched
from .test_coordinator import Run, events, sent

SIX = range(6)


def false_answer(run, client):
    task = run.machine.training.task()
    answer = run.clients[client].answer(task)
    residues = answer.residues.clone()
    residues[0, 0] += 1 if residues[0, 0] <= 0 else -1
    return run.say(client, Answered(task.round_number, Answer(task.round_number, client, residues).encode(run.session)))


def one_round(run, order, liars=()):
    actions = []
    for client in order:
        actions = false_answer(run, client) if client in liars else run.answer(client)
        if any(isinstance(action, Record) for action in actions):
            return actions
    return actions


def logged(actions, event):
    return [action.fields for action in actions if isinstance(action, Log) and action.event == event]


def test_a_round_waits_for_the_answers_that_outvote_a_liar():
    run = Run(setting=watched(6))
    assert sent(run.training(range(4)), Weights) == []
    assert sent(run.make_ready(4), Weights) == list(range(5))
    for client in range(4):
        assert run.answer(client) == []
    assert any(isinstance(action, Record) for action in run.answer(4))


def test_a_liar_is_named_and_dropped_and_the_training_goes_on():
    run = Run(setting=watched(6))
    run.training(SIX)
    actions = one_round(run, SIX, liars=[2])
    (record,) = (action.record for action in actions if isinstance(action, Record))
    assert (record.outcome, record.liars) == ("stepped", (2,))
    name = run.setting.roster.members[2].name
    assert logged(actions, "liar") == [{"client": 2, "name": name, "round": 0}]
    assert sent(actions, Weights) == [0, 1, 3, 4, 5]
    assert (run.machine.counters.liars, set(run.machine.dropped)) == (1, {2})
    assert run.answer(2) == []  # not even counted
    assert run.machine.counters.late == 1
    actions = one_round(run, (5, 4, 3, 1, 0))
    assert sent(actions, Weights) == [0, 1, 3, 4, 5]
    actions = one_round(run, (5, 4, 3, 1, 0))
    assert sent(actions, Done) == list(SIX)  # the end is no secret
    assert weights_sha256(run.machine.training.weights) == run.setting.weights_after((True,) * 3)


def test_a_liar_that_comes_back_is_still_a_liar():
    run = Run(CoordinatorSettings(RoundTiming(deadline=10.0)), setting=watched(6))
    run.training(SIX)
    one_round(run, SIX, liars=[2])
    run.join(2)
    actions = run.make_ready(2)
    assert (events(actions), sent(actions, Weights)) == (["ready"], [])
    run.answer(2)
    assert sent(run.machine.tick(run.now + 10.0), Weights) == [0, 1, 3, 4, 5]  # a shortage asks the others again
    run.join(0)
    assert sent(run.make_ready(0), Weights) == [0]


def test_grace_does_not_wait_for_a_liar():
    run = Run(CoordinatorSettings(RoundTiming(grace=60.0)), setting=watched(6))
    run.training(SIX)
    task = run.machine.training.task()
    for client in range(5):
        assert (false_answer if client == 2 else type(run).answer)(run, client) == []
    assert events(run.answer(5, task)) == ["liar"]
    for client in (0, 1, 3, 4):
        assert run.answer(client) == []
    assert any(isinstance(action, Record) for action in run.answer(5))


def test_a_liar_that_leaves_too_few_ends_the_run_by_name():
    run = Run(setting=watched(5))
    run.training(range(5))
    actions = one_round(run, range(5), liars=[3])
    assert events(actions) == ["liar", "ended"]
    assert isinstance(actions[0], Record)  # the round counts, and is written down first
    assert isinstance(actions[-1], Finish)
    error = actions[-1].error
    assert isinstance(error, TooFewAnswers)
    assert "1 clients will not answer round 1, so 4 are left, but 5 are needed" in str(error)
    assert f"{run.setting.roster.members[3].name}: its answer was false" in str(error)
    assert run.machine.ended
    # and it ends at once if it is started again
    again = Run(setting=watched(5), terms=run.machine._running.terms, checkpoint=run.machine.training.state())
    assert events(again.first) == ["ended"]
    assert again.machine.ended


def test_a_liar_and_one_who_declines_are_too_many():
    run = Run(setting=watched(6))
    run.training(SIX)
    one_round(run, SIX, liars=[2])
    assert events(run.say(2, Declined(ANY_ROUND, "offended"))) == ["declined"]  # counted once
    actions = run.say(4, Declined(1, "other weights"))
    assert events(actions) == ["declined", "ended"]
    assert "4 are left, but 5 are needed" in str(actions[-1].error)


def test_more_liars_than_agreed_refuse_the_round_and_the_next_one_begins():
    run = Run(setting=watched(6))
    run.training(SIX)
    before = run.machine.training.weights.clone()
    actions = one_round(run, SIX, liars=[0, 1, 2])
    (record,) = (action.record for action in actions if isinstance(action, Record))
    assert (record.outcome, record.liars) == ("refused", ())
    (refused,) = logged(actions, "round refused")
    assert "more than 1 of 5 answers are lies" in refused["reason"]
    assert sent(actions, Weights) == list(SIX)
    assert (set(run.machine.dropped), run.machine.training.round_number) == (set(), 1)
    assert torch.equal(run.machine.training.weights, before)


@pytest.mark.parametrize("lost", [2])
def test_a_restarted_coordinator_remembers(lost):
    run = Run(setting=watched(6))
    run.training(SIX)
    one_round(run, SIX, liars=[lost])
    again = Run(setting=watched(6), terms=run.machine._running.terms, checkpoint=run.machine.training.state())
    for client in SIX:
        again.join(client)
    again.make_clients()
    for client in (2, 0, 1, 3, 4):
        assert sent(again.make_ready(client), Weights) == []
    assert sent(again.make_ready(5), Weights) == [0, 1, 3, 4, 5]
