"""A client: what it refuses, what it keeps, and what the coordinator gets to see of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from consortium import Consortium
from dresfl.errors import DataError
from dresfl.federation import NO_CHALLENGE, Rows, Terms, make_session
from dresfl.federation.enrolment import signed_begin
from dresfl.federation.messages import (
    FROM_CLIENT,
    Ack,
    Answered,
    Declined,
    Done,
    Hello,
    Holding,
    Informed,
    Judged,
    Message,
    Ready,
    Relayed,
    Slice,
    Weights,
    decode,
)
from dresfl.federation.messages import Request as SliceRequest
from dresfl.protocol import Client, MemoryTable, Task, Verdict
from dresfl.runtimes.flower_runtime.bundles import Reply, Request
from dresfl.runtimes.flower_runtime.client import FlowerClient
from dresfl.sealing import Identity
from dresfl.storage import ShareStore, data_digest
from dresfl.storage.share_table import DiskTable

from .wire import Run, Wire, client_of, silent


@pytest.fixture
def consortium(tmp_path: Path) -> Consortium:
    return Consortium(tmp_path, clients=7, rounds=6)


def ask(
    consortium: Consortium,
    index: int,
    *messages: Message,
    terms: Terms | None = None,
    signer: Identity | None = None,
    client: FlowerClient | None = None,
) -> Reply:
    request = Request(tuple(message.encode() for message in messages), terms)
    data = request.encode(signer or consortium.coordinator, consortium.roster)
    reply = (client or client_of(consortium, index)).handle(data)
    return Reply.decode(reply, consortium.roster, data, 2**24)


def said(reply: Reply) -> list[Message]:
    assert reply.refusal is None, reply.refusal
    return [decode(data, FROM_CLIENT) for data in reply.messages]


def terms_of(consortium: Consortium) -> Terms:
    hellos = [said(ask(consortium, i))[0] for i in range(consortium.clients)]
    return Terms.settle([hello.introduction for hello in hellos if isinstance(hello, Hello)])


def begin(consortium: Consortium, index: int, terms: Terms) -> Message:
    return signed_begin(consortium.coordinator, consortium.roster, index, NO_CHALLENGE, terms)


def refusal(reply: Reply) -> str:
    assert reply.refusal is not None
    assert not reply.messages
    return reply.refusal


def first_task(consortium: Consortium, terms: Terms) -> Weights:
    session = terms.session(consortium.agreement)
    return Weights(Task(0, session.network.initial_weights(session.stream)).encode(session))


def test_an_empty_bundle_is_answered_with_a_hello(consortium: Consortium) -> None:
    (hello,) = said(ask(consortium, 2))
    assert isinstance(hello, Hello)
    assert hello.agreement == consortium.agreement.encode()
    assert hello.introduction.rows == len(consortium.rows[2][0])


def test_begin_is_answered_with_what_it_holds(consortium: Consortium) -> None:
    """A client that has joined holds its own share, and lacks all others."""
    terms = terms_of(consortium)
    holdings = said(ask(consortium, 2, begin(consortium, 2, terms)))
    assert [(h.dealer, h.held) for h in holdings if isinstance(h, Holding)] == [(i, int(i == 2)) for i in range(7)]


def test_requests_are_dealt_within_the_bundle_of_begin_or_later(consortium: Consortium) -> None:
    terms = terms_of(consortium)
    together = said(ask(consortium, 2, begin(consortium, 2, terms), SliceRequest(3, 0)))
    later = said(ask(consortium, 2, SliceRequest(3, 0), SliceRequest(5, 0), terms=terms))
    assert [(s.peer, s.number) for s in (*together, *later) if isinstance(s, Slice)] == [(3, 0), (3, 0), (5, 0)]


def test_ready_is_said_when_the_last_slice_is_on_the_disk(consortium: Consortium) -> None:
    """Each bundle meets a new process, and none of them takes what it has not looked at for complete."""
    terms = terms_of(consortium)
    for i in range(consortium.clients):
        said(ask(consortium, i, begin(consortium, i, terms)))
    dealers = [i for i in range(consortium.clients) if i != 2]
    for dealer in dealers:
        (dealt,) = said(ask(consortium, dealer, SliceRequest(2, 0), terms=terms))
        assert isinstance(dealt, Slice)
        replies = said(ask(consortium, 2, Relayed(dealer, 0, dealt.sealed), terms=terms))
        assert replies[0] == Ack(dealer, 0)
        assert [type(message) for message in replies[1:]] == ([Ready] if dealer == dealers[-1] else [])


def test_stranger_is_refused(consortium: Consortium) -> None:
    assert "not signed by coordinator" in refusal(ask(consortium, 0, signer=Identity.create("mallory")))


def test_begin_for_another_client_is_refused(consortium: Consortium) -> None:
    terms = terms_of(consortium)
    refusal(ask(consortium, 0, begin(consortium, 1, terms)))


def test_what_comes_before_begin_is_refused(consortium: Consortium) -> None:
    assert "before Begin" in refusal(ask(consortium, 0, SliceRequest(1, 0)))


def test_terms_without_this_client_are_refused(consortium: Consortium) -> None:
    terms = terms_of(consortium)
    forged = replace(terms, contributions=(bytes(32), *terms.contributions[1:]))
    assert "did not join" in refusal(ask(consortium, 0, begin(consortium, 0, forged)))
    for message in (SliceRequest(1, 0), first_task(consortium, terms), Done(b"")):
        assert "did not join" in refusal(ask(consortium, 0, message, terms=forged))


def test_no_answer_without_all_shares(consortium: Consortium) -> None:
    terms = terms_of(consortium)
    said(ask(consortium, 0, begin(consortium, 0, terms)))
    events: list[dict[str, object]] = []
    client = FlowerClient(
        consortium.agreement,
        consortium.clients_keys[0],
        consortium.roster,
        consortium.folder / "store-0",
        lambda: consortium.rows[0],
        lambda event, **fields: events.append({"event": event, **fields}),
    )
    early = ask(consortium, 0, first_task(consortium, terms), terms=terms, client=client)
    assert "before the dealers were checked" in refusal(early)
    judged = Judged(Verdict())
    (declined,) = said(ask(consortium, 0, judged, first_task(consortium, terms), terms=terms, client=client))
    assert isinstance(declined, Declined)
    assert [e["event"] for e in events] == ["refused", "dealers checked", "task refused"]
    assert "lacks shares" in str(events[-1]["reason"])


@pytest.fixture
def finished(consortium: Consortium) -> tuple[Consortium, Terms, Run]:
    run = Run(consortium)
    run.play(Wire(consortium))
    terms = Terms.from_json((consortium.folder / "run" / "terms.json").read_bytes(), consortium.agreement)
    return consortium, terms, run


def test_one_set_of_weights_for_a_round_across_processes(finished: tuple[Consortium, Terms, Run]) -> None:
    """Every bundle meets a new client here, as it meets a new process with Flower."""
    consortium, terms, run = finished
    training = run.host.machine.training
    assert training is not None
    other = Weights(Task(0, training.weights).encode(training.session))
    assert said(ask(consortium, 0, other, terms=terms)) == [Declined(0, "round 0 was answered for other weights")]
    (answer,) = said(ask(consortium, 0, first_task(consortium, terms), terms=terms))
    assert isinstance(answer, Answered)


def test_a_round_reads_neither_rows_nor_all_shares(
    finished: tuple[Consortium, Terms, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    consortium, terms, run = finished
    training = run.host.machine.training
    assert training is not None
    looked: list[int] = []
    sound: Callable[[DiskTable, int], bool] = DiskTable._sound

    def counted(table: DiskTable, place: int) -> bool:
        looked.append(table._dealer_of(place)[0])
        return sound(table, place)

    def no_rows() -> Rows:
        raise DataError("the rows are not there")

    monkeypatch.setattr(DiskTable, "_sound", counted)
    folder, identity = consortium.folder / "store-0", consortium.clients_keys[0]
    client = FlowerClient(consortium.agreement, identity, consortium.roster, folder, no_rows, silent)
    (answer,) = said(ask(consortium, 0, first_task(consortium, terms), terms=terms, client=client))
    assert isinstance(answer, Answered)
    used = {int(dealer) for dealer in training.session.batch_rows(0).dealers}
    assert set(looked) == used
    final = Task(consortium.rounds, training.weights).encode(training.session)
    assert said(ask(consortium, 0, Done(final), terms=terms, client=client)) == [Informed(consortium.rounds)]
    assert "DataError" in refusal(ask(consortium, 0, client=client))


def test_changed_rows_are_not_dealt(finished: tuple[Consortium, Terms, Run]) -> None:
    """The same masks never hide different rows, although a bundle with terms trusts the digest that was noted."""
    consortium, terms, _ = finished
    inputs, targets = consortium.rows[0]
    consortium.rows[0] = inputs + torch.ones_like(inputs), targets
    assert "rows have changed" in refusal(ask(consortium, 0, SliceRequest(1, 0), terms=terms))
    assert "did not join" in refusal(ask(consortium, 0, begin(consortium, 0, terms)))


def test_damaged_shares_are_found_and_reported(finished: tuple[Consortium, Terms, Run]) -> None:
    """A round refuses without saying what is on the disk; the next Begin says what is lacking."""
    consortium, terms, _ = finished
    for path in (consortium.folder / "store-2").glob("*/*.rows"):
        path.write_bytes(bytes(path.stat().st_size))
    assert refusal(ask(consortium, 2, first_task(consortium, terms), terms=terms)).startswith("StoreError: see the log")
    holdings = said(ask(consortium, 2, begin(consortium, 2, terms)))
    assert [h.held for h in holdings if isinstance(h, Holding)] == [int(i == 2) for i in range(7)]


def test_a_note_that_is_damaged_is_made_again(finished: tuple[Consortium, Terms, Run]) -> None:
    consortium, terms, _ = finished
    note = consortium.folder / "store-0" / "flower.json"
    whole = note.read_bytes()
    note.write_bytes(whole[:-2] + b"x\n")
    assert len(said(ask(consortium, 0, first_task(consortium, terms), terms=terms))) == 1
    assert note.read_bytes() == whole


def test_own_slice_is_dealt_to_nobody(consortium: Consortium) -> None:
    assert "cannot be" in refusal(ask(consortium, 3, SliceRequest(3, 0), terms=terms_of(consortium)))


def test_paths_stay_at_home(consortium: Consortium) -> None:
    """Of an error of a client's own disk the coordinator hears only the name."""
    (consortium.folder / "store-0").write_text("a file where the store should be")
    assert refusal(ask(consortium, 0)) == "StoreError: see the log of this client"


