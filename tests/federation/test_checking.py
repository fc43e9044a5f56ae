"""The check of the dealers: coins, values, the verdict, and what everybody does with it."""

from dataclasses import replace

import pytest
import torch

from dresfl.errors import CheckpointError, MessageError, Refused, TooFewAnswers
from dresfl.federation import Introduction, Terms, sharing_nonce
from dresfl.federation.actions import (
    AnswerTask,
    CheckDealers,
    Disconnect,
    Finish,
    GiveUp,
    Join,
    KeepVerdict,
    Send,
    SendToCoordinator,
    StoreTerms,
)
from dresfl.federation.checking import Checking
from dresfl.federation.messages import Check, Checked, Holding, Judged, Ready, Weights
from dresfl.federation.site import Membership
from dresfl.federation.terms import coin_commitment
from dresfl.model import weights_sha256
from dresfl.protocol import Answer, Client, Task, Verdict, num_slices

from .setting import linear
from .test_coordinator import CLIENTS, Run, events, sent
from .test_site import VERDICT
from .test_site import Client as SiteClient
from .test_workplace import Places


def shared():
    """Everybody has dealt and kept; the terms."""
    places = Places()
    terms = places.terms()
    places.share(terms)
    return places, terms


def coins_of(places, terms):
    return tuple(place._store.coin(terms.contributions[i]) for i, place in enumerate(places.places))


# -- coins -----------------------------------------------------------------------------------------------------


def test_a_coin_is_the_one_that_was_committed_to():
    places, terms = shared()
    coins, checking = coins_of(places, terms), Checking(terms, terms.session(places.setting.agreement))
    assert len(set(coins)) == len(coins)
    assert checking.missing() == list(CLIENTS)
    for client in CLIENTS:
        assert checking.coins is None
        with pytest.raises(Refused, match="committed"):
            checking.ready(client, bytes(32))
        checking.ready(client, coins[client])
    assert checking.begin(CLIENTS) == checking.coins == coins
    assert checking.begin(CLIENTS[:2]) == coins  # there is one set of coins
    with pytest.raises(MessageError, match="not asked for"):
        Checking(terms, terms.session(places.setting.agreement)).checked(0, (), b"")


def test_a_client_finds_its_coin_again_after_a_restart():
    places, terms = shared()
    before = coins_of(places, terms)
    places.places = [places.open(client) for client in CLIENTS]
    assert coins_of(places, terms) == before


def test_nothing_is_published_for_coins_that_were_not_committed_to_or_for_other_coins():
    """Two sets of coins would be two equations with the same mask."""
    places, terms = shared()
    coins, place = coins_of(places, terms), places.places[2]
    for wrong in ((b"w" * 32, *coins[1:]), (*coins[:2], bytes(32), *coins[3:]), coins[::-1]):  # its own must be there
        assert isinstance(place.perform(CheckDealers(wrong)), MessageError)
    assert isinstance(place.perform(CheckDealers(coins[:-1])), MessageError)
    first = place.perform(CheckDealers(coins))
    again = places.open(2)
    again.perform_join = again._join(terms, True)
    second = again.perform(CheckDealers(coins))
    assert (first.hashes, first.values) == (second.hashes, second.values)
    other = Terms.settle([Introduction(rows, part) for rows, part in zip(terms.rows, _others(terms), strict=True)])
    forged = replace(other, nonce=terms.nonce)  # the same sharing, with other contributions: not a fresh one
    again._terms = forged
    assert isinstance(again.perform(CheckDealers((b"c" * 32,) * 5)), MessageError)
    again._terms = _Believed(forged)
    assert isinstance(again.perform(CheckDealers((b"c" * 32,) * 5)), Refused)
    again._terms = terms
    assert isinstance(again.perform(CheckDealers((bytes(32), *coins[1:]))), Refused)  # other participants


