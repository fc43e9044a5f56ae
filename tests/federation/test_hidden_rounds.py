"""The coordinator's hops, one event at a time: who is helped and how, what is published and what is not."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dresfl.errors import HeadroomAlarm, IdentityError, MessageError, Refused, UsageError
from dresfl.federation import Coordinator, CoordinatorSettings, RoundTiming, Terms
from dresfl.federation.actions import Action, Finish, Log, Record, Send, StoreBroadcast
from dresfl.federation.coordinator_state import Counters
from dresfl.federation.hidden_rounds import HiddenRounds
from dresfl.federation.hidden_work import START_PURPOSE
from dresfl.federation.messages import Alarm, HopAnswered, Opened, Resume, Standing, Started
from dresfl.federation.rounds import Attendance
from dresfl.federation.terms import HiddenTerms
from dresfl.model import weights_sha256
from dresfl.protocol.hidden.archive import decode_history
from dresfl.protocol.hidden.client import HiddenClient
from dresfl.protocol.hidden.start import start_text
from dresfl.runtimes.local.hidden import HiddenFederation

from .setting import Setting, hidden

DEADLINE = 10.0


class Hops:
    """Clients in this process, and a coordinator's rounds. What it sends is delivered when the test says so."""

    def __init__(self, setting: Setting | None = None) -> None:
        self.setting = setting or hidden(5, rounds=4)
        self.session = replace(self.setting.session, run=b"r" * 32)
        self.federation = HiddenFederation(self.session, self.setting.rows)
        self.clients: dict[int, HiddenClient] = dict(enumerate(self.federation.clients))
        self.now = 0.0
        self.stored: list[StoreBroadcast] = []
        self.kept: list[Any] = []
        self.actions: list[Action] = []
        self.attendance = Attendance(self.setting.roster, lambda: sorted(self.clients))
        self.counters = Counters()
        self.start()

    def start(self) -> None:
        keep = lambda what: self.kept.append(what) or Log("kept")  # noqa: E731
        self.rounds = HiddenRounds(
            self.session,
            RoundTiming(deadline=DEADLINE),
            self.attendance,
            self.setting.roster,
            self.counters,
            self.stored,
            keep_starts=keep,
            keep_alarm=keep,
        )

    def take(self, actions: list[Action]) -> list[Action]:
        self.actions += actions
        self.stored += [action for action in actions if isinstance(action, StoreBroadcast)]
        return actions

    def standing(self, client: int, **changes: Any) -> Standing:
        own, signer = self.clients[client], self.setting.clients[client]
        signature = signer.sign(START_PURPOSE, start_text(self.session.run))
        message = Standing.at(own.ledger.position, signature, holds_check=own.holds_check, behind=own.behind)
        return replace(message, **changes)

    def stand(self, clients: Iterable[int]) -> list[Action]:
        return [
            action
            for client in clients
            for action in self.take(self.rounds.received(client, self.standing(client), self.now))
        ]

    def answer(self, clients: Iterable[int]) -> list[Action]:
        """These clients answer, until the hop is published; everybody in `clients` of this table hears of it."""
        for client in clients:
            answer = self.clients[client].answer()
            assert answer is not None
            actions = self.send(client, HopAnswered(answer.encode(self.session.field)))
            if any(isinstance(action, StoreBroadcast) for action in actions):
                return actions
        return []

    def send(self, client: int, message: Any) -> list[Action]:
        return self.take(self.rounds.received(client, message, self.now))

    def deliver(self, actions: list[Action], but: Iterable[int] = ()) -> None:
        for action in actions:
            if isinstance(action, Send) and action.client not in but and isinstance(action.message, Opened):
                self.clients[action.client].receive(action.message.published)

    def play(self, clients: Iterable[int], hops: int) -> None:
        """So many hops, with these clients, who hear of everything."""
        for _ in range(hops):
            self.deliver(self.answer(clients))

    def sent(self, kind: type, actions: list[Action] | None = None) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for action in self.actions if actions is None else actions:
            if isinstance(action, Send) and isinstance(action.message, kind):
                found.setdefault(action.client, []).append(action.message)
        return found


@pytest.fixture
def hops() -> Hops:
    table = Hops()
    table.stand(range(5))
    return table


def num_hops(table: Hops, rounds: int) -> int:
    return sum(len(table.session.hidden_plan.hops(number)) for number in range(rounds))


def test_a_run_begins_when_enough_have_signed_and_stand() -> None:
    table = Hops()
    assert not table.sent(Resume, table.stand(range(3)))
    assert table.rounds.wake_at is None
    actions = table.stand([3])
    assert set(table.sent(Resume, actions)) == set(table.sent(Started, actions)) == {0, 1, 2, 3}
    assert table.kept == [tuple((i, table.standing(i).signature) for i in range(4))]
    assert table.rounds.wake_at == DEADLINE
    with pytest.raises(IdentityError):
        table.send(4, table.standing(4, signature=table.standing(3).signature))
    assert set(table.sent(Started, table.stand([4]))) == {4}


