"""A client's work: joining, dealing, keeping, answering, over a store that outlives the process."""

from dataclasses import replace

import pytest

from dresfl.errors import MessageError, Refused
from dresfl.federation import NO_NONCE, Terms, Workplace, sharing_nonce
from dresfl.federation.actions import AnswerTask, CheckDealers, Deal, Flush, Join, Keep, KeepModel, KeepVerdict
from dresfl.federation.checking import Checking
from dresfl.federation.sealed_slices import missing_slices
from dresfl.federation.site import Membership
from dresfl.protocol import Answer, Task, Verdict, num_slices

from .memory_store import Disk, MemoryStore
from .setting import linear

CLIENTS = range(5)


class Places:
    """Everybody's workplace, and the disks they work on."""

    def __init__(self):
        self.setting = linear(2)
        self.disks = [Disk(bytes([client + 1]) * 32) for client in CLIENTS]
        self.kept = []
        self.places = [self.open(client) for client in CLIENTS]

    def open(self, client, change=0):
        """A new process of a client."""
        inputs, targets = self.setting.rows[client]
        rows = inputs + change, targets
        identity, agreement = self.setting.clients[client], self.setting.agreement
        store = MemoryStore(self.disks[client], rows, self.disks[client].fresh_salt)
        return Workplace(agreement, identity, self.setting.roster, store, lambda: rows, keep_model=self.kept.append)

    def terms(self):
        return Terms.settle([place.introduce() for place in self.places])

    def share(self, terms):
        """Every client joins and gets all its slices."""
        joined = [place.perform(Join(terms)) for place in self.places]
        for receiver, member in enumerate(joined):
            for dealer, numbers in enumerate(member.missing):
                for number in numbers:
                    sealed = self.places[dealer].perform(Deal(receiver, number))
                    assert self.places[receiver].perform(Keep(dealer, number, sealed)) is None
            assert self.places[receiver].perform(Flush()) is None
        return joined[0].session

    def check(self, terms):
        """The dealers are checked, and everybody keeps the verdict."""
        coins = tuple(place._store.coin(terms.contributions[i]) for i, place in enumerate(self.places))
        checking = Checking(terms, terms.session(self.setting.agreement))
        for i, coin in enumerate(coins):
            checking.ready(i, coin)
        checking.begin(range(len(coins)))
        for i, place in enumerate(self.places):
            message = place.perform(CheckDealers(coins))
            checking.checked(i, message.hashes, message.values)
        verdict = checking.verdict()
        for place in self.places:
            assert place.perform(KeepVerdict(verdict)) is None
        return verdict


@pytest.fixture
def all_places():
    return Places()


def test_a_new_client_holds_nothing_and_keeps_its_own_share_when_it_joins(all_places):
    introduction = all_places.places[2].introduce()
    assert (introduction.rows, introduction.held_nonce) == (len(all_places.setting.rows[2][0]), NO_NONCE)
    member = all_places.places[2].perform(Join(all_places.terms()))
    assert isinstance(member, Membership)
    counts = [num_slices(member.session, dealer) for dealer in CLIENTS]
    assert [len(numbers) for numbers in member.missing] == [0 if dealer == 2 else counts[dealer] for dealer in CLIENTS]


def test_answers_decode_to_the_right_weights(all_places):
    session = all_places.share(all_places.terms())
    server = all_places.setting.server(session)
    while not server.done:
        task = server.task()
        for place in all_places.places[2:]:
            server.receive(Answer.decode(place.perform(AnswerTask(task)), session))
    server_state = server.state()["weights"]
    expected = all_places.setting._state_after((True, True))["weights"]
    assert server_state.tolist() == expected.tolist()


def test_what_is_flushed_survives_the_process(all_places):
    terms = all_places.terms()
    session = all_places.share(terms)
    assert all_places.open(3).introduce().held_nonce == NO_NONCE  # its dealers were not checked
    assert all_places.check(terms) == Verdict()
    place = all_places.open(3)
    assert place.introduce().held_nonce == terms.nonce
    assert not any(place.perform(Join(terms)).missing)
    assert Answer.decode(place.perform(AnswerTask(Task(0, all_places.setting.server().weights))), session).client == 3


def test_what_is_not_flushed_is_lacking_after_the_process(all_places):
    terms = all_places.terms()
    for place in all_places.places:
        place.perform(Join(terms))
    sealed = all_places.places[0].perform(Deal(3, 0))
    all_places.places[3].perform(Keep(0, 0, sealed))
    assert 0 in all_places.open(3).perform(Join(terms)).missing[0]
    all_places.places[3].perform(Flush())
    assert 0 not in all_places.open(3).perform(Join(terms)).missing[0]