def test_terms_with_a_commitment_that_is_not_the_clients_own_are_refused():
    """Else the coordinator could choose the coin in the client's name."""
    places = Places()
    terms = places.terms()
    forged = terms.contributions[2][:32] + coin_commitment(b"c" * 32)
    contributions = (*terms.contributions[:2], forged, *terms.contributions[3:])
    other = replace(terms, contributions=contributions)
    other = replace(other, nonce=sharing_nonce(other.own_bytes, contributions))
    assert other.fresh
    assert isinstance(places.places[2].perform(Join(other)), Refused)
    assert isinstance(places.places[3].perform(Join(other)), Membership)


def _others(terms):
    return [part[:32] + coin_commitment(b"c" * 32) for part in terms.contributions]


class _Believed:
    """Terms of a sharing that say that they are fresh, as a client would see them that lost its way."""

    fresh = True

    def __init__(self, terms):
        self._terms = terms

    def is_coin(self, client, coin):
        return self._terms.is_coin(client, coin)


# -- the verdict -----------------------------------------------------------------------------------------------


def test_honest_dealers_are_found_clean():
    places, terms = shared()
    assert places.check(terms) == Verdict()


def cheated(monkeypatch, receivers, dealer=3):
    """A federation in which one dealer deals other residues to some receivers."""
    deal_to = Client.deal_to

    def cheating(self, wanted, first_row=0, count=None):
        shares = deal_to(self, wanted, first_row, count)
        for share in shares:
            if self.index == dealer and share.receiver in receivers:
                share.residues[0, 0, 0] += 1 + share.receiver**2
        return shares

    monkeypatch.setattr(Client, "deal_to", cheating)
    places, terms = shared()
    monkeypatch.undo()
    return places, terms


def test_a_dealer_off_its_polynomial_is_excluded_and_the_rest_train_as_without_it(monkeypatch):
    places, terms = cheated(monkeypatch, receivers=(0, 1, 2))
    assert places.check(terms) == Verdict((3,), ())
    session = terms.session(places.setting.agreement).without((3,))
    assert session.sharing_id == terms.session(places.setting.agreement).sharing_id
    server = places.setting.server(session)
    plain = places.setting.server(session)
    while not server.done:
        task = server.task()
        dealers = session.batch_rows(task.round_number).dealers.tolist()
        assert 3 not in dealers
        for place in places.places[1:4]:
            server.receive(Answer.decode(place.perform(AnswerTask(task)), session))
        plain.apply(_direct(places, session, task), (1, 2, 3))
    assert weights_sha256(server.weights) == weights_sha256(plain.weights)


def _direct(places, session, task):
    """The summed gradient on the rows themselves."""
    batch = session.batch_rows(task.round_number)
    rows = [torch.cat(places.setting.rows[d], 1)[r] for d, r in zip(batch.dealers, batch.rows, strict=True)]
    residues = session.field.embed(torch.stack(rows)).unsqueeze(1)
    size = session.network.input_size
    return session.network.gradient(session.field, task.weights, residues[..., :size], residues[..., size:])[:, 0]


def test_one_receiver_off_the_polynomial_deviates(monkeypatch):
    """A bad dealer and a lying receiver cannot be told apart: the dealer stays, and the receiver does not answer."""
    places, terms = cheated(monkeypatch, receivers=(1,))
    assert places.check(terms) == Verdict((), (1,))


def test_seeds_that_differ_name_their_dealer(monkeypatch):
    places, terms = shared()
    seeds = terms.session(places.setting.agreement).seed_sets
    number = seeds.dealt_by(2)[0]
    holder = next(client for client in seeds.holders(number) if client != 2)
    table = places.places[holder]._member[1]
    table._set_up[2] = bytes(32 * len(seeds.dealt_by(2)) - 1) + b"x" + table._set_up[2][32 * len(seeds.dealt_by(2)) :]
    coins = coins_of(places, terms)
    checking = Checking(terms, terms.session(places.setting.agreement))
    for client in CLIENTS:
        checking.ready(client, coins[client])
    checking.begin(CLIENTS)
    for client, place in enumerate(places.places):
        message = place.perform(CheckDealers(coins))
        checking.checked(client, message.hashes, message.values)
    assert checking.verdict() == Verdict((), (holder,))
    assert checking.different_seeds == ((2, holder),)