def test_no_share_in_the_clear(consortium: Consortium) -> None:
    """Everything that goes over the wire, searched for every share that was dealt."""
    wire = Wire(consortium)
    session = Run(consortium).play(wire).session
    seen = b"".join(wire.seen)
    found = 0
    for dealer in range(consortium.clients):
        with store_of(consortium, dealer) as store:
            client = Client(session, dealer, store.secret(session), *consortium.rows[dealer], MemoryTable(session))
            for share in client.deal_to(range(consortium.clients)):
                for row in range(share.residues.shape[1]):
                    found += 1
                    packed = session.field.pack(share.residues[:, row : row + 1])
                    assert packed[: session.row_width * session.field.residue_bytes] not in seen  # of one channel
    assert found > 100


def test_lost_shares_are_dealt_again(consortium: Consortium) -> None:
    Run(consortium).play(Wire(consortium))
    for path in (consortium.folder / "store-2").glob("*/*.rows"):
        path.write_bytes(bytes(path.stat().st_size))
    (consortium.folder / "run" / "terms.json").unlink()
    run = Run(consortium)
    session = run.play(Wire(consortium)).session
    assert run.of("terms settled")[0]["sharing"] == "reused"
    with store_of(consortium, 2) as store:
        assert store.table(session, 2)[0].complete


def store_of(consortium: Consortium, index: int) -> ShareStore:
    digest = data_digest(*consortium.rows[index])
    return ShareStore.open(consortium.folder / f"store-{index}", digest, consortium.agreement.roster)


def test_sessions_of_terms_are_those_of_the_agreement(consortium: Consortium) -> None:
    terms = terms_of(consortium)
    wanted = make_session(consortium.agreement, terms.rows, terms.nonce, terms.run_nonce)
    assert terms.session(consortium.agreement).session_id == wanted.session_id
