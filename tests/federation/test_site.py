"""A client's machine, event by event."""

import pytest

from dresfl.errors import DataError, IdentityError, MessageError, Refused, StoreError
from dresfl.federation import Introduction, Site, Terms
from dresfl.federation.actions import (
    AnswerTask,
    Deal,
    Disconnect,
    Flush,
    GiveUp,
    Join,
    Keep,
    KeepModel,
    Leave,
    Log,
    SendToCoordinator,
    Work,
)
from dresfl.federation.enrolment import signed_begin
from dresfl.federation.messages import (
    ANY_ROUND,
    Ack,
    Answered,
    Declined,
    Delta,
    Done,
    Hello,
    Holding,
    Informed,
    Ready,
    Reject,
    Relayed,
    Request,
    Slice,
    Wait,
    Weights,
)
from dresfl.federation.site import Membership
from dresfl.protocol import Task, Verdict, num_slices

from .setting import linear

INDEX = 1
CHALLENGE = b"c" * 16
COIN = b"o" * 32
VERDICT = Verdict()  # the dealers were checked


class Client:
    """A site, and a coordinator that says what it is told to."""

    def __init__(self, verdict=VERDICT):
        self.setting, self.verdict = linear(2), verdict
        rows = [len(inputs) for inputs, _ in self.setting.rows]
        self.introduction = Introduction(rows[INDEX], b"x" * 64)
        self.terms = Terms.settle([Introduction(count, b"x" * 64) for count in rows])
        self.session = self.terms.session(self.setting.agreement)
        self.site = Site(
            self.setting.agreement, self.setting.roster, INDEX, lambda: self.introduction, lambda: CHALLENGE
        )
        self.now = 50.0

    def hear(self, message):
        return self.site.received(message.encode(), self.now)

    def done(self, work, result=None):
        return self.site.worked(work, result, self.now)

    def begin(self, challenge=CHALLENGE, identity=None, client=INDEX, terms=None):
        coordinator = identity or self.setting.coordinator
        return self.hear(signed_begin(coordinator, self.setting.roster, client, challenge, terms or self.terms))

    def join(self, lacking=()):
        """As far as a session, without these slices."""
        self.site.connected(self.now)
        (work,) = self.begin()
        missing = [{number for owner, number in lacking if owner == dealer} for dealer in range(5)]
        return self.done(work, Membership(self.session, missing, COIN, self.verdict))

    def weights(self, number=0, change=0):
        task = Task(number, self.setting.server().weights + change)
        return self.hear(Weights(task.encode(self.session)))

    def final(self):
        return self.hear(Done(Task(2, self.setting.server().weights).encode(self.session)))


def said(actions):
    return [action.message for action in actions if isinstance(action, SendToCoordinator)]


def work(actions):
    return [action for action in actions if isinstance(action, Work)]


def test_hello_brings_everything_and_a_fresh_challenge():
    client = Client()
    (hello,) = said(client.site.connected(client.now))
    assert hello == Hello(client.introduction, CHALLENGE, client.setting.agreement.encode(), hello.instance)
    fresh = Site(client.setting.agreement, client.setting.roster, INDEX, lambda: client.introduction)
    hellos = [said(fresh.connected(0.0))[0] for _ in range(3)]
    assert len({hello.challenge for hello in hellos}) == 3
    assert len({hello.instance for hello in hellos}) == 1  # it is one process
    assert hellos[0].instance != hello.instance
    assert not fresh._joined


def test_waiting_is_logged():
    client = Client()
    client.site.connected(client.now)
    assert client.hear(Wait("2 are missing")) == [Log("waiting", {"reason": "2 are missing"})]


def test_terms_that_are_not_signed_for_this_connection_are_not_believed():
    others = linear(2).clients[0]
    for wrong in ({"challenge": bytes(16)}, {"client": 2}, {"identity": others}):
        client = Client()
        client.site.connected(client.now)
        (action,) = client.begin(**wrong)
        assert isinstance(action, GiveUp)
        assert isinstance(action.error, IdentityError)


