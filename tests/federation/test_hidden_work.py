"""A client's work in a hidden run: it follows its own chain, writes down where it stands, and nothing else leaves."""

from dataclasses import replace

import pytest
import torch

from dresfl.errors import HeadroomAlarm, MessageError, Refused
from dresfl.federation.hidden_answering import HopResult
from dresfl.federation.hidden_work import START_PURPOSE, HiddenWork
from dresfl.federation.messages import HopAnswered, Opened, Resume, Standing, Started
from dresfl.model import weights_sha256
from dresfl.protocol.hidden.answers import HopAnswer
from dresfl.protocol.hidden.archive import decode_history, encode_history
from dresfl.protocol.hidden.ledger import History
from dresfl.protocol.hidden.published import published_bytes
from dresfl.protocol.hidden.seeds import RunSeeds
from dresfl.protocol.hidden.start import start_text
from dresfl.runtimes.local.hidden import HiddenFederation

from .memory_store import KeptRun
from .setting import hidden

INDEX = 1


class Worker:
    """One client's work, beside a whole run in this process that it follows."""

    def __init__(self) -> None:
        self.setting = hidden(5, rounds=3)
        self.session = replace(self.setting.session, run=b"r" * 32)
        self.federation = HiddenFederation(self.session, self.setting.rows)
        seeds = RunSeeds.begin(self.federation.dealt[INDEX], self.session.run)
        self.run = KeptRun(0, dict(seeds.of(0)))
        self.work = self.process()

    def process(self) -> HiddenWork:
        """A new process on the same disk."""
        work = HiddenWork(self.session, INDEX, self.setting.clients[INDEX], self.setting.roster)
        work.attach(self.federation.tables[INDEX], self.run)
        return work

    def signature(self, client: int) -> bytes:
        return self.setting.clients[client].sign(START_PURPOSE, start_text(self.session.run))

    def begin(self) -> "Worker":
        self.work.start(Started(tuple((c, self.signature(c)) for c in range(5))))
        return self

    def resume(self, *, long: bool = False, empty: bool = False) -> Resume:
        position = self.federation.ledger.position
        history = b"" if empty else encode_history(self.federation.history(long=long))
        return Resume(*position.order, position.chain, history)

    def hop(self) -> Opened:
        """The run's next hop, published."""
        order = self.federation.ledger.position.order
        return Opened(*order, self.federation.play_hop().published)

    def own(self) -> bytes:
        """What this client answers in the run in one process."""
        answer = self.federation.clients[INDEX].answer()
        assert answer is not None
        return answer.encode(self.session.field)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def answer_of(result: HopResult) -> bytes:
    (message,) = result.messages
    assert isinstance(message, HopAnswered)
    return bytes(message.answer)


def standing_of(result: HopResult) -> Standing:
    (message,) = result.messages
    assert isinstance(message, Standing)
    return message


def test_it_answers_only_when_many_have_signed(worker: Worker) -> None:
    message = standing_of(worker.work.stand())
    assert message.position == worker.federation.ledger.position
    assert message.holds_check
    assert message.signature == worker.signature(INDEX)
    assert worker.work.resume(worker.resume(empty=True)).messages == ()
    with pytest.raises(MessageError, match="2 clients have signed"):
        worker.work.start(Started(((0, worker.signature(0)),)))
    forged = tuple((c, worker.signature(0)) for c in range(5))
    with pytest.raises(MessageError, match="client 1 has not signed"):
        worker.work.start(Started(forged))
    with pytest.raises(MessageError, match="does not exist"):
        worker.work.start(Started(((9, worker.signature(0)),)))
    assert worker.run.progress is None
    worker.begin()
    assert answer_of(worker.work.resume(worker.resume(empty=True))) == worker.own()


def test_where_it_stands_is_kept_before_it_answers(worker: Worker) -> None:
    worker.begin().work.resume(worker.resume(empty=True))
    for _ in range(5):
        answer = answer_of(worker.work.take((worker.hop(),)))
        assert answer == worker.own()
        assert worker.run.progress is not None
        assert worker.run.progress.position == HopAnswer.position_of(answer)
        assert worker.run.progress.check
    assert worker.run.first_round == 0