def test_check_values_of_another_size_are_refused():
    places, terms = shared()
    coins, session = coins_of(places, terms), terms.session(places.setting.agreement)
    checking = Checking(terms, session)
    for client in CLIENTS:
        checking.ready(client, coins[client])
    checking.begin(CLIENTS)
    message = places.places[0].perform(CheckDealers(coins))
    for hashes, values in ((message.hashes[:-1], message.values), (message.hashes, message.values[:-1])):
        with pytest.raises(MessageError):
            checking.checked(0, hashes, values)
    too_large = b"\xff" * len(message.values)
    with pytest.raises(MessageError, match="not below its modulus"):
        checking.checked(0, message.hashes, too_large)


# -- the machines ----------------------------------------------------------------------------------------------


class FreshRun(Run):
    """A coordinator and clients of a new sharing."""

    def __init__(self):
        super().__init__()
        self.places = Places()
        self.places.setting = self.setting
        self.places.places = [self.places.open(client) for client in CLIENTS]

    def hello(self, client, **changes):
        return super().hello(client, introduction=self.places.places[client].introduce(), **changes)

    @property
    def terms(self):
        return self.machine._running.terms

    @property
    def session(self):
        return self.machine._running.session

    def share(self):
        for client in CLIENTS:
            self.join(client)
        self.places.share(self.terms)

    def hold(self, client):
        actions = []
        for dealer in CLIENTS:
            actions += self.say(client, Holding(dealer, (1 << num_slices(self.session, dealer)) - 1))
        return actions

    def make_ready(self, client):
        coin = coins_of(self.places, self.terms)[client]
        return [*self.hold(client), *self.say(client, Ready(self.session.sharing_id, coin))]

    def check(self, client, message=None):
        return self.say(client, message or self.places.places[client].perform(CheckDealers(self.coins)))

    @property
    def coins(self):
        return coins_of(self.places, self.terms)


@pytest.fixture
def fresh():
    run = FreshRun()
    run.share()
    return run


def test_the_check_begins_when_everybody_is_ready_and_rounds_after_the_verdict(fresh):
    for client in CLIENTS[:-1]:
        assert not sent(fresh.make_ready(client), (Check, Weights))
    assert sent(fresh.make_ready(4), Check) == list(CLIENTS)
    assert fresh.machine.training is None
    for client in CLIENTS[:-1]:
        assert fresh.check(client) == []
    actions = fresh.check(4)
    assert events(actions) == ["dealers checked", "rounds"]
    stored = next(place for place, action in enumerate(actions) if isinstance(action, StoreTerms))
    first_sent = next(place for place, action in enumerate(actions) if isinstance(action, Send))
    assert stored < first_sent
    assert sent(actions, Judged) == sent(actions, Weights) == list(CLIENTS)
    assert fresh.terms.verdict == Verdict()


def test_a_client_that_comes_back_is_asked_again(fresh):
    for client in CLIENTS:
        fresh.make_ready(client)
    fresh.machine.disconnected(1, fresh.now)
    fresh.join(1)
    assert sent(fresh.make_ready(1), Check) == [1]
    for client in CLIENTS:
        actions = fresh.check(client)
    assert sent(actions, Judged) == list(CLIENTS)
    fresh.machine.disconnected(1, fresh.now)
    fresh.join(1)
    again = fresh.make_ready(1)
    assert (sent(again, Check), sent(again, Judged), sent(again, Weights)) == ([], [1], [1])


def test_a_coordinator_that_was_started_again_asks_again_and_one_with_a_verdict_does_not(fresh):
    for client in CLIENTS:
        fresh.make_ready(client)
    for terms, asked in ((fresh.terms, True), (replace(fresh.terms, verdict=Verdict()), False)):
        stored = Terms.from_json(terms.to_json(fresh.setting.agreement), fresh.setting.agreement)
        fresh.machine = Run(terms=stored).machine
        for client in CLIENTS:
            fresh.join(client)
            actions = fresh.make_ready(client)
        assert bool(sent(actions, Check)) == asked


