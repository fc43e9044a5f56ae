"""The coordinator's machine, event by event."""

import pytest

from dresfl.errors import MessageError, Refused, TooFewAnswers, UsageError
from dresfl.federation import Coordinator, CoordinatorSettings, Introduction, RoundTiming, Terms
from dresfl.federation.actions import Close, Finish, Log, Record, Send, StoreTerms
from dresfl.federation.coordinator import HELLO_SECONDS
from dresfl.federation.messages import (
    ANY_ROUND,
    Ack,
    Answered,
    Begin,
    Declined,
    Done,
    Hello,
    Holding,
    Informed,
    Ready,
    Reject,
    Request,
    Slice,
    Wait,
    Weights,
)
from dresfl.field import SecretSeed
from dresfl.model import weights_sha256
from dresfl.protocol import Answer, Client, Task, num_slices

from .setting import linear

CLIENTS = range(5)
NEEDED = 3
HELD = b"n" * 32  # everybody holds this sharing, whose dealers were checked
COIN = bytes(32)


class Run:
    """A coordinator, and clients that say what they are told to."""

    def __init__(self, settings=None, terms=None, checkpoint=None, rounds=2, setting=None):
        self.setting = setting or linear(rounds)
        self.now = 100.0

        def make_training(session):
            server = self.setting.server(session)
            if checkpoint is not None:
                server.restore(checkpoint)
            return server

        self.machine = Coordinator(
            settings or CoordinatorSettings(),
            self.setting.agreement,
            self.setting.coordinator,
            self.setting.roster,
            make_training,
            terms,
        )
        self.first = self.machine.start(self.now)

    def connect(self, client):
        return self.machine.connected_to(client, self.now)

    def say(self, client, message):
        return self.machine.received(client, message.encode(), self.now)

    def hello(self, client, **changes):
        rows = len(self.setting.rows[client][0])
        own = {"introduction": Introduction(rows, bytes([client]) * 64, HELD), "challenge": bytes([client]) * 16}
        return self.say(client, Hello(**{"agreement": self.setting.agreement.encode(), **own, **changes}))

    def join(self, client):
        self.connect(client)
        return self.hello(client)

    def hold(self, client):
        """Say that everything is held."""
        actions = []
        for dealer in range(self.setting.num_clients):
            actions += self.say(client, Holding(dealer, (1 << num_slices(self.session, dealer)) - 1))
        return actions

    def make_ready(self, client):
        return [*self.hold(client), *self.say(client, Ready(self.session.sharing_id, COIN))]

    @property
    def session(self):
        return self.machine.training.session

    def all_enrolled(self):
        """Everybody has said Hello, and the shares are made."""
        actions = [action for client in range(self.setting.num_clients) for action in self.join(client)]
        self.make_clients()
        return actions

    def make_clients(self):
        rows = self.setting.rows
        self.clients = [
            Client(self.session, i, SecretSeed(bytes([i]) * 32), *rows[i]) for i in range(self.setting.num_clients)
        ]
        for dealer in self.clients:
            for share in dealer.deal_to(range(len(self.clients))):
                self.clients[share.receiver].receive(share)

    def training(self, ready=CLIENTS):
        """Everybody is enrolled, and these are ready; their tasks."""
        self.all_enrolled()
        return [action for client in ready for action in self.make_ready(client)]

    def answer(self, client, task=None):
        task = task or self.machine.training.task()
        data = self.clients[client].answer(task).encode(self.session)
        return self.say(client, Answered(task.round_number, data))


def sent(actions, kind):
    """To whom messages of a kind go."""
    return [action.client for action in actions if isinstance(action, Send) and isinstance(action.message, kind)]


def closed(actions):
    return {action.client: action.error for action in actions if isinstance(action, Close)}


def events(actions):
    return [action.event for action in actions if isinstance(action, Log)]


# -- enrolment -------------------------------------------------------------------------------------------------


def test_clients_wait_until_everybody_is_there():
    run = Run()
    for client in CLIENTS[:-1]:
        assert sent(run.join(client), Wait) == [client]
    actions = run.join(4)
    stored = [index for index, action in enumerate(actions) if isinstance(action, StoreTerms)]
    begun = [index for index, action in enumerate(actions) if isinstance(action, Send)]
    assert sent(actions, Begin) == list(CLIENTS)
    assert max(stored) < min(begun)  # on the disk before anybody hears of them
    assert run.machine.connected == list(CLIENTS)
    assert run.machine.ready == []