def test_it_takes_the_next_hop_and_no_other(worker: Worker) -> None:
    worker.begin().work.resume(worker.resume(empty=True))
    first, second, third = (worker.hop() for _ in range(3))
    worker.work.take((first,))
    assert worker.work.take((first,)).messages == ()  # it knows that one
    before = worker.work.client.ledger.position
    assert standing_of(worker.work.take((third,))).position == before
    assert answer_of(worker.work.take((first, second, third))) == worker.own()  # only the last one is answered


def test_a_new_process_gives_the_same_answer(worker: Worker) -> None:
    worker.begin().work.resume(worker.resume(empty=True))
    hops = [worker.hop() for _ in range(4)]
    answer = answer_of(worker.work.take(tuple(hops)))
    assert worker.run.progress is not None
    again = worker.process()
    message = standing_of(again.stand())
    assert (message.position, message.behind, message.holds_check) == (worker.run.progress.position, True, True)
    assert answer_of(again.resume(worker.resume())) == answer
    again = worker.process()
    assert standing_of(again.take((worker.hop(),))).behind  # not before it has caught up
    with pytest.raises(MessageError, match="not where the coordinator says"):
        again.resume(worker.resume(empty=True))
    follow = answer_of(again.resume(worker.resume(long=True)))
    assert follow == worker.own() != answer


def test_it_never_goes_back(worker: Worker) -> None:
    worker.begin().work.resume(worker.resume(empty=True))
    old = worker.resume()
    worker.work.take((worker.hop(), worker.hop(), worker.hop()))
    with pytest.raises(Refused, match="go back"):
        worker.process().resume(old)


def test_a_false_history_is_forgotten_with_its_error(worker: Worker) -> None:
    worker.begin().work.resume(worker.resume(empty=True))
    for _ in range(6):
        worker.hop()
    true = worker.resume()
    history = decode_history(true.history)
    false = encode_history(History(history.weights, history.after, (*history.hops, b"\xff" * 30)))
    with pytest.raises(MessageError):
        worker.work.resume(replace(true, history=false))
    assert worker.work.resume(true).messages == () or answer_of(worker.work.resume(true)) == worker.own()


def test_a_disk_that_went_on_without_it(worker: Worker) -> None:
    """Two processes on one folder, one after the other: what is in memory counts only if the disk says the same."""
    worker.begin().work.resume(worker.resume(empty=True))
    other = worker.process()
    hop = worker.hop()
    other.resume(worker.resume(long=True))
    worker.work.attach(worker.federation.tables[INDEX], worker.run)
    assert standing_of(worker.work.take((hop,))).behind


def test_the_end(worker: Worker) -> None:
    worker.begin().work.resume(worker.resume(empty=True))
    while not worker.federation.ledger.final:
        assert worker.run.models == 0
        result = worker.work.take((worker.hop(),))
    assert worker.run.models == 1  # counted before the answer leaves that a model comes of
    result = worker.work.take((worker.hop(),))
    assert result.ended
    assert result.final is not None
    assert worker.federation.model is not None
    assert weights_sha256(result.final.weights) == weights_sha256(worker.federation.model)
    assert result.final.round_number == 3
    worker.run.end()
    assert worker.process().stand().ended


def test_a_value_out_of_range_stops_it_for_good(worker: Worker) -> None:
    worker.begin().work.resume(worker.resume(empty=True))
    field, hop = worker.session.field, worker.federation.ledger.current
    size = published_bytes(worker.session, hop) // len(field.moduli) // field.residue_bytes
    half = field.pack(torch.stack([torch.full((1, size), p // 2, dtype=field.dtype) for p in field.moduli]))
    with pytest.raises(HeadroomAlarm):
        worker.work.take((Opened(0, 0, half),))
    assert worker.run.progress is not None
    assert worker.run.progress.stopped
    with pytest.raises(Refused, match="left the run for good"):
        worker.work.stand()