def test_hops_are_stored_and_then_sent_and_the_model_is_that_of_one_process(hops: Hops) -> None:
    while not hops.rounds.done:
        actions = hops.answer(range(5))
        kinds = [type(action) for action in actions]
        assert kinds.index(StoreBroadcast) < kinds.index(Send)
        hops.deliver(actions)
    models = {weights_sha256(client.model) for client in hops.clients.values() if client.model is not None}
    assert hops.rounds.model is not None
    assert models == {weights_sha256(hops.rounds.model)}
    records = [action.record.round_number for action in hops.actions if isinstance(action, Record)]
    assert records == [0, 1, 2, 3]


def test_a_restart_goes_on_where_the_disk_left_it(hops: Hops) -> None:
    everything = num_hops(hops, 4) + 1
    for number in range(everything):
        hops.play(range(5), 1)
        kept = [hop for hop in hops.stored if hop.round_number > hops.stored[-1].round_number - 4]
        before, hops.stored = hops.rounds._ledger, kept
        hops.start()
        assert hops.rounds._ledger.position == before.position
        assert (hops.rounds._ledger.final, hops.rounds._ledger.losses) == (before.final, before.losses)
        assert hops.rounds.done == (number == everything - 1)
        hops.stand(range(5))
    assert hops.rounds.model is not None


def test_a_client_that_was_away_for_long_gets_little(hops: Hops) -> None:
    """The last two weight broadcasts and this round's hops: it answers from its first whole hop on."""
    table = Hops(hidden(5, rounds=60))
    table.stand(range(5))
    table.rounds.left(4, 0.0)
    away = table.clients.pop(4)
    table.play(range(4), num_hops(table, 50) + 1)
    table.clients[4] = away
    (message,) = table.sent(Resume, table.stand([4]))[4]
    plan, field = table.session.hidden_plan, table.session.field
    later = plan.hops(50)
    values = 2 * next(hop.count for hop in later if hop.moves_weights) + later[0].count
    assert len(message.history) <= values * len(field.moduli) * 3 + 500
    away.catch_up(decode_history(message.history))
    assert away.ledger.position == message.position == table.rounds._ledger.position
    table.deliver(table.answer((1, 2, 3, 4)))
    assert 4 in table.counters.last_answered


def test_at_the_start_of_a_round_it_is_silent_and_replays_the_last_one_if_it_must(hops: Hops) -> None:
    first = num_hops(hops, 2)
    hops.play(range(5), first)
    assert hops.rounds._ledger.hop == 0
    for client in (2, 3):  # processes that were lost, without what they had kept
        hops.rounds.left(client, 0.0)
        hops.clients[client] = hops.federation.new_client(client)
    (short,) = hops.sent(Resume, hops.stand([2]))[2]
    hops.clients[2].catch_up(decode_history(short.history))
    assert hops.clients[2].answer() is None
    hops.stand([3])
    (last,) = hops.sent(Resume)[3][-1:]  # everybody is there, and three of four cannot do
    hops.clients[3].catch_up(decode_history(last.history))
    assert hops.clients[3].answer() is not None
    (again,) = hops.sent(Resume)[2][-1:]
    assert len(again.history) > len(short.history)
    hops.clients[2].catch_up(decode_history(again.history))
    hops.play((0, 2, 3, 4), 3)
    assert hops.counters.shortages == 0


def test_the_last_round_is_sent_after_a_shortage(hops: Hops) -> None:
    """Somebody is missing who might still come with its check value: the others wait for the deadline."""
    hops.play(range(5), num_hops(hops, 2))
    for client in (2, 3, 4):
        hops.rounds.left(client, 0.0)
        hops.clients[client] = hops.federation.new_client(client)
    hops.stand([2, 3])
    before = {client: len(found) for client, found in hops.sent(Resume).items()}
    assert hops.rounds.wake_at is not None
    actions = hops.take(hops.rounds.tick(hops.rounds.wake_at))
    assert hops.counters.shortages == 1
    assert {2, 3} <= set(hops.sent(Resume, actions))
    assert before[2] == before[3] == 2  # the first one at the beginning of the run
    for client in (2, 3):
        hops.clients[client].catch_up(decode_history(hops.sent(Resume, actions)[client][0].history))
    hops.play((0, 1, 2, 3), 2)


def test_a_short_cut_for_a_client_that_missed_one_hop(hops: Hops) -> None:
    hops.play(range(5), 3)
    hops.rounds.left(4, 0.0)
    missed = hops.clients.pop(4)
    hops.play(range(4), 1)
    hops.clients[4] = missed
    actions = hops.stand([4])
    assert not hops.sent(Resume, actions)
    assert len(hops.sent(Opened, actions)[4]) == 1
    hops.deliver(actions)
    hops.play((1, 2, 3, 4), 2)