def test_damage_is_told_and_only_what_is_damaged_is_lacking(all_places):
    terms = all_places.terms()
    all_places.share(terms)
    (kept,) = all_places.disks[3].sharings.values()
    kept.damaged.add((0, 0))
    member = all_places.open(3).perform(Join(terms))
    assert member.damage == ("slice 0 of dealer 0 is damaged",)
    assert [numbers for numbers in member.missing if numbers] == [{0}]


def test_a_round_is_answered_for_one_set_of_weights_whatever_the_process(all_places):
    terms = all_places.terms()
    all_places.share(terms)
    weights = all_places.setting.server().weights
    first = all_places.places[3].perform(AnswerTask(Task(0, weights)))
    place = all_places.open(3)
    place.perform(Join(terms))
    assert place.perform(AnswerTask(Task(0, weights))) == first
    refused = place.perform(AnswerTask(Task(0, weights + 1)))
    assert isinstance(refused, MessageError)
    assert "other weights" in str(refused)


def test_nothing_is_answered_before_all_shares_are_there(all_places):
    terms = all_places.terms()
    for place in all_places.places:
        place.perform(Join(terms))
    result = all_places.places[0].perform(AnswerTask(Task(0, all_places.setting.server().weights)))
    assert "lacks" in str(result)


def test_terms_of_others(all_places):
    terms = all_places.terms()
    place = all_places.places[1]
    stolen = replace(terms, contributions=(*terms.contributions[:1], b"z" * 64, *terms.contributions[2:]))
    for wrong in (
        stolen,
        replace(terms, nonce=b"n" * 32),
        replace(terms, rows=(*terms.rows[:1], 99, *terms.rows[2:])),
        Terms(terms.nonce, terms.run_nonce, terms.own_bytes, terms.rows[:1], terms.contributions[:1]),
    ):
        result = place.perform(Join(wrong))
        assert isinstance(result, Refused)
    result = all_places.open(1, change=1).perform(Join(terms))  # this client has other rows
    assert "did not join" in str(result)


def test_slices_at_another_place_are_refused(all_places):
    terms = all_places.terms()
    for place in all_places.places:
        place.perform(Join(terms))
    sealed = all_places.places[0].perform(Deal(3, 0))
    receiver = all_places.places[3]
    for work in (Keep(1, 0, sealed), Keep(0, 1, sealed), Keep(9, 0, sealed), Keep(0, 0, sealed[:-1]), Keep(0, 0, b"")):
        assert isinstance(receiver.perform(work), MessageError)
    for work in (Deal(9, 0), Deal(0, 0), Deal(3, 99)):
        assert isinstance(all_places.places[0].perform(work), MessageError)


def test_work_before_joining(all_places):
    for work in (Deal(1, 0), Keep(1, 0, b""), Flush(), AnswerTask(Task(0, all_places.setting.server().weights))):
        result = all_places.places[0].perform(work)
        assert isinstance(result, MessageError)
        assert "has not joined" in str(result)


def test_another_run_on_the_same_sharing(all_places):
    terms = all_places.terms()
    first = all_places.share(terms)
    all_places.check(terms)
    again = all_places.terms()
    assert not again.fresh
    member = all_places.places[2].perform(Join(again))
    assert member.session.sharing_id == first.sharing_id
    assert not any(member.missing)
    weights = all_places.setting.server().weights
    assert isinstance(all_places.places[2].perform(AnswerTask(Task(0, weights + 1))), bytes)  # its own rounds


def test_a_new_sharing_after_another(all_places):
    """The workplace deals for the session that it joined last."""
    all_places.share(all_places.terms())
    for disk in all_places.disks[:1]:
        disk.sharings.clear()
    all_places.places[0] = all_places.open(0)
    terms = all_places.terms()
    assert terms.fresh
    session = all_places.share(terms)
    _, table = all_places.places[4]._member
    assert not any(missing_slices(session, dealer, table) for dealer in CLIENTS)


def test_a_coin_that_was_shown_serves_no_second_sharing(all_places):
    """A dealer that knows all coins before it deals could pass its check, whatever it deals."""
    first = all_places.terms()
    all_places.share(first)
    own = bytes(range(16))
    second = replace(first, own_bytes=own, nonce=sharing_nonce(own, first.contributions))
    assert second.fresh
    found = all_places.places[2].perform(Join(second))
    assert isinstance(found, Refused)
    assert "served another sharing" in str(found)
    assert isinstance(all_places.places[2].perform(Join(first)), Membership), "who comes back goes on"


def test_the_model_is_kept(all_places):
    final = Task(2, all_places.setting.server().weights)
    assert all_places.places[0].perform(KeepModel(final)) is None
    assert all_places.kept == [final]