def test_who_leaves_before_the_terms_is_waited_for_again():
    run = Run()
    for client in CLIENTS[:-1]:
        run.join(client)
    assert events(run.machine.disconnected(0, run.now)) == ["left"]
    assert sent(run.join(4), Begin) == []
    assert sorted(sent(run.join(0), Begin)) == list(CLIENTS)


def test_a_newer_connection_takes_the_place_of_an_older_one():
    run = Run()
    run.join(0)
    assert events(run.connect(0)) == ["left"]
    assert run.machine.connected == []
    assert sent(run.hello(0), Wait) == [0]


def test_a_client_that_runs_twice_is_named_and_its_older_process_ends():
    run = Run()
    run.join(1)
    run.connect(0)
    run.hello(0, instance=b"process1")
    run.connect(0)  # a restarted client, or a copy of its folder: nobody can tell yet
    assert sent(run.hello(0, instance=b"process2"), Wait) == [0]
    run.connect(0)
    actions = run.hello(0, instance=b"process1")
    assert isinstance(closed(actions)[0], Refused)
    assert "client 0 runs twice" in str(closed(actions)[0])
    (line,) = [action for action in actions if isinstance(action, Log) and action.event == "refused"]
    assert line.fields["name"] == run.setting.roster.members[0].name
    run.connect(0)  # the newer process lost its connection meanwhile, and comes back
    assert sent(run.hello(0, instance=b"process2"), Wait) == [0]
    assert run.machine.connected == [0, 1]
    run.machine.disconnected(0, run.now)
    run.connect(0)  # it has gone: the older one may come
    assert sent(run.hello(0, instance=b"process1"), Wait) == [0]


def test_no_hello_in_time():
    run = Run()
    run.connect(0)
    assert run.machine.wake_at <= run.now + HELLO_SECONDS
    assert closed(run.machine.tick(run.now + HELLO_SECONDS - 0.01)) == {}
    actions = run.machine.tick(run.now + HELLO_SECONDS)
    assert "no Hello" in str(closed(actions)[0])
    assert isinstance(closed(actions)[0], MessageError)  # it may come back
    assert run.say(0, Ready(bytes(16), COIN)) == []  # a closed connection says nothing


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff", "kind 255"),
        (b"\x01", "too short"),
        (b"\x01\x09" + bytes(10), "version 9"),
        (Ready(bytes(16), COIN).encode(), "where Hello was expected"),
        (b"", "empty"),
    ],
)
def test_what_comes_instead_of_a_hello_is_refused_for_good(data, reason):
    run = Run()
    run.connect(0)
    actions = run.machine.received(0, data, run.now)
    assert isinstance(closed(actions)[0], Refused)
    assert reason in str(closed(actions)[0])
    assert events(actions) == ["refused"]
    assert run.machine.counters.refusals == 1


def test_another_agreement_is_refused_and_nothing_of_it_kept():
    run = Run()
    run.connect(0)
    other = linear(3).agreement.encode()
    assert "agreement differs" in str(closed(run.hello(0, agreement=other))[0])
    assert run.machine.connected == []


def test_messages_before_the_terms():
    run = Run()
    run.join(0)
    assert "before the terms" in str(closed(run.say(0, Informed(2)))[0])


@pytest.mark.parametrize("again", ["hello", "kind"])
def test_what_may_not_come_later(again):
    run = Run()
    run.all_enrolled()
    actions = run.hello(0) if again == "hello" else run.machine.received(0, b"\x10", run.now)
    assert isinstance(closed(actions)[0], MessageError)
    assert run.machine.connected == [1, 2, 3, 4]  # nobody else is disturbed


# -- sharing ---------------------------------------------------------------------------------------------------


def test_nothing_is_asked_of_a_client_before_it_has_joined():
    """Its first Holding says so: until then it is busy accepting the terms."""
    run = Run()
    run.all_enrolled()
    actions = run.say(0, Holding(1, 0))
    assert sent(actions, Request) == []
    actions = run.say(1, Holding(0, (1 << num_slices(run.session, 0)) - 1))
    assert set(sent(actions, Request)) == {1}


def test_relay_messages_of_a_client_that_makes_things_up():
    for message in (
        Slice(1, 0, b"x"),
        Ack(1, 0),
        Reject(1, 0, "no"),
        Holding(9, 0),
        Holding(0, 0),
        Holding(1, 1 << 99),
    ):
        run = Run()
        run.all_enrolled()
        assert isinstance(closed(run.say(0, message))[0], MessageError)
        assert run.machine.connected == [1, 2, 3, 4]