def test_a_client_that_answers_nothing_is_not_sent_everything(hops: Hops) -> None:
    """After two rounds it is left alone; what it answers late brings it back."""
    table = Hops(hidden(5, rounds=12))
    table.stand(range(5))
    slow = table.clients[4]
    for _ in range(num_hops(table, 8)):
        table.deliver(table.answer(range(4)), but=(4,))
    sent = table.sent(Opened)[4]
    assert len(sent) <= 2 * len(table.session.hidden_plan.hops(1)) + 1
    for opened in sent:
        slow.receive(opened.published)
    answer = slow.answer()
    assert answer is not None
    actions = table.send(4, HopAnswered(answer.encode(table.session.field)))
    assert table.counters.late == 1
    (message,) = table.sent(Resume, actions)[4]
    slow.catch_up(decode_history(message.history))
    table.deliver(table.answer((0, 1, 2, 3)), but=())
    table.play((1, 2, 3, 4), 2)


def bent(table: Hops, client: int) -> HopAnswered:
    """An answer with one residue that is another."""
    answer = table.clients[client].answer()
    assert answer is not None
    assert isinstance(answer.residues, torch.Tensor)
    residues = answer.residues.clone()
    residues[0, 0] = (residues[0, 0] + 1) % 1000
    return HopAnswered(replace(answer, residues=residues).encode(table.session.field))


def test_a_false_answer_is_not_published_and_its_sender_is_dropped(hops: Hops) -> None:
    hops.play(range(5), 1)
    hops.send(1, bent(hops, 1))
    assert not hops.answer((0, 2, 3))
    actions = hops.answer([4])
    hops.deliver(actions, but=(1,))
    assert set(hops.attendance.dropped) == {1}
    assert set(hops.sent(Opened, actions)) == {0, 2, 3, 4}
    hops.play((0, 2, 3, 4), 2)


def test_answers_that_do_not_agree_end_the_run_for_good(hops: Hops) -> None:
    hops.play(range(5), 1)
    stored, others = len(hops.stored), (0, 3, 4)
    for client in (1, 2):
        hops.send(client, bent(hops, client))
    hops.answer(others)
    actions = hops.actions
    (finish,) = [action for action in actions if isinstance(action, Finish)]
    assert isinstance(finish.error, HeadroomAlarm)
    assert set(hops.sent(Alarm, actions)) == set(range(5))
    assert "do not agree" in hops.kept[-1]
    assert len(hops.stored) == stored
    kept = actions.index(Log("kept"), 1)
    told = [place for place, a in enumerate(actions) if isinstance(a, Send) and isinstance(a.message, Alarm)]
    assert kept < min(told)  # it is on the disk before anybody hears of it


def test_no_run_goes_on_after_an_alarm() -> None:
    setting = hidden(5, rounds=4)
    rows = tuple(len(inputs) for inputs, _ in setting.rows)
    terms = Terms(bytes(32), bytes(16), bytes(16), rows, (bytes(64),) * 5, hidden=HiddenTerms(alarm="it was bent"))
    kept = Terms.from_json(terms.to_json(setting.agreement), setting.agreement)
    assert kept.hidden.alarm == "it was bent"
    machine = Coordinator(
        CoordinatorSettings(), setting.agreement, setting.coordinator, setting.roster, setting.server, kept
    )
    (finish,) = [action for action in machine.start(0.0) if isinstance(action, Finish)]
    assert "it was bent" in str(finish.error)
    assert machine.ended


def test_another_course_of_the_run_counts_as_absent(hops: Hops) -> None:
    hops.play(range(5), 1)
    answer = hops.clients[0].answer()
    assert answer is not None
    other = replace(answer, position=replace(answer.position, chain=b"x" * 32))
    actions = hops.send(0, HopAnswered(other.encode(hops.session.field)))
    assert [action.event for action in actions if isinstance(action, Log)] == ["another course"]
    assert not hops.answer((1, 2, 3))
    assert hops.answer([4])


def test_a_client_that_is_further_is_refused(hops: Hops) -> None:
    hops.play(range(5), 2)
    with pytest.raises(Refused, match="further"):
        hops.send(0, hops.standing(0, hop=hops.standing(0).hop + 1))
    with pytest.raises(Refused, match="another course"):
        hops.send(0, hops.standing(0, chain=b"x" * 32))
    answer = hops.clients[0].answer()
    assert answer is not None
    ahead = replace(answer, position=replace(answer.position, round_number=3))
    with pytest.raises(MessageError, match="is the next one"):
        hops.send(0, HopAnswered(ahead.encode(hops.session.field)))


def test_histories_are_not_for_the_asking(hops: Hops) -> None:
    for _ in range(7):
        hops.send(0, hops.standing(0))
    with pytest.raises(MessageError, match="again and again"):
        hops.send(0, hops.standing(0))


def test_a_hidden_round_is_not_skipped() -> None:
    setting, timing = hidden(5, rounds=4), RoundTiming(on_shortage="skip")
    with pytest.raises(UsageError, match="cannot be skipped"):
        Coordinator(CoordinatorSettings(timing), setting.agreement, setting.coordinator, setting.roster, setting.server)
