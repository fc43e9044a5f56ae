"""A real federation writes transcripts if its agreement says so, and only then."""

import asyncio
import dataclasses
import stat
from pathlib import Path

import torch

from consortium import OPTIMIZER, Consortium
from dresfl.model import weights_sha256
from dresfl.protocol import Answer, Task, Training
from dresfl.storage.transcript import COORDINATOR, Transcript

from .federation import Network


def run(consortium: Consortium) -> str:
    async def whole() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        return await network.finish(coordinator, network.start_clients())

    return asyncio.run(whole())


def test_a_recorded_federation(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    consortium.agreement = dataclasses.replace(consortium.agreement, record=True)
    digest = run(consortium)
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.transcript")}
    clients = {Path(f"client-{i}/transcript/client-{i}.transcript") for i in range(6)}
    assert files == {Path("coordinator/transcript/coordinator.transcript"), *clients}
    for path in files:
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / path).parent.stat().st_mode) == 0o700
    seen = Transcript(tmp_path / "coordinator/transcript/coordinator.transcript")
    weights = seen.weights()
    assert sorted(weights) == list(range(13))
    assert weights_sha256(weights[12]) == digest
    training = Training(seen.session, OPTIMIZER, 12)  # who plays the answers again gets the same weights
    for number, answers in seen.answers():
        assert torch.equal(training.weights, weights[number])
        for answer in answers.values():
            training.receive(answer)
    assert weights_sha256(training.weights) == digest


def test_a_client_writes_the_weights_and_its_own_answers_alone(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    consortium.agreement = dataclasses.replace(consortium.agreement, record=True)
    run(consortium)
    all_weights = Transcript(tmp_path / "coordinator/transcript/coordinator.transcript").weights()
    for i in range(6):
        seen = Transcript(tmp_path / f"client-{i}/transcript/client-{i}.transcript")
        assert seen.party == f"client-{i}"
        for sender, receiver, message in seen.messages():
            assert (sender, receiver, message[1]) in ((COORDINATOR, i, Task.KIND), (i, COORDINATOR, Answer.KIND))
        weights = seen.weights()
        assert 12 in weights
        assert all(torch.equal(weights[number], all_weights[number]) for number in weights)


def test_without_the_agreements_word_nothing_is_written(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    run(consortium)
    assert not list(tmp_path.rglob("*transcript*"))


def test_two_runs_of_the_same_clients_have_a_transcript_each(tmp_path: Path) -> None:
    """The second run uses the shares again. The client's transcript of the first stays beside that of the second."""
    consortium = Consortium(tmp_path)
    consortium.agreement = dataclasses.replace(consortium.agreement, record=True)
    run(consortium)
    (tmp_path / "coordinator").rename(tmp_path / "first")
    run(consortium)
    first = Transcript(tmp_path / "first/transcript/coordinator.transcript")
    second = Transcript(tmp_path / "coordinator/transcript/coordinator.transcript")
    assert first.session.sharing_id == second.session.sharing_id
    own = tmp_path / "client-0" / "transcript"
    older = f"client-0.{first.session.session_id.hex()}.transcript"
    assert {path.name for path in own.iterdir()} == {"client-0.transcript", older}
    assert Transcript(own / older).session.session_id == first.session.session_id
    assert Transcript(own / "client-0.transcript").session.session_id == second.session.session_id