def test_a_client_that_joins_says_what_it_holds():
    client = Client()
    messages = said(client.join([(0, 0), (2, 1)]))
    assert [message.dealer for message in messages] == list(range(5))
    assert all(isinstance(message, Holding) for message in messages)
    full = [(1 << num_slices(client.session, dealer)) - 1 for dealer in range(5)]
    assert [message.held for message in messages] == [full[0] - 1, full[1], full[2] - 2, full[3], full[4]]
    assert client.site._joined


def test_a_client_that_holds_everything_is_ready_at_once():
    client = Client()
    *_, last = said(client.join())
    assert last == Ready(client.session.sharing_id, COIN)


def test_a_damaged_store_is_told():
    client = Client()
    client.site.connected(client.now)
    (join,) = client.begin()
    actions = client.done(
        join, Membership(client.session, [set() for _ in range(5)], COIN, damage=("slice 3 is damaged",))
    )
    assert actions[0] == Log("store damaged", {"what": "slice 3 is damaged"})


@pytest.mark.parametrize(
    "error", [Refused("the terms are not ours"), MessageError("no"), StoreError("the disk is full")]
)
def test_a_join_that_fails_ends_the_client(error):
    client = Client()
    client.site.connected(client.now)
    (join,) = client.begin()
    *before, action = client.done(join, error)
    assert isinstance(action, GiveUp)
    assert str(action.error) == str(error)
    hidden = f"{type(error).__name__}: see the log of this client"  # what an error says may be for this client alone
    assert said(before) == ([] if isinstance(error, MessageError) else [Declined(ANY_ROUND, hidden)])


def test_messages_that_come_too_early_or_twice_end_the_connection():
    for message in (Request(0, 0), Relayed(0, 0, b"x"), Weights(b"x"), Done(b"x")):
        client = Client()
        client.site.connected(client.now)
        (action,) = client.hear(message)
        assert isinstance(action, Disconnect)
        assert "before Begin" in action.reason
    client = Client()
    client.join()
    (action,) = client.begin()
    assert "second Begin" in action.reason
    client = Client()
    client.site.connected(client.now)
    client.begin()
    (action,) = client.begin()
    assert "second Begin" in action.reason


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x01abc", b"\x12\x00", Delta(1, 0, 1, bytes(32), b"").encode()])
def test_messages_that_make_no_sense_end_the_connection(data):
    client = Client()
    client.join()
    (action,) = client.site.received(data, client.now)
    assert isinstance(action, Disconnect)
    assert not client.site._joined
    assert client.site.received(b"\xff", client.now) == []  # nothing more is heard on it


def test_a_slice_that_is_asked_for_is_dealt():
    client = Client()
    client.join()
    (deal,) = client.hear(Request(3, 0))
    assert deal == Deal(3, 0)
    (slice_message,) = said(client.done(deal, b"sealed"))
    assert (slice_message.peer, slice_message.number, slice_message.sealed) == (3, 0, b"sealed")
    assert isinstance(slice_message, Slice)
    (deal,) = client.hear(Request(9, 0))
    (action,) = client.done(deal, MessageError("client 9 does not exist"))
    assert isinstance(action, Disconnect)
    client.join()
    (deal,) = client.hear(Request(3, 0))
    assert isinstance(client.done(deal, DataError("the rows have changed"))[-1], GiveUp)


# -- keeping ---------------------------------------------------------------------------------------------------


def keep(client, dealer, number, result=None):
    (piece,) = client.hear(Relayed(dealer, number, b"sealed"))
    assert piece == Keep(dealer, number, b"sealed")
    return client.done(piece, result)


def test_the_last_slice_is_flushed_then_acknowledged_then_ready():
    client = Client()
    client.join([(0, 0)])
    (flush,) = keep(client, 0, 0)
    assert flush == Flush()
    assert said(client.done(flush)) == [Ack(0, 0), Ready(client.session.sharing_id, COIN)]


