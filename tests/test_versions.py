"""Whatever is of version 1 is refused, and the refusal names the version."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from consortium import OPTIMIZER, Consortium
from dresfl.deploy.run_record import check_same
from dresfl.errors import CheckpointError, DresError, MessageError, Refused, StoreError
from dresfl.federation import Coordinator, CoordinatorSettings, Introduction, Terms, make_session
from dresfl.federation.actions import Close
from dresfl.federation.messages import Hello
from dresfl.files import write_record
from dresfl.protocol import Answer, Share, Task, Training
from dresfl.storage import ShareStore, data_digest
from dresfl.storage.checkpoint import NEWEST, RunFolder
from dresfl.storage.run_folder import restore
from dresfl.storage.tensors import save_tensors
from runtimes.grpc_runtime.federation import Network

HELLO_OF_VERSION_1 = b"\x01\x01" + bytes(32 + 4 + 32 + 32 + 16)  # a digest, rows, contribution, nonce, challenge


@pytest.fixture
def consortium(tmp_path: Path) -> Consortium:
    return Consortium(tmp_path, clients=5, rounds=2)


def refusal(consortium: Consortium, hello: bytes) -> Refused:
    """Why a coordinator refuses a Hello."""
    machine = Coordinator(
        CoordinatorSettings(),
        consortium.agreement,
        consortium.coordinator,
        consortium.roster,
        lambda session: Training(session, OPTIMIZER, consortium.rounds),
    )
    machine.start(0.0)
    machine.connected_to(1, 0.0)
    (close,) = (action for action in machine.received(1, hello, 0.0) if isinstance(action, Close))
    assert isinstance(close.error, Refused)
    return close.error


def agreement_of_version_1(consortium: Consortium) -> bytes:
    return consortium.agreement.encode().replace(b"dresfl agreement 4", b"dresfl agreement 1")


def test_a_hello_of_version_1(consortium: Consortium) -> None:
    assert "version 1 of the protocol" in str(refusal(consortium, HELLO_OF_VERSION_1))


def test_a_hello_of_version_2(consortium: Consortium) -> None:
    """That of dresfl 0.2: it has no instance."""
    hello = Hello(Introduction(9, bytes(64)), bytes(16), consortium.agreement.encode()).encode()
    assert "version 2 of the protocol" in str(
        refusal(consortium, hello[:1] + b"\x02" + hello[2:38] + hello[70:118] + hello[126:])
    )


def test_a_hello_of_version_3(consortium: Consortium) -> None:
    """Its contribution has no commitment to a coin."""
    hello = Hello(Introduction(9, bytes(64)), bytes(16), consortium.agreement.encode()).encode()
    assert "version 3 of the protocol" in str(refusal(consortium, hello[:1] + b"\x03" + hello[2:38] + hello[70:]))


def test_an_agreement_of_version_1(consortium: Consortium) -> None:
    hello = Hello(Introduction(9, bytes(64)), bytes(16), agreement_of_version_1(consortium))
    found = str(refusal(consortium, hello.encode()))
    assert "format: dresfl agreement 4 here, dresfl agreement 1 there" in found


def test_the_folder_of_a_run_of_version_1(consortium: Consortium, tmp_path: Path) -> None:
    path = tmp_path / "agreement.json"
    path.write_bytes(agreement_of_version_1(consortium))
    with pytest.raises(CheckpointError, match="dresfl agreement 1 there"):
        check_same(path, consortium.agreement)


def test_terms_of_version_1(consortium: Consortium) -> None:
    settled = Terms.settle([Introduction(9, bytes(64))] * consortium.clients)
    stored = json.loads(settled.to_json(consortium.agreement))
    assert Terms.from_json(json.dumps(stored).encode(), consortium.agreement) == settled
    del stored["sha256"], stored["agreement"], stored["session"], stored["verdict"]  # new since then
    for old in (1, 2):
        with pytest.raises(CheckpointError, match=f"'dresfl terms {old}' is not known here"):
            Terms.from_json(json.dumps({**stored, "format": f"dresfl terms {old}"}).encode(), consortium.agreement)


def test_a_checkpoint_of_version_1(consortium: Consortium, tmp_path: Path) -> None:
    """It has no format of its own."""
    session = make_session(consortium.agreement, (9,) * consortium.clients, b"", b"")
    training = Training(session, OPTIMIZER, consortium.rounds)
    save_tensors(tmp_path / NEWEST, training.state(), {"progress": {}})
    with pytest.raises(CheckpointError, match=r"that of dresfl 0\.1, but 'dresfl checkpoint 3'"):
        restore(training, RunFolder(tmp_path))
    save_tensors(tmp_path / NEWEST, training.state(), {"format": "dresfl checkpoint 2", "progress": {}})
    with pytest.raises(CheckpointError, match="dresfl checkpoint 2, but 'dresfl checkpoint 3'"):
        restore(training, RunFolder(tmp_path))


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_an_older_version(consortium: Consortium, tmp_path: Path, version: int) -> None:
    digest = data_digest(*consortium.rows[0])
    ShareStore.open(tmp_path / "store", digest).close()
    write_record(tmp_path / "store" / "store.json", {"format": f"dresfl store {version}"})
    with pytest.raises(StoreError, match=f"is of 'dresfl store {version}', not of 'dresfl store 3'"):
        ShareStore.open(tmp_path / "store", digest)


@pytest.mark.parametrize("kind", [Share, Task, Answer])
def test_messages_of_version_1(consortium: Consortium, kind: Any) -> None:
    session = make_session(consortium.agreement, (9,) * consortium.clients, b"", b"")
    with pytest.raises(MessageError, match="version 1 is not spoken here"):
        kind.decode(bytes([1, kind.KIND]) + bytes(100), session)


# -- over a network --------------------------------------------------------------------------------------------


def test_a_client_of_version_1_is_told(consortium: Consortium) -> None:
    own = consortium.credentials(consortium.clients_keys[2])

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        credentials = grpc.ssl_channel_credentials(own.authority, own.identity.tls_key_pem(), own.certificate)
        options = [("grpc.ssl_target_name_override", consortium.roster.server.name)]
        async with asyncio.timeout(60):
            async with grpc.aio.secure_channel(f"127.0.0.1:{network.port}", credentials, options) as channel:
                call = channel.stream_stream("/dresfl.Hub/Session")()
                assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
                assert "version 1" in await call.details()
            assert "version 1" in (await network.coordinator_events.seen("refused"))["reason"]
        coordinator.cancel()
        await asyncio.gather(coordinator, return_exceptions=True)

    asyncio.run(run())


def test_a_coordinator_of_version_1_is_named(consortium: Consortium) -> None:
    """Its port has another service."""

    async def nothing(_: object, context: Any) -> None:
        await context.abort(grpc.StatusCode.INTERNAL, "nobody asks for this")

    async def run() -> None:
        listener, there = grpc.aio.server(), Network(consortium)
        handlers = {"Session": grpc.stream_stream_rpc_method_handler(nothing)}
        listener.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("dresfl.Hub", handlers),))
        credentials = consortium.credentials(consortium.coordinator)
        there.port = listener.add_secure_port("127.0.0.1:0", credentials.for_server())
        await listener.start()
        try:
            async with asyncio.timeout(60):
                with pytest.raises(Refused, match="does not speak version 5"):
                    await there.start_client(0)
        finally:
            await listener.stop(0)

    asyncio.run(run())


def test_the_refusals_say_what_to_do(consortium: Consortium) -> None:
    found: DresError = refusal(consortium, HELLO_OF_VERSION_1)
    assert "same release" in found.hint
    other = replace(consortium.agreement, seed=3).encode()
    assert refusal(consortium, Hello(Introduction(9, bytes(64)), bytes(16), other).encode()).hint
