"""The coordinator over a stand-in for Flower: same weights as in one process, whatever gets lost on the way."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from consortium import Consortium
from dresfl.errors import CheckpointError, UsageError
from dresfl.federation import agreement as agreement_module
from dresfl.federation.messages import FROM_CLIENT, Begin, Done, Hello, Relayed, Slice, Wait, Weights, decode
from dresfl.federation.messages import Request as SliceRequest
from dresfl.model import weights_sha256
from dresfl.protocol import RoundRecord
from dresfl.runtimes.flower_runtime.bundles import Reply, Request
from dresfl.runtimes.flower_runtime.post import Failure
from dresfl.storage.spool import Spool

from .wire import Kinds, Run, Wire, settings


@pytest.fixture
def consortium(tmp_path: Path) -> Consortium:
    return Consortium(tmp_path, clients=7, rounds=6)


def test_same_weights_as_in_one_process(consortium: Consortium) -> None:
    run, wire = Run(consortium), Wire(consortium)
    training = run.play(wire)
    assert weights_sha256(training.weights) == consortium.expected()
    assert [record.outcome for record in run.records] == ["stepped"] * consortium.rounds
    assert run.of("terms settled") == [{"sharing": "fresh", "rows": sum(len(x) for x, _ in consortium.rows)}]
    assert not run.of("refused")
    assert not run.of("failed")
    assert sum(kinds == (Done,) for _, kinds in wire.sent) == consortium.clients


def test_few_bundles(consortium: Consortium) -> None:
    """A bundle costs seconds with Flower: one to connect, one to begin, a few to share, one for each round."""
    wire = Wire(consortium)
    Run(consortium).play(wire)
    for node in wire.nodes():
        kinds = [kinds for to, kinds in wire.sent if to == node]
        assert kinds[:2] == [(), (Begin,)]
        assert not any(Wait in bundle for bundle in kinds)
        assert sum(Weights in bundle for bundle in kinds) <= consortium.rounds
        sharing = Counter(kind for bundle in kinds for kind in bundle)
        assert sharing[SliceRequest] == sharing[Relayed] == consortium.clients - 1
        assert len(kinds) <= 3 + consortium.rounds + 2 * (consortium.clients - 1)


def test_a_round_is_the_same_bytes_for_all(consortium: Consortium) -> None:
    """Flower stores the same bytes once."""
    wire = Wire(consortium)
    Run(consortium).play(wire)
    rounds = {data for data in wire.seen if is_request(wire, data) and wire.kinds(data) == (Weights,)}
    assert len(rounds) <= 2 * consortium.rounds  # the first round is sent once more for each client that comes later


def is_request(wire: Wire, data: bytes) -> bool:
    try:
        Request.decode(data, wire.consortium.roster)
    except Exception:
        return False
    return True


def test_second_run_shares_nothing_again(consortium: Consortium) -> None:
    Run(consortium).play(Wire(consortium))
    (consortium.folder / "run" / "terms.json").unlink()
    run, wire = Run(consortium), Wire(consortium)
    training = run.play(wire)
    assert run.of("terms settled")[0]["sharing"] == "reused"
    assert not any(SliceRequest in kinds for _, kinds in wire.sent)
    assert weights_sha256(training.weights) == consortium.expected()


def test_goes_on_with_the_terms_on_disk(consortium: Consortium) -> None:
    Run(consortium).play(Wire(consortium))
    run = Run(consortium)
    assert weights_sha256(run.play(Wire(consortium)).weights) == consortium.expected()
    assert not run.of("terms settled")


def test_goes_on_without_the_dead(consortium: Consortium) -> None:
    """Two of seven fall silent once the shares are there; five are enough."""
    dead = {101, 104}
    wire = Wire(consortium, lambda node, kinds, reply: None if Weights in kinds and node in dead else reply)
    run = Run(consortium, settings(linger=0.1))
    assert weights_sha256(run.play(wire).weights) == consortium.expected()
    assert {client for record in run.records for client in record.survivors} == {0, 2, 3, 5, 6}


def test_short_round_is_sent_again(consortium: Consortium) -> None:
    lost = dict.fromkeys((100, 101, 102, 103), 1)

    def fault(node: int, kinds: Kinds, reply: bytes) -> bytes | None:
        if Weights in kinds and lost.get(node):
            lost[node] -= 1
            return None
        return reply

    run = Run(consortium, settings(deadline=1.0, linger=2.0))
    assert weights_sha256(run.play(Wire(consortium, fault)).weights) == consortium.expected()
    assert all(record.outcome == "stepped" for record in run.records)
    assert run.of("failed")


def test_short_round_is_skipped_if_so_agreed(consortium: Consortium) -> None:
    wire = Wire(consortium, lambda node, kinds, reply: None if Weights in kinds and node < 104 else reply)
    run = Run(consortium, settings(deadline=1.0, linger=0.0, on_shortage="skip"))
    run.play(wire)
    assert [record.outcome for record in run.records] == ["skipped"] * consortium.rounds


@pytest.mark.parametrize("seed", range(5))
def test_random_faults(consortium: Consortium, seed: int) -> None:
    """Replies lost, failed, cut and changed at random: refused each, and the weights are the same."""
    generator = random.Random(seed)

    def fault(node: int, kinds: Kinds, reply: bytes) -> bytes | Failure | None:
        drawn = generator.random()
        if drawn < 0.1:
            return None
        if drawn < 0.15:
            return Failure("the node is unavailable")
        if drawn < 0.2:
            return reply[: generator.randrange(len(reply))]
        if drawn < 0.3:
            place = generator.randrange(len(reply))
            return reply[:place] + bytes([reply[place] ^ 1 << generator.randrange(8)]) + reply[place + 1 :]
        return reply

    run = Run(consortium, settings(deadline=1.0, linger=1.0))
    assert weights_sha256(run.play(Wire(consortium, fault)).weights) == consortium.expected()


def test_killed_and_started_again(consortium: Consortium) -> None:
    """A node goes offline in the middle of a round, and comes back with the same number; another as a new one."""
    wire = Wire(consortium)
    run = Run(consortium)
    records, watch = run.records, run.watch

    def fault(node: int, kinds: Kinds, reply: bytes) -> bytes | None:
        return None if node in wire.away else reply

    def next_round(record: RoundRecord, answers: int) -> None:
        watch(record, answers)
        if len(records) == 1:
            wire.away |= {101, 104}
            threading.Timer(1.5, wire.away.discard, [101]).start()
            wire.client_of_node[204] = 4
            wire.start(204)

    wire.fault, run.watch = fault, next_round  # type: ignore[method-assign]
    assert weights_sha256(run.play(wire).weights) == consortium.expected()
    greeted = Counter(node for node, kinds in wire.sent if not kinds)
    assert greeted[204] == 1
    assert {fields["client"] for fields in run.of("left")} == {1, 4}
    assert not run.of("ended without")


def test_two_nodes_of_one_client(consortium: Consortium) -> None:
    """The newer one counts, and the older one is left alone: they do not take turns."""
    wire = Wire(consortium)
    wire.client_of_node[204] = 4
    wire.start(204)
    run = Run(consortium)
    assert weights_sha256(run.play(wire).weights) == consortium.expected()
    greeted = Counter(node for node, kinds in wire.sent if not kinds)
    assert greeted[104] == greeted[204] == 1


def test_an_older_node_takes_over_when_the_newer_one_leaves(consortium: Consortium) -> None:
    wire = Wire(consortium)
    wire.client_of_node[204] = 4
    wire.start(204)
    run = Run(consortium)
    watch = run.watch

    def next_round(record: RoundRecord, answers: int) -> None:
        watch(record, answers)
        if len(run.records) == 1:
            wire.away.add(run.coordinator._node_of[4])

    wire.fault = lambda node, kinds, reply: None if node in wire.away else reply
    run.watch = next_round  # type: ignore[method-assign]
    assert weights_sha256(run.play(wire).weights) == consortium.expected()
    assert len(wire.away) == 1
    assert not run.of("ended without")


def test_late_answers_count(consortium: Consortium) -> None:
    """A node that answers after its deadline is greeted anew; its answer counts if its round is still open."""
    held: list[tuple[str, bytes]] = []
    slow = {102, 103, 105}
    wire = Wire(consortium)

    def fault(node: int, kinds: Kinds, reply: bytes) -> bytes | None:
        if Weights not in kinds or node not in slow:
            return reply
        slow.discard(node)  # only its first answer is slow
        number = f"{node}/{max(i + 1 for i, (to, _) in enumerate(wire.sent) if to == node)}"
        held.append((number, reply))
        threading.Timer(3.0, lambda: wire._replies.update({number: reply})).start()
        return None

    wire.fault = fault
    run = Run(consortium, settings(deadline=1.5), pause=0.05)
    assert weights_sha256(run.play(wire).weights) == consortium.expected()
    assert len(held) == 3
    assert len(run.of("failed")) >= 1
    assert not run.of("refused")


def test_a_full_disk_ends_the_run(consortium: Consortium) -> None:
    """What fails here is not mistaken for a bad reply."""
    run = Run(consortium)

    def fail(record: RoundRecord, answers: int) -> None:
        raise CheckpointError("the disk is full")

    run.watch = fail  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="disk is full"):
        run.play(Wire(consortium))


def test_a_slice_that_the_disk_has_lost_is_asked_for_again(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, lost = Spool.get, {(3, 1, 0), (5, 2, 0)}

    def lossy(spool: Spool, receiver: int, dealer: int, number: int) -> bytes | None:
        if (receiver, dealer, number) in lost:
            lost.discard((receiver, dealer, number))
            return None
        return get(spool, receiver, dealer, number)

    monkeypatch.setattr(Spool, "get", lossy)
    wire = Wire(consortium)
    assert weights_sha256(Run(consortium).play(wire).weights) == consortium.expected()
    assert not lost
    asked = sum(kind is SliceRequest for _, kinds in wire.sent for kind in kinds)
    assert asked == consortium.clients * (consortium.clients - 1) + 2


def test_only_the_coordinator_coordinates(consortium: Consortium) -> None:
    consortium.coordinator = consortium.clients_keys[0]
    with pytest.raises(UsageError, match="not the coordinator"):
        Run(consortium).play(Wire(consortium))


def test_two_nodes_swapped_by_flower(consortium: Consortium) -> None:
    """Node ids prove nothing: a reply is its signer's, and one that comes from another's node is refused."""
    wire = Wire(consortium)
    kept: dict[int, bytes] = {}

    def fault(node: int, kinds: Kinds, reply: bytes) -> bytes | None:
        if node not in (100, 101) or Weights not in kinds:
            return reply
        kept[node] = reply
        return kept.get(201 - node)

    wire.fault = fault
    run = Run(consortium, settings(deadline=2.0, linger=0.1), pause=60.0)
    assert weights_sha256(run.play(wire).weights) == consortium.expected()
    assert not any({0, 1} & set(record.survivors) for record in run.records)
    assert {fields["client"] for fields in run.of("refused")} <= {0, 1}
    assert run.of("refused")


class Forging:
    """Changes the first message of a kind that client 0 sends, and signs it as that client would."""

    def __init__(self, wire: Wire, kind: type[Hello] | type[Slice], change: Callable[[bytes], list[bytes]]) -> None:
        self._wire, self._kind, self._change = wire, kind, change
        self.done = False
        self._requests: dict[int, bytes] = {}
        send = wire.send

        def remember(bundles, ttl):  # type: ignore[no-untyped-def]
            self._requests.update(bundles)
            return send(bundles, ttl)

        wire.send = remember  # type: ignore[method-assign]
        wire.fault = self._fault

    def _fault(self, node: int, kinds: Kinds, data: bytes) -> bytes:
        roster, keys = self._wire.consortium.roster, self._wire.consortium.clients_keys
        reply = Reply.decode(data, roster, self._requests[node], 2**24)
        at = [i for i, message in enumerate(reply.messages) if isinstance(decode(message, FROM_CLIENT), self._kind)]
        if node != 100 or self.done or not at:
            return data
        self.done = True
        changed = [*reply.messages[: at[0]], *self._change(reply.messages[at[0]]), *reply.messages[at[0] + 1 :]]
        return Reply(0, tuple(changed)).encode(keys[0], roster, self._requests[node])


def too_many_rows(data: bytes) -> list[bytes]:
    hello = decode(data, (Hello,))
    assert isinstance(hello, Hello)
    return [replace(hello, introduction=replace(hello.introduction, rows=2**32 - 1)).encode()]


def test_a_client_with_too_many_rows_is_refused(consortium: Consortium) -> None:
    """It stops nobody, and is let in when it comes with fewer."""
    wire = Wire(consortium)
    Forging(wire, Hello, too_many_rows)
    run = Run(consortium)
    assert weights_sha256(run.play(wire).weights) == consortium.expected()
    assert [str((2**31 - 1) // consortium.clients) in fields["reason"] for fields in run.of("refused")] == [True]
    assert len(run.of("joined")) == consortium.clients


def test_unusable_terms_never_reach_the_disk(consortium: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_module, "most_client_rows", lambda parameters: 2**32)
    wire = Wire(consortium)
    Forging(wire, Hello, too_many_rows)
    with pytest.raises(UsageError):
        Run(consortium).play(wire)
    assert not (consortium.folder / "run" / "terms.json").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: [data, data], "unasked"),
        (lambda data: [data[:-1]], "were expected"),
        (lambda data: [b""], "empty message"),
        (lambda data: [b"\xff" + data], "kind 255"),
    ],
)
def test_a_message_that_is_not_as_agreed(
    consortium: Consortium, change: Callable[[bytes], list[bytes]], reason: str
) -> None:
    """It ends its client's connection, and disturbs nobody else; the client comes back, and all is well."""
    wire = Wire(consortium)
    forging = Forging(wire, Slice, change)
    run = Run(consortium)
    assert weights_sha256(run.play(wire).weights) == consortium.expected()
    assert forging.done
    assert [(fields["client"], reason in fields["reason"]) for fields in run.of("refused")] == [(0, True)]