def test_slices_are_flushed_when_no_more_come():
    client = Client()
    client.join([(0, 0), (2, 0), (2, 1)])
    assert keep(client, 0, 0) == []
    at = client.site.wake_at
    assert client.now < at < client.now + 1
    assert client.site.tick(at - 0.01) == []
    (second,) = client.hear(Relayed(2, 0, b"sealed"))
    assert client.site.wake_at is None  # one is being kept
    client.done(second)
    client.now = client.site.wake_at
    (flush,) = client.site.tick(client.now)
    assert client.site.wake_at is None
    assert said(client.done(flush)) == [Ack(0, 0), Ack(2, 0)]


def test_slices_are_flushed_after_a_few(monkeypatch):
    monkeypatch.setattr("dresfl.federation.site._FLUSH_SLICES", 2)
    client = Client()
    client.join([(0, 0), (2, 0), (2, 1)])
    keep(client, 0, 0)
    (flush,) = keep(client, 2, 0)
    (second,) = work(keep(client, 2, 1))  # kept while the first flush is still under way
    assert said(client.done(flush)) == [Ack(0, 0), Ack(2, 0), Ack(2, 1), Ready(client.session.sharing_id, COIN)]
    assert said(client.done(second)) == []


def test_a_slice_that_does_not_open_is_rejected_and_another_taken():
    client = Client()
    client.join([(0, 0)])
    actions = keep(client, 0, 0, MessageError("it does not open"))
    assert said(actions) == [Reject(0, 0, "it does not open")]
    (flush,) = keep(client, 0, 0)
    assert said(client.done(flush))[-1] == Ready(client.session.sharing_id, COIN)


def test_a_slice_that_comes_twice_is_acknowledged_twice_and_ready_is_said_once():
    client = Client()
    client.join([(0, 0)])
    (flush,) = keep(client, 0, 0)
    client.done(flush)
    (flush,) = keep(client, 0, 0)
    assert said(client.done(flush)) == [Ack(0, 0)]


def test_a_disk_that_fails_ends_the_client():
    client = Client()
    client.join([(0, 0)])
    assert isinstance(keep(client, 0, 0, StoreError("no space left"))[-1], GiveUp)


# -- answering -------------------------------------------------------------------------------------------------


def test_a_task_is_answered():
    client = Client()
    client.join()
    (piece,) = client.weights()
    assert isinstance(piece, AnswerTask)
    (answer,) = said(client.done(piece, b"answer"))
    assert (answer.round_number, answer.answer) == (0, b"answer")
    assert client.site.rounds_answered == 1


def test_the_newest_task_counts():
    client = Client()
    client.join()
    (first,) = client.weights(0)
    assert client.weights(1) == []  # busy
    (second,) = client.done(first, b"late")  # its answer is of no use any more
    assert second.task.round_number == 1
    (answer,) = said(client.done(second, b"answer"))
    assert (answer.round_number, isinstance(answer, Answered)) == (1, True)


def test_a_round_that_is_sent_again_is_answered_again():
    client = Client()
    client.join()
    for _ in range(2):
        (piece,) = client.weights()
        assert said(client.done(piece, b"answer"))


def test_a_task_that_is_refused_is_logged_and_the_next_one_taken():
    client = Client()
    client.join()
    (piece,) = client.weights(0, change=1)
    actions = client.done(piece, MessageError("answered for other weights", "each batch once"))
    line = actions[0]
    assert (line.event, line.fields["round"], line.fields["hint"]) == ("task refused", 0, "each batch once")
    assert said(actions) == [Declined(0, "answered for other weights")]
    (piece,) = client.weights(1)
    assert said(client.done(piece, b"answer"))


def test_a_damaged_share_ends_the_connection_so_that_it_is_fetched_again():
    client = Client()
    client.join()
    (piece,) = client.weights()
    (action,) = client.done(piece, StoreError("slice 3 is damaged"))
    assert isinstance(action, Disconnect)