def test_ready_for_this_sharing_and_once():
    run = Run()
    run.all_enrolled()
    assert "another sharing" in str(closed(run.say(0, Ready(bytes(16), COIN)))[0])
    run.make_ready(1)
    assert run.machine.ready == [1]
    assert "second Ready" in str(closed(run.say(1, Ready(run.session.sharing_id, COIN)))[1])
    assert run.machine.ready == []


def test_reminders_while_it_waits():
    run = Run()
    for _ in range(3):
        at = run.machine.wake_at
        assert at > run.now
        assert run.machine.tick(at - 0.001) == []
        run.now = at
        (line,) = run.machine.tick(at)
        assert (line.event, line.fields) == ("waiting", {"missing": list(CLIENTS)})
    run.all_enrolled()
    run.now = run.machine.wake_at
    (line,) = run.machine.tick(run.now)
    assert (line.event, line.fields) == ("sharing", {"ready": [], "needed": NEEDED})


# -- rounds ----------------------------------------------------------------------------------------------------


def test_rounds_begin_when_enough_are_ready():
    run = Run()
    run.all_enrolled()
    assert sent(run.make_ready(3) + run.make_ready(1), Weights) == []
    assert sent(run.make_ready(0), Weights) == [0, 1, 3]
    assert sent(run.make_ready(4), Weights) == [4]  # it still can answer


def test_a_whole_run():
    run = Run()
    run.training()
    for number in range(2):
        assert run.answer(0) + run.answer(3) == []
        actions = run.answer(4)
        assert isinstance(actions[0], Record)  # written down before anybody sees what follows
        assert (actions[0].record.round_number, actions[0].record.outcome, actions[0].answers) == (number, "stepped", 3)
        assert sent(actions, Weights if number == 0 else Done) == list(CLIENTS)
    assert weights_sha256(run.machine.training.weights) == run.setting.weights_after((True, True))
    for client in CLIENTS:
        actions = run.say(client, Informed(2))
        assert closed(actions) == {client: None}
    assert isinstance(actions[-1], Finish)
    assert run.machine.ended
    assert run.machine.wake_at is None
    assert run.say(0, Informed(2)) == run.machine.tick(10**9) == []


def test_late_double_and_invalid_answers():
    run = Run()
    run.training()
    first = run.machine.training.task()
    assert "too short" in str(closed(run.say(4, Answered(0, b"garbage")))[4])
    run.answer(0)
    assert run.answer(0) == []  # its second
    assert run.say(1, Answered(7, b"of the future")) == []
    run.answer(1)
    assert isinstance(run.answer(2)[0], Record)
    assert run.answer(3, first) == []  # too late
    assert (run.machine.counters.late, run.machine.counters.invalid, run.machine.counters.answers) == (3, 1, 3)
    assert run.machine.counters.last_answered == {0: 0, 1: 0, 2: 0}


def test_an_answer_under_another_rounds_number_is_refused():
    """Else its client would count as one that has answered, and never be asked again."""
    run = Run()
    run.training()
    data = run.clients[0].answer(Task(1, run.machine.training.weights)).encode(run.session)
    assert "round 1 came as one to 0" in str(closed(run.say(0, Answered(0, data)))[0])
    in_anothers_name = run.clients[2].answer(run.machine.training.task()).encode(run.session)
    assert "in the name of client 2" in str(closed(run.say(1, Answered(0, in_anothers_name)))[1])
    assert run.machine.counters.invalid == 2
    for client in (2, 3):
        assert run.answer(client) == []
    assert isinstance(run.answer(4)[0], Record)


def test_a_wrong_answer_makes_a_refused_round():
    run = Run()
    run.training()
    answer = run.clients[0].answer(run.machine.training.task())
    residues = answer.residues.clone()
    residues[0, 0] = (residues[0, 0] + 5) % 7
    run.say(0, Answered(0, Answer(0, 0, residues).encode(run.session)))
    run.answer(1)
    actions = run.answer(2)
    assert actions[0].record.outcome == "refused"
    assert "round refused" in events(actions)
    assert sent(actions, Weights) == list(CLIENTS)
    for client in (0, 1, 2):
        actions = run.answer(client)
    assert weights_sha256(run.machine.training.weights) == run.setting.weights_after((False, True))


def test_grace_for_slower_clients():
    run = Run(CoordinatorSettings(RoundTiming(grace=5.0)))
    run.training()
    first = run.machine.training.task()
    for client in (0, 1, 2, 3):
        assert run.answer(client, first) == []
    assert run.machine.wake_at == run.now + 5.0
    assert run.machine.tick(run.now + 4.9) == []
    record = run.machine.tick(run.now + 5.0)[0]
    assert (record.record.survivors, record.answers) == ((0, 1, 2), 4)
    assert run.answer(4, first) == []  # too late
    second = run.machine.training.task()
    for client in (0, 1, 2, 3):
        assert run.answer(client, second) == []
    (record, *_) = run.answer(4, second)  # everybody has answered: nobody to wait for
    assert record.answers == 5