def test_clients_that_deviate_are_not_asked_and_are_told_the_end(fresh):
    for client in CLIENTS:
        fresh.make_ready(client)
    for client in CLIENTS:
        message = fresh.places.places[client].perform(CheckDealers(fresh.coins))
        if client == 2:
            message = Checked(message.hashes, bytes(len(message.values)))  # it says nonsense
        actions = fresh.check(client, message)
    assert sent(actions, Judged) == list(CLIENTS)
    assert sent(actions, Weights) == [0, 1, 3, 4]
    assert set(fresh.machine.dropped) == {2}
    late = fresh.machine.counters.late
    fresh.say(2, _answered(fresh, 2))
    assert fresh.machine.counters.late == late + 1


def _answered(run, client):
    from dresfl.federation.messages import Answered

    task = run.machine.training.task()
    run.places.places[client].perform(KeepVerdict(run.terms.verdict))
    return Answered(0, run.places.places[client].perform(AnswerTask(task)))


def test_a_check_that_leaves_too_few_ends_the_run_by_name(fresh):
    for client in CLIENTS:
        fresh.make_ready(client)
    for client in CLIENTS:
        message = fresh.places.places[client].perform(CheckDealers(fresh.coins))
        if client in (1, 2, 3):
            message = Checked(tuple(bytes(16) for _ in message.hashes), message.values)
        actions = fresh.check(client, message)
    finish = actions[-1]
    assert isinstance(finish, Finish)
    assert isinstance(finish.error, TooFewAnswers)
    assert fresh.machine.ended


def test_clients_that_are_not_there_hold_up_nobody(fresh):
    """The sharing stands still: after `deadline` seconds those who are ready check, and the others do not answer."""
    deadline = fresh.machine._settings.timing.deadline
    for client in CLIENTS[:4]:
        fresh.make_ready(client)
    fresh.now += deadline - 1
    assert "checking without" not in events(fresh.machine.tick(fresh.now))
    fresh.now += 1
    actions = fresh.machine.tick(fresh.now)
    assert "checking without" in events(actions)
    assert isinstance(actions[1], StoreTerms)
    assert sent(actions, Check) == [0, 1, 2, 3]
    coins = next(action.message.coins for action in actions if isinstance(action, Send))
    assert coins == (*fresh.coins[:4], bytes(32))
    assert not sent(fresh.make_ready(4), (Check, Judged, Weights))  # it comes too late
    for client in CLIENTS[:4]:
        actions = fresh.say(client, fresh.places.places[client].perform(CheckDealers(coins)))
    assert fresh.terms.verdict == Verdict((), (4,))
    assert sent(actions, Weights) == [0, 1, 2, 3]
    assert sent(actions, Judged) == [0, 1, 2, 3, 4]


def test_a_client_that_has_shown_its_coin_and_is_away_for_a_moment_takes_part(fresh):
    for client in CLIENTS[:4]:
        fresh.make_ready(client)
    fresh.machine.disconnected(1, fresh.now)
    actions = fresh.make_ready(4)
    assert sent(actions, Check) == [0, 2, 3, 4]
    assert fresh.terms.coins == fresh.coins
    fresh.join(1)
    assert sent(fresh.make_ready(1), Check) == [1]
    for client in CLIENTS:
        fresh.check(client)
    assert fresh.terms.verdict == Verdict()


def test_a_client_that_does_not_answer_the_check_holds_up_nobody(fresh):
    deadline = fresh.machine._settings.timing.deadline
    for client in CLIENTS:
        fresh.make_ready(client)
    for client in (0, 1):
        fresh.check(client)
    fresh.now += deadline
    assert not sent(fresh.machine.tick(fresh.now), Judged)  # too few have answered
    fresh.check(3)
    fresh.now += deadline
    assert not sent(
        fresh.machine.tick(fresh.now), Judged
    )  # three could decode, but one that lies could exclude a dealer
    fresh.check(4)
    fresh.now += deadline
    actions = fresh.machine.tick(fresh.now)
    assert fresh.terms.verdict == Verdict((), (2,))
    assert sent(actions, Weights) == [0, 1, 3, 4]


