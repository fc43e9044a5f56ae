"""The coordinator over a stand-in for Flower: same weights as in one process, whatever gets lost on the way."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from consortium import Consortium
from dresfl.errors import CheckpointError, MessageError, UsageError
from dresfl.federation import Introduction
from dresfl.federation import agreement as agreement_module
from dresfl.model import weights_sha256
from dresfl.protocol import RoundRecord
from dresfl.runtimes.flower_runtime import site
from dresfl.runtimes.flower_runtime.coordinator import Settings
from dresfl.runtimes.flower_runtime.letters import Kind, Place, Reply, encode_hello, encode_kept, encode_parcels
from dresfl.runtimes.flower_runtime.post import Arrival, Failure

from .wire import Run, Wire


@pytest.fixture
def consortium(tmp_path: Path) -> Consortium:
    return Consortium(tmp_path, clients=7, rounds=6)


def test_same_weights_as_in_one_process(consortium: Consortium) -> None:
    run, wire = Run(consortium), Wire(consortium)
    server = run.play(wire)
    assert weights_sha256(server.weights) == consortium.expected()
    assert [record.outcome for record in run.records] == ["stepped"] * consortium.rounds
    assert run.of("terms settled") == [{"sharing": "fresh", "rows": sum(len(x) for x, _ in consortium.rows)}]
    assert not run.of("refused")
    assert sum(kind == "done" for _, kind in wire.sent) == consortium.clients


def test_one_message_each_for_a_small_sharing(consortium: Consortium) -> None:
    """A message costs seconds with Flower: hello, deal and keep, once each."""
    wire = Wire(consortium)
    Run(consortium).play(wire)
    for kind in ("hello", "deal", "keep"):
        assert sorted(node for node, sent in wire.sent if sent == kind) == sorted(wire.nodes())


def test_second_run_shares_nothing_again(consortium: Consortium) -> None:
    Run(consortium).play(Wire(consortium))
    (consortium.folder / "run" / "terms.json").unlink()
    run, wire = Run(consortium), Wire(consortium)
    server = run.play(wire)
    assert run.of("terms settled")[0]["sharing"] == "reused"
    assert not any(kind == "deal" for _, kind in wire.sent)
    assert weights_sha256(server.weights) == consortium.expected()


def test_goes_on_with_the_terms_on_disk(consortium: Consortium) -> None:
    Run(consortium).play(Wire(consortium))
    run = Run(consortium)
    assert weights_sha256(run.play(Wire(consortium)).weights) == consortium.expected()
    assert not run.of("terms settled")


def test_goes_on_without_the_dead(consortium: Consortium) -> None:
    """Two of seven fall silent once the shares are there; five are enough."""
    dead = {101, 104}
    wire = Wire(consortium, lambda node, kind, reply: None if kind is Kind.ANSWER and node in dead else reply)
    run = Run(consortium, Settings(deadline=60.0, linger=0.1))
    assert weights_sha256(run.play(wire).weights) == consortium.expected()
    assert {client for record in run.records for client in record.survivors} == {0, 2, 3, 5, 6}


def test_short_round_is_sent_again(consortium: Consortium) -> None:
    lost = dict.fromkeys((100, 101, 102, 103), 1)

    def fault(node: int, kind: Kind, reply: bytes) -> bytes | None:
        if kind is Kind.ANSWER and lost.get(node):
            lost[node] -= 1
            return None
        return reply

    run = Run(consortium, Settings(deadline=0.3, linger=2.0))
    assert weights_sha256(run.play(Wire(consortium, fault)).weights) == consortium.expected()
    assert all(record.outcome == "stepped" for record in run.records)
    assert run.coordinator.counters.shortages >= 1


def test_short_round_is_skipped_if_so_agreed(consortium: Consortium) -> None:
    wire = Wire(consortium, lambda node, kind, reply: None if kind is Kind.ANSWER and node < 104 else reply)
    run = Run(consortium, Settings(deadline=0.2, linger=0.0, on_shortage="skip"))
    run.play(wire)
    assert [record.outcome for record in run.records] == ["skipped"] * consortium.rounds


@pytest.mark.parametrize("seed", range(5))
def test_random_faults(consortium: Consortium, seed: int) -> None:
    """Replies lost, failed, cut and changed at random: refused each, and the weights are the same."""
    generator = random.Random(seed)

    def fault(node: int, kind: Kind, reply: bytes) -> bytes | Failure | None:
        deed = generator.random()
        if deed < 0.1:
            return None
        if deed < 0.15:
            return Failure("the node is unavailable")
        if deed < 0.2:
            return reply[: generator.randrange(len(reply))]
        if deed < 0.3:
            place = generator.randrange(len(reply))
            return reply[:place] + bytes([reply[place] ^ 1 << generator.randrange(8)]) + reply[place + 1 :]
        return reply

    run = Run(consortium, Settings(deadline=0.4, linger=1.0, pause=0.05))
    assert weights_sha256(run.play(Wire(consortium, fault)).weights) == consortium.expected()


def test_a_full_disk_ends_the_run(consortium: Consortium) -> None:
    """What fails here is not mistaken for a bad reply."""
    run = Run(consortium)

    def fail(record: RoundRecord, answers: int) -> None:
        raise CheckpointError("the disk is full")

    run.watch = fail  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="disk is full"):
        run.play(Wire(consortium))


def test_only_the_coordinator_coordinates(consortium: Consortium) -> None:
    consortium.server = consortium.sites[0]
    with pytest.raises(UsageError, match="not the coordinator"):
        Run(consortium).play(Wire(consortium))


def test_settings() -> None:
    with pytest.raises(UsageError):
        Settings(deadline=0)


def test_two_nodes_swapped_by_flower(consortium: Consortium) -> None:
    """Node ids prove nothing: a reply is its signer's, and one that comes from another's node is refused."""
    wire = Wire(consortium)
    swapped = wire.fetch
    kept: dict[str, bytes | Failure] = {}

    def fetch(number: str) -> bytes | Failure | None:
        reply = swapped(number)
        if reply is None or not number.startswith(("100/", "101/")) or isinstance(reply, Failure):
            return reply
        if reply[1] != Kind.ANSWER:
            return reply
        other = "101" if number.startswith("100/") else "100"
        mine = number.split("/")[0]
        kept[mine] = reply
        return kept.get(other)

    wire.fetch = fetch  # type: ignore[method-assign]
    run = Run(consortium, Settings(deadline=60.0, linger=0.1))
    assert weights_sha256(run.play(wire).weights) == consortium.expected()
    assert not any({0, 1} & set(record.survivors) for record in run.records)


def one_hello_of_too_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    count = itertools.count()

    def hello(client: Introduction) -> bytes:
        return encode_hello(replace(client, rows=2**32 - 1) if next(count) == 0 else client)

    monkeypatch.setattr(site, "encode_hello", hello)


def test_a_client_with_too_many_rows_is_refused(consortium: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops nobody, and is let in when it comes with fewer."""
    one_hello_of_too_many_rows(monkeypatch)
    run = Run(consortium, Settings(deadline=60.0, linger=60.0, pause=0.05))
    assert weights_sha256(run.play(Wire(consortium)).weights) == consortium.expected()
    assert [str((2**31 - 1) // consortium.clients) in fields["reason"] for fields in run.of("refused")] == [True]
    assert len(run.of("joined")) == consortium.clients


def test_unusable_terms_never_reach_the_disk(consortium: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_module, "most_client_rows", lambda parameters: 2**32)
    one_hello_of_too_many_rows(monkeypatch)
    with pytest.raises(UsageError):
        Run(consortium).play(Wire(consortium))
    assert not (consortium.folder / "run" / "terms.json").exists()


def test_a_rejection_of_what_was_not_sent_is_refused(consortium: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    count = itertools.count()

    def kept(missing: Sequence[Place], rejected: Sequence[tuple[int, int, str]]) -> bytes:
        return encode_kept(missing, [*rejected, *([(0, 99_999, "forged")] if next(count) == 0 else [])])

    monkeypatch.setattr(site, "encode_kept", kept)
    run = Run(consortium, Settings(deadline=60.0, linger=60.0, pause=0.05))
    assert weights_sha256(run.play(Wire(consortium)).weights) == consortium.expected()
    assert ["which it was not sent" in fields["reason"] for fields in run.of("refused")] == [True]
    assert not run.of("slice rejected")


def test_no_rejection_counts_if_one_is_forged(consortium: Consortium) -> None:
    run = Run(consortium)
    run.play(Wire(consortium))
    coordinator, relay = run.coordinator, run.coordinator._relay
    assert relay is not None
    before = dict(relay._rejects)
    for forged in ((0, 1, ""), (9, 0, ""), (0, 0, "again")):
        reply = Reply(Kind.KEEP, 1, encode_kept([], [(0, 0, "true"), forged]))
        with pytest.raises(MessageError, match="which it was not sent"):
            coordinator._kept(relay, reply, {(0, 0)})
    request = coordinator._letter(Kind.DEAL, encode_parcels([(0, 0, b"")]))
    account = Reply(Kind.KEEP, 1, encode_kept([], [(0, 0, "")])).encode(consortium.sites[1], consortium.roster, request)
    coordinator._take(Arrival(0, 101, request, account))
    assert "in reply to DEAL" in run.of("refused")[-1]["reason"]
    assert not run.of("slice rejected")
    assert dict(relay._rejects) == before