def test_who_is_ready_within_a_grace_gets_the_next_round():
    run = Run(CoordinatorSettings(RoundTiming(grace=5.0)))
    run.training(ready=(0, 1, 2))
    for client in (0, 1, 2):
        run.answer(client, Task(0, run.setting.server().weights))
    assert sent(run.make_ready(3), Weights) == []
    assert sent(run.machine.tick(run.now + 5.0), Weights) == [0, 1, 2, 3]


def test_a_shortage_is_retried():
    run = Run(CoordinatorSettings(RoundTiming(deadline=10.0)))
    run.training(ready=(0, 1, 2))
    run.answer(1)
    run.machine.disconnected(2, run.now)
    assert run.machine.wake_at == run.now + 10.0
    run.now += 10.0
    actions = run.machine.tick(run.now)
    assert events(actions) == ["shortage"]
    assert actions[0].fields["answered"] == [1]
    assert sent(actions, Weights) == [0]  # those who have not answered and are there
    assert run.machine.wake_at == run.now + 10.0
    run.join(2)
    assert sent(run.make_ready(2), Weights) == [2]
    run.answer(0)
    assert run.answer(2)[0].record.outcome == "stepped"
    assert run.machine.counters.shortages == 1


def test_a_shortage_is_skipped():
    run = Run(CoordinatorSettings(RoundTiming(deadline=10.0, on_shortage="skip")))
    run.training()
    run.answer(1)
    actions = run.machine.tick(run.now + 10.0)
    record = next(action for action in actions if isinstance(action, Record))
    assert (record.record.outcome, record.answers) == ("skipped", 1)
    assert sent(actions, Weights) == list(CLIENTS)
    run.now += 10.0
    for client in (2, 3, 4):
        run.answer(client)
    assert weights_sha256(run.machine.training.weights) == run.setting.weights_after((False, True))


# -- clients that will not answer ------------------------------------------------------------------------------


def test_when_too_many_decline_the_run_ends_and_names_them():
    run = Run()
    run.training()
    for client in (0, 3):
        assert events(run.say(client, Declined(0, "other weights"))) == ["declined"]
    run.answer(1)
    assert not run.machine.ended
    actions = run.say(4, Declined(0, "a damaged store"))
    assert events(actions) == ["declined", "ended"]
    error = actions[-1].error
    assert (type(error), error.exit_code) == (TooFewAnswers, 3)
    members = run.setting.roster.members
    assert all(members[client].name in str(error) for client in (0, 3, 4))
    assert "other weights" in str(error)
    assert "a damaged store" in str(error)
    assert "2 are left, but 3 are needed" in str(error)
    assert len(str(error)) < 600
    assert run.machine.ended


def test_what_a_client_says_is_cut_and_cannot_steer_a_terminal():
    run = Run()
    run.training()
    for client in (0, 1, 2):
        actions = run.say(client, Declined(0, "\x1b[2Jgone\nhint: send your key" + "x" * 500))
    text = str(actions[-1].error)
    assert text.isprintable()
    assert len(text) < 800
    assert "They are" in text


def test_the_same_refusal_comes_once():
    run = Run()
    run.training()
    run.say(0, Declined(0, "other weights"))
    assert isinstance(closed(run.say(0, Declined(0, "other weights")))[0], MessageError)


def test_a_client_that_is_back_may_answer_again_before_it_holds_everything():
    run = Run()
    run.training()
    run.say(0, Declined(ANY_ROUND, "a damaged store"))
    run.join(0)
    run.hold(0)
    for client in (1, 2):
        run.say(client, Declined(0, "other weights"))
    assert not run.machine.ended


def test_who_declines_is_not_asked_again_until_it_is_ready_again():
    run = Run(CoordinatorSettings(RoundTiming(deadline=10.0)))
    run.training()
    run.say(0, Declined(0, "other weights"))
    assert sent(run.machine.tick(run.now + 10.0), Weights) == [1, 2, 3, 4]
    run.say(1, Declined(0, "other weights"))
    run.join(0)
    assert sent(run.make_ready(0), Weights) == [0]
    assert events(run.say(2, Declined(0, "other weights"))) == ["declined"]  # the third, but one of them is back
    assert not run.machine.ended