def test_the_coins_of_a_check_that_has_begun_stay(fresh):
    """A client publishes for one set of coins. So a coordinator that was started again uses those of before."""
    for client in CLIENTS[:4]:
        fresh.make_ready(client)
    fresh.now += fresh.machine._settings.timing.deadline
    fresh.machine.tick(fresh.now)
    coins = fresh.terms.coins
    stored = Terms.from_json(fresh.terms.to_json(fresh.setting.agreement), fresh.setting.agreement)
    assert stored.coins == coins
    fresh.machine = Run(terms=stored).machine
    for client in CLIENTS:
        fresh.join(client)
        asked = [action.message for action in fresh.make_ready(client) if isinstance(action, Send)]
        assert [message.coins for message in asked if isinstance(message, Check)] == ([coins] if client < 4 else [])
    other = replace(stored, coins=(bytes([1]) * 32, *coins[1:]))
    with pytest.raises(CheckpointError, match="committed to"):
        Terms.from_json(other.to_json(fresh.setting.agreement), fresh.setting.agreement)


def test_a_client_answers_nothing_before_the_verdict():
    client = SiteClient(verdict=None)
    client.join()
    (action,) = client.weights()
    assert isinstance(action, Disconnect)
    assert "before the dealers were checked" in action.reason


def test_a_client_keeps_the_verdict_before_it_answers_and_takes_no_other():
    client = SiteClient(verdict=None)
    client.join()
    (piece,) = client.hear(Check((bytes(32),) * 5))
    assert piece == CheckDealers((bytes(32),) * 5)
    found = Checked((), b"")
    assert [action.message for action in client.done(piece, found) if isinstance(action, SendToCoordinator)] == [found]
    _, keep = client.hear(Judged(Verdict((4,), ())))
    assert keep == KeepVerdict(Verdict((4,), ()))
    client.session = client.session.without((4,))
    (answer,) = client.weights()
    assert isinstance(answer, AnswerTask)
    assert client.hear(Judged(Verdict((4,), ()))) == []
    (refused,) = client.hear(Judged(Verdict()))
    assert isinstance(refused, GiveUp)


@pytest.mark.parametrize("verdict", [Verdict((0, 1, 2, 3, 4), ()), Verdict((9,), ()), Verdict((), (5,))])
def test_verdicts_that_cannot_be_end_the_connection(verdict):
    client = SiteClient(verdict=None)
    client.join()
    (action,) = client.hear(Judged(verdict))
    assert isinstance(action, Disconnect)


def test_a_sharing_with_a_verdict_that_found_something_is_not_offered_again():
    places, terms = shared()
    for found, offered in ((Verdict((1,), ()), False), (Verdict((), (1,)), False), (VERDICT, True)):
        for place in places.places:
            place.perform(KeepVerdict(found))
        assert (places.open(0).introduce().held_nonce == terms.nonce) == offered


def test_terms_say_what_is_known_of_the_dealers():
    setting = linear(2)
    parts = [bytes([i]) * 32 + coin_commitment(bytes([i]) * 32) for i in CLIENTS]
    fresh = Terms.settle([Introduction(3, part) for part in parts])
    assert fresh.checked is None
    assert replace(fresh, verdict=Verdict((1,), ())).session(setting.agreement).excluded == (1,)
    reused = Terms.settle([Introduction(3, part, b"n" * 32) for part in parts])
    assert reused.checked == Verdict()
    assert all(fresh.is_coin(i, bytes([i]) * 32) for i in CLIENTS)
    assert not fresh.is_coin(0, bytes([1]) * 32)


def test_a_task_of_a_session_with_another_verdict_is_refused():
    client = SiteClient(verdict=Verdict())
    client.join()
    other = client.session.without((2,))
    (action,) = client.hear(Weights(Task(0, client.setting.server().weights).encode(other)))
    assert isinstance(action, Disconnect)