def test_a_disk_that_fails_again_in_the_same_round_ends_the_client():
    client = Client()
    client.join()
    (piece,) = client.weights()
    client.done(piece, StoreError("no space left"))
    client.join()
    (piece,) = client.weights()
    *before, action = client.done(piece, StoreError("no space left"))
    assert isinstance(action, GiveUp)
    assert [message.round_number for message in said(before)] == [ANY_ROUND]


def test_rounds_and_ends_that_were_not_agreed_on():
    for message in ("round", "end", "session"):
        client = Client()
        client.join()
        if message == "round":
            actions = client.weights(2)
        elif message == "end":
            actions = client.hear(Done(Task(1, client.setting.server().weights).encode(client.session)))
        else:
            other = Terms.settle([Introduction(3, b"y" * 64)] * 5).session(client.setting.agreement)
            actions = client.hear(Weights(Task(0, client.setting.server().weights).encode(other)))
        assert isinstance(actions[0], Disconnect)


# -- the end ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["closed", "time"])
def test_the_model_is_kept_then_told_then_the_client_leaves(ending):
    client = Client()
    client.join([(0, 0)])  # it need not have been ready
    (piece,) = client.final()
    assert isinstance(piece, KeepModel)
    assert said(client.done(piece)) == [Informed(2)]
    assert client.weights(1) == []  # nothing more is heard
    at = client.site.wake_at
    (leave,) = client.site.disconnected(client.now) if ending == "closed" else client.site.tick(at)
    assert isinstance(leave, Leave)
    assert leave.final.round_number == 2
    assert client.site.wake_at is None


def test_a_connection_that_ends_before_the_model_is_kept():
    client = Client()
    client.join()
    (piece,) = client.final()
    assert client.site.disconnected(client.now) == []
    assert client.done(piece) == []  # of an earlier connection
    client.join()
    (piece,) = client.final()
    assert said(client.done(piece)) == [Informed(2)]


def test_work_of_an_earlier_connection_is_forgotten():
    client = Client()
    client.join([(0, 0)])
    (deal,) = client.hear(Request(3, 0))
    (piece,) = client.hear(Relayed(0, 0, b"sealed"))
    (answer,) = client.weights()
    client.site.disconnected(client.now)
    client.join([(0, 0)])
    for old in (deal, piece, answer):
        assert client.done(old, b"x") == []
    (flush,) = keep(client, 0, 0)
    assert said(client.done(flush)) == [Ack(0, 0), Ready(client.session.sharing_id, COIN)]


def test_going_on_in_a_new_process():
    """Nothing is reported again: the coordinator knows."""
    client = Client()
    (join,) = client.site.resumed(client.terms, client.now)
    assert join == Join(client.terms, look=False)
    assert client.done(join, Membership(client.session, [set() for _ in range(5)], COIN, VERDICT)) == []
    (piece,) = client.weights()
    assert said(client.done(piece, b"answer"))
    (action,) = client.begin()
    assert isinstance(action, Disconnect)  # no challenge is open


# -- coming back -----------------------------------------------------------------------------------------------


def ended(client, after=1.0):
    """Whether the connection that ends now was of use, so that the client may come back soon."""
    client.site.disconnected(client.now + after)
    return client.site.came_far


def test_a_begin_alone_is_no_reason_to_come_back_soon():
    client = Client()
    client.join()
    (deal,) = client.hear(Request(3, 0))
    client.done(deal, b"sealed")
    assert not ended(client)
    client.site.connected(client.now)
    assert not ended(client, 1000.0)  # nobody was there
    client.join()
    (task,) = client.weights(0)
    client.done(task, b"answer")  # which the coordinator does not take
    assert not ended(client)


def test_a_connection_that_was_of_use():
    client = Client()
    client.join([(0, 0), (0, 1)])
    keep(client, 0, 0)
    (flush,) = client.site.tick(client.now + 1.0)
    client.done(flush)
    assert ended(client)
    client.join()
    (task,) = client.weights(0)
    client.done(task, b"answer")
    client.weights(1)
    assert ended(client)
    client.join()
    assert not ended(client, 9.9)
    client.join()
    assert ended(client, 10.0)