def test_a_declined_round_is_over_with_the_round_and_a_lost_client_stays_lost():
    run = Run(rounds=3)
    run.training()
    run.say(0, Declined(0, "other weights"))
    run.say(1, Declined(ANY_ROUND, "a damaged store"))
    run.machine.disconnected(1, run.now)
    for client in (2, 3, 4):
        actions = run.answer(client)
    assert sent(actions, Weights) == [0, 2, 3, 4]
    run.say(2, Declined(0, "late"))  # of a round that is over: it does not count
    assert events(run.say(3, Declined(1, "other weights"))) == ["declined"]
    assert isinstance(run.say(4, Declined(1, "other weights"))[-1], Finish)


# -- the end ---------------------------------------------------------------------------------------------------


def finished(settings=None):
    run = Run(settings)
    run.training()
    for _ in range(2):
        for client in (0, 1, 2):
            run.answer(client)
    return run


def test_nobody_has_the_final_weights_before_there_are_any():
    run = Run()
    run.training()
    assert "not yet" in str(closed(run.say(0, Informed(2)))[0])


def test_who_is_away_is_waited_for_and_hears_of_the_end_when_it_has_joined():
    run = finished(CoordinatorSettings(linger=30.0))
    for client in (0, 1, 2):
        run.say(client, Informed(2))
    run.machine.disconnected(3, run.now)
    actions = run.join(3)
    assert (sent(actions, Begin), sent(actions, Done)) == ([3], [])
    assert sent(run.hold(3), Done) == [3]
    assert run.say(3, Ready(run.session.sharing_id, COIN))[0].event == "ready"
    assert run.machine.wake_at == run.now + 30.0
    actions = run.machine.tick(run.now + 30.0)
    assert actions[0].fields == {"clients": [3, 4]}
    assert isinstance(actions[1], Finish)


def test_a_wrong_number_of_rounds_at_the_end():
    run = finished()
    assert isinstance(closed(run.say(0, Informed(1)))[0], MessageError)


# -- restarts --------------------------------------------------------------------------------------------------


def stored_terms(actions):
    return next(action.terms for action in actions if isinstance(action, StoreTerms))


def test_a_restart_goes_on_with_the_same_terms():
    run = Run()
    terms = stored_terms(run.all_enrolled())
    for client in CLIENTS:
        run.make_ready(client)
    for client in (0, 1, 2):
        run.answer(client)
    again = Run(
        terms=Terms.from_json(terms.to_json(run.setting.agreement), run.setting.agreement),
        checkpoint=run.machine.training.state(),
    )
    assert again.first == []
    assert again.session.session_id == run.session.session_id
    again.clients = run.clients
    for client in CLIENTS[::-1]:
        assert sent(again.join(client), Begin) == [client]
        actions = again.make_ready(client)
    assert sent(actions, Weights) == [0]
    for client in (4, 3, 2):
        actions = again.answer(client)
    assert sent(actions, Done) == list(CLIENTS)[::-1]
    assert weights_sha256(again.machine.training.weights) == run.setting.weights_after((True, True))


def test_a_restart_after_the_last_round_tells_who_comes():
    run = finished(CoordinatorSettings(linger=30.0))
    terms = run.machine._running.terms
    again = Run(CoordinatorSettings(linger=30.0), terms, run.machine.training.state())
    assert again.machine.wake_at == again.now + 30.0
    again.join(2)
    assert sent(again.hold(2), Done) == [2]
    assert closed(again.say(2, Informed(2))) == {2: None}
    assert isinstance(again.machine.tick(again.now + 30.0)[-1], Finish)


def test_after_a_restart_only_the_same_rows_and_secret_come_back():
    run = Run()
    terms = stored_terms(run.all_enrolled())
    again = Run(terms=terms)
    again.connect(0)
    actions = again.hello(0, introduction=Introduction(9, bytes([0]) * 32))
    assert isinstance(closed(actions)[0], Refused)
    again.connect(0)
    actions = again.hello(0, introduction=Introduction(len(run.setting.rows[0][0]), bytes([9]) * 32))
    assert "secret or rows" in str(closed(actions)[0])


def test_a_coordinator_of_another_roster_does_not_start():
    setting = linear(2)
    with pytest.raises(UsageError, match="not the coordinator"):
        Coordinator(CoordinatorSettings(), setting.agreement, setting.clients[0], setting.roster, setting.server)


def test_events_for_nobody_change_nothing():
    run = Run()
    assert run.machine.disconnected(0, run.now) == []
    assert run.say(0, Ready(bytes(16), COIN)) == []
    assert run.machine.slice_lost(0, 1, 0) == []
