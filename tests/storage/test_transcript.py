"""Transcripts: what is in them, what is not, and what a killed process leaves."""

import dataclasses
import stat
from pathlib import Path

import pytest
import torch

from dresfl.api.simulate import simulate
from dresfl.errors import StoreError, UsageError
from dresfl.field import unpacked
from dresfl.model import Network, mlp
from dresfl.protocol import Answer, Task
from dresfl.storage.transcript import COORDINATOR, EVERYBODY, Transcript, TranscriptWriter

NETWORK = mlp((6, 4, 3), input_bits=4, weight_bits=10)
ROUNDS = 7


def rows(clients: int = 7) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.rand((5, 6), generator=generator), torch.randint(0, 3, (5,), generator=generator))
        for _ in range(clients)
    ]


def recorded(folder: Path, parties: list[str], network: Network = NETWORK) -> Path:
    simulate(network, rows(), rounds=ROUNDS, batch_size=8, record=folder, recorded=parties)
    return folder / "transcript"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("recorded"), ["all"])


def test_one_private_file_for_each_participant(everything: Path) -> None:
    names = {"coordinator.transcript", *(f"client-{i}.transcript" for i in range(7))}
    assert {path.name for path in everything.iterdir()} == names
    assert {stat.S_IMODE(path.stat().st_mode) for path in everything.iterdir()} == {0o600}


def test_one_chosen_participant(tmp_path: Path) -> None:
    assert [path.name for path in recorded(tmp_path, ["client-0"]).iterdir()] == ["client-0.transcript"]


def test_a_simulation_writes_nothing_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    simulate(NETWORK, rows(), rounds=2, batch_size=8)
    assert not list(tmp_path.iterdir())


def test_a_client_has_the_weights_and_its_own_answers_alone(everything: Path) -> None:
    for i in range(7):
        seen = Transcript(everything / f"client-{i}.transcript")
        assert seen.party == f"client-{i}"
        kinds = [(sender, receiver, data[1]) for sender, receiver, data in seen.messages()]
        assert kinds.count((COORDINATOR, i, Task.KIND)) == ROUNDS + 1
        assert set(kinds) <= {(COORDINATOR, i, Task.KIND), (i, COORDINATOR, Answer.KIND)}


def test_the_coordinator_has_all_answers_and_they_give_the_sums(everything: Path) -> None:
    seen = Transcript(everything / "coordinator.transcript")
    session, weights = seen.session, seen.weights()
    senders = [(sender, receiver) for sender, receiver, data in seen.messages() if data[1] == Task.KIND]
    assert senders == [(COORDINATOR, EVERYBODY)] * (ROUNDS + 1)
    data = [(x.mul(16).round().to(torch.int64), torch.nn.functional.one_hot(y, 3)) for x, y in rows()]
    sums = dict(seen.sums())
    assert sorted(sums) == list(range(ROUNDS))
    for number, total in sums.items():
        batch = session.batch_rows(number)
        drawn = torch.stack(
            [
                torch.cat([data[dealer][0][row], data[dealer][1][row]])
                for dealer, row in zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)
            ]
        )
        residues = session.field.embed(drawn).unsqueeze(1)
        gradient = session.network.gradient(session.field, weights[number], residues[..., :6], residues[..., 6:])
        assert total.tolist() == session.field.lift(gradient[:, 0]).tolist()


def test_recorded_answers_are_blinded_as_on_a_network(tmp_path: Path) -> None:
    """They decode to the sum over the shards, and not to the gradient of any one shard."""
    clients = rows(10)
    simulate(NETWORK, clients, rounds=1, num_shards=2, batch_size=4, record=tmp_path, recorded=["coordinator"])
    seen = Transcript(tmp_path / "transcript" / "coordinator.transcript")
    session, weights = seen.session, seen.weights()[0]
    field, ((_, answers),) = session.field, seen.answers()
    ordered = sorted(answers)
    apart = session.code.decode(torch.stack([unpacked(answers[j].residues) for j in ordered], 1), ordered)  # (M,K,P)
    batch = session.batch_rows(0)
    shards = []
    for k in range(2):
        hidden = [session.shard_rows(d)[r, k] for d, r in zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)]
        inputs = torch.stack([clients[d][0][r] for d, r in zip(batch.dealers.tolist(), hidden, strict=True)])
        labels = torch.stack([clients[d][1][r] for d, r in zip(batch.dealers.tolist(), hidden, strict=True)])
        drawn = torch.cat([inputs.mul(16).round().to(torch.int64), torch.nn.functional.one_hot(labels, 3)], 1)
        residues = field.embed(drawn).unsqueeze(1)
        shards.append(NETWORK.gradient(field, weights, residues[..., :6], residues[..., 6:])[:, 0])
    assert field.lift_exact(field.add(apart[:, 0], apart[:, 1])) == field.lift_exact(field.add(*shards))
    for k in range(2):
        assert not torch.eq(field.sub(apart[:, k], shards[k]), 0).all(0).any()


