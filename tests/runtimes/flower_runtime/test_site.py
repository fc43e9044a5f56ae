"""A site: what it refuses, what it keeps, and what the coordinator gets to see of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from consortium import Consortium
from dresfl.federation import Terms, make_session
from dresfl.protocol import Client, MemoryTable, Task
from dresfl.runtimes.flower_runtime.letters import Kind, Reply, Request, decode_hello, encode_places
from dresfl.sealing import Identity
from dresfl.storage import ShareStore, data_digest

from .wire import Run, Wire, site_of


@pytest.fixture
def consortium(tmp_path: Path) -> Consortium:
    return Consortium(tmp_path, clients=7, rounds=6)


def ask(consortium: Consortium, index: int, request: Request, signer: Identity | None = None) -> Reply:
    data = request.encode(signer or consortium.server, consortium.roster)
    reply = site_of(consortium, index).handle(data)
    return Reply.decode(reply, consortium.roster, data, 2**24)


def terms_of(consortium: Consortium) -> Terms:
    hello = Request(Kind.HELLO, None, consortium.agreement.encode())
    return Terms.settle([decode_hello(ask(consortium, i, hello).body) for i in range(consortium.clients)])


def test_stranger_is_refused(consortium: Consortium) -> None:
    reply = ask(consortium, 0, Request(Kind.HELLO, None, consortium.agreement.encode()), Identity.create("mallory"))
    assert reply.refused
    assert "not signed by coordinator" in reply.text


def test_other_agreement_is_refused_with_the_difference(consortium: Consortium) -> None:
    other = replace(consortium.agreement, batch_size=16)
    reply = ask(consortium, 0, Request(Kind.HELLO, None, other.encode()))
    assert reply.refused
    assert "batch_size: 8 here, 16 there" in reply.text


def test_terms_without_this_site_are_refused(consortium: Consortium) -> None:
    terms = terms_of(consortium)
    forged = replace(terms, contributions=(bytes(32), *terms.contributions[1:]))
    for kind in (Kind.KEEP, Kind.DEAL, Kind.ANSWER, Kind.DONE):
        reply = ask(consortium, 0, Request(kind, forged, b""))
        assert reply.refused
        assert "did not join" in reply.text


def test_no_answer_without_all_shares(consortium: Consortium) -> None:
    terms = terms_of(consortium)
    session = terms.session(consortium.agreement)
    task = Task(0, session.network.initial_weights(session.stream))
    reply = ask(consortium, 0, Request(Kind.ANSWER, terms, task.encode(session)))
    assert reply.refused
    assert "lacks shares" in reply.text


def test_one_set_of_weights_for_a_round_across_processes(consortium: Consortium) -> None:
    """Every letter meets a new Site here, as it meets a new process with Flower."""
    run = Run(consortium)
    server = run.play(Wire(consortium))
    terms = Terms.load(consortium.folder / "run" / "terms.json", consortium.clients)
    other = Task(0, server.weights)
    reply = ask(consortium, 0, Request(Kind.ANSWER, terms, other.encode(server.session)))
    assert reply.refused
    assert "answered for other weights" in reply.text


def test_own_slice_is_dealt_to_nobody(consortium: Consortium) -> None:
    reply = ask(consortium, 3, Request(Kind.DEAL, terms_of(consortium), encode_places([(3, 0)])))
    assert reply.refused


def test_paths_stay_at_home(consortium: Consortium) -> None:
    """An error of a site's own disk is told to the coordinator by its name alone."""
    (consortium.folder / "store-0").write_text("a file where the store should be")
    reply = ask(consortium, 0, Request(Kind.HELLO, None, consortium.agreement.encode()))
    assert reply.refused
    assert reply.text == "StoreError: see the log of this site"


def test_no_share_in_the_clear(consortium: Consortium) -> None:
    """Everything that goes over the wire, searched for every share that was dealt."""
    wire = Wire(consortium)
    server = Run(consortium).play(wire)
    seen = b"".join(wire.seen)
    session = server.session
    found = 0
    for dealer in range(consortium.clients):
        with consortium_store(consortium, dealer) as store:
            client = Client(session, dealer, store.secret(session), *consortium.rows[dealer], MemoryTable(session))
            for share in client.deal_to(range(consortium.clients)):
                for row in range(share.residues.shape[1]):
                    found += 1
                    assert session.field.pack(share.residues[:1, row : row + 1]) not in seen
    assert found > 100


def test_lost_shares_are_dealt_again(consortium: Consortium) -> None:
    Run(consortium).play(Wire(consortium))
    for path in (consortium.folder / "store-2").glob("*/*.rows"):
        path.write_bytes(bytes(path.stat().st_size))
    (consortium.folder / "run" / "terms.json").unlink()
    run = Run(consortium)
    run.play(Wire(consortium))
    assert run.of("terms settled")[0]["sharing"] == "reused"
    session = run.coordinator._session
    with consortium_store(consortium, 2) as store:
        assert store.table(session, 2).complete


def consortium_store(consortium: Consortium, index: int) -> ShareStore:
    digest = data_digest(*consortium.rows[index])
    return ShareStore.open(consortium.folder / f"store-{index}", digest, consortium.agreement.roster)


def test_sessions_of_terms_are_those_of_the_agreement(consortium: Consortium) -> None:
    terms = terms_of(consortium)
    wanted = make_session(consortium.agreement, terms.rows, terms.nonce, terms.run_nonce)
    assert terms.session(consortium.agreement).session_id == wanted.session_id