def test_a_participant_that_there_is_not(tmp_path: Path) -> None:
    for name in ("client-7", "client--1", "server", "client-", ""):
        with pytest.raises(UsageError, match="no participant"):
            recorded(tmp_path, [name])


def test_engine_direct_has_no_messages(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="direct"):
        simulate(NETWORK, rows(), rounds=2, batch_size=8, engine="direct", record=tmp_path)


def test_a_message_that_was_cut_short_is_cut_off(everything: Path, tmp_path: Path) -> None:
    whole = (everything / "client-1.transcript").read_bytes()
    session = Transcript(everything / "client-1.transcript").session
    folder = tmp_path / "transcript"
    folder.mkdir(mode=0o700)
    path = folder / "client-1.transcript"
    for missing in (1, 7, 30):
        path.write_bytes(whole[:-missing])
        assert ROUNDS not in Transcript(path).weights()
        writer = TranscriptWriter(tmp_path, 1, session)
        last = Task(ROUNDS, torch.zeros(NETWORK.num_parameters, dtype=torch.int64))
        writer.write(COORDINATOR, 1, last.encode(session))
        assert sorted(Transcript(path).weights()) == list(range(ROUNDS + 1))


def test_a_transcript_of_another_run_is_kept(everything: Path, tmp_path: Path) -> None:
    session = Transcript(everything / "client-1.transcript").session
    for run_nonce in (b"one", b"two"):
        TranscriptWriter(tmp_path, 1, dataclasses.replace(session, run_nonce=run_nonce))
    names = sorted(path.name for path in (tmp_path / "transcript").iterdir())
    first = dataclasses.replace(session, run_nonce=b"one").session_id.hex()
    assert names == sorted([f"client-1.{first}.transcript", "client-1.transcript"])


def test_a_file_that_is_no_transcript(tmp_path: Path) -> None:
    path = tmp_path / "client-0.transcript"
    for data in (b"", b"{}\n", b"[1]\n", b"\xff\n", b'{"format": "dresfl transcript 1", "party": "client-0"}\n'):
        path.write_bytes(data)
        with pytest.raises(StoreError):
            _ = Transcript(path).session


def test_messages_that_a_participant_refused_are_skipped(everything: Path, tmp_path: Path) -> None:
    whole = Transcript(everything / "client-1.transcript")
    (tmp_path / "transcript").mkdir(mode=0o700)
    path = tmp_path / "transcript" / "client-1.transcript"
    path.write_bytes((everything / "client-1.transcript").read_bytes())
    writer = TranscriptWriter(tmp_path, 1, whole.session)
    for message in (b"", b"\x02", b"\x02\x02short", b"\x02\x03short", b"\xff" * 40):
        writer.write(COORDINATOR, 1, message)
        writer.write(1, COORDINATOR, message)
    assert len(list(Transcript(path).messages())) == len(list(whole.messages())) + 10
    assert sorted(Transcript(path).weights()) == sorted(whole.weights())
    assert [number for number, _ in Transcript(path).answers()] == [number for number, _ in whole.answers()]


def test_a_damaged_transcript_is_named_and_stays(everything: Path, tmp_path: Path) -> None:
    (tmp_path / "transcript").mkdir(mode=0o700)
    path = tmp_path / "transcript" / "client-1.transcript"
    path.write_bytes(b"?" + (everything / "client-1.transcript").read_bytes())
    with pytest.raises(StoreError, match="damaged"):
        TranscriptWriter(tmp_path, 1, Transcript(everything / "client-1.transcript").session)
    assert path.exists()
