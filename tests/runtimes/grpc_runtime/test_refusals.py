"""Who and what is refused: with a log line that says why, and no effect on the others."""

import asyncio
import datetime
import os
import secrets
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from consortium import Consortium
from dresfl import sealing
from dresfl.errors import IdentityError, Refused
from dresfl.federation import Introduction, RoundTiming, Site, Workplace, sealed_slices
from dresfl.federation.actions import Action, GiveUp, Join
from dresfl.federation.enrolment import signed_begin
from dresfl.federation.messages import VERSION, Answered, Begin, Hello, Judged, Ready, Wait, Weights, decode
from dresfl.protocol import Answer, Task
from dresfl.runtimes.grpc_runtime.core_log import core_event
from dresfl.runtimes.grpc_runtime.streams import METHOD, SERVICE, unbundle
from dresfl.sealing import CertificateAuthority, Identity, SealContext, certificate_request
from dresfl.storage import ShareStore, data_digest

from .federation import LIMIT, Network, stop, within

Intrude = Callable[[Network], Awaitable[None]]
PLACE = 4  # of five clients, all needed: the intruder comes while this one is away, so that the run waits for both


async def disturbed_run(consortium: Consortium, intrude: Intrude) -> Network:
    """A run that waits for one client, and goes on with it after `intrude`: the weights are the undisturbed ones."""
    network = Network(consortium)
    coordinator = await network.start_coordinator()
    clients = network.start_clients()
    async with network.pause_after(3):
        await stop(clients.pop(PLACE))
    await network.coordinator_events.seen("left")
    await within("the end of what disturbs the run", intrude(network), report=network.report)
    clients[PLACE] = network.start_client(PLACE)
    assert await network.finish(coordinator, clients) == consortium.expected()
    return network


def disturbed(consortium: Consortium, intrude: Intrude) -> Network:
    """`disturbed_run` in a loop of its own."""
    return asyncio.run(disturbed_run(consortium, intrude))


def five_clients(folder: Path) -> Consortium:
    return Consortium(folder, clients=5)


def dial(network: Network, credentials: Any, method: str = METHOD) -> tuple[Any, Any]:
    target, name = f"127.0.0.1:{network.port}", network.consortium.coordinator.name
    chosen = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        channel = grpc.aio.insecure_channel(target, chosen)
    else:
        channel = grpc.aio.secure_channel(target, credentials, chosen)
    return channel, channel.stream_stream(f"/{SERVICE}/{method}", bundle_of_one, first_message)()


def bundle_of_one(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + message


def first_message(data: bytes) -> bytes:
    """The first message of a bundle that is not the verdict on the dealers, which others may follow."""
    found = [bytes(message) for message in unbundle(data)]
    return next((message for message in found if message[0] != Judged.KIND), found[0])


async def drain(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def refused_call(network: Network, credentials: Any, *messages: bytes) -> grpc.StatusCode:
    """Dial, send messages, and return how the coordinator ended it."""
    channel, call = dial(network, credentials)
    async with channel:
        try:
            for message in messages:  # none for who is refused at once: what meets an ended stream hides its reason
                await call.write(message)
            await drain(call)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return await call.code()


async def refused_handshake(capfd: pytest.CaptureFixture[str], reason: str) -> None:
    """Wait until gRPC's core has said on stderr why it refused a handshake: it may do so after the other side knows."""
    found: list[str] = []

    async def look() -> None:
        while not any(reason in text for text in found):
            await asyncio.sleep(0.02)
            events = [event for event in map(core_event, capfd.readouterr().err.splitlines()) if event]
            found.extend(str(fields["reason"]) for event, fields in events if event == "refused")

    await within(f"a refused handshake: {reason}", look(), report=lambda: "\n".join(found))


def hello(network: Network, index: int, agreement: bytes | None = None, **changes: Any) -> bytes:
    """A Hello that fits, unless it is changed."""
    consortium = network.consortium
    own = Introduction(len(consortium.rows[index][0]), network.terms.contributions[index])
    challenge = secrets.token_bytes(16)
    return Hello(replace(own, **changes), challenge, agreement or consortium.agreement.encode()).encode()


# -- TLS -------------------------------------------------------------------------------------------------------


def expired(consortium: Consortium, identity: Identity) -> bytes:
    """A certificate of the right authority for the right key, of last year."""
    good = x509.load_pem_x509_certificate(consortium.credentials(identity).certificate)
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=365)
    builder = x509.CertificateBuilder(
        good.issuer, good.subject, good.public_key(), good.serial_number, then, then + datetime.timedelta(days=1)
    )
    for extension in good.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    key = consortium.authority._key
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_strangers_to_tls(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Plaintext, no certificate, another authority's, an expired one: none gets as far as a stream."""
    consortium = five_clients(tmp_path)
    site = consortium.clients_keys[0]
    authority, key = consortium.authority.certificate_pem(), site.tls_key_pem()
    foreign = CertificateAuthority.create().sign(certificate_request(site))
    strangers = {
        "plaintext": None,
        "no client certificate": grpc.ssl_channel_credentials(authority),
        "issuer": grpc.ssl_channel_credentials(authority, key, foreign),
        "expired": grpc.ssl_channel_credentials(authority, key, expired(consortium, site)),
    }

    async def intrude(network: Network) -> None:
        for reason, credentials in strangers.items():
            assert await refused_call(network, credentials) is grpc.StatusCode.UNAVAILABLE
            await refused_handshake(capfd, reason)

    disturbed(consortium, intrude)


def test_tls_below_1_3(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    consortium = five_clients(tmp_path)
    own = consortium.credentials(consortium.clients_keys[0])
    (tmp_path / "key.pem").write_bytes(own.identity.tls_key_pem())
    (tmp_path / "certificate.pem").write_bytes(own.certificate)

    def handshake(port: int, version: ssl.TLSVersion) -> str | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=own.authority.decode())
        context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
        context.set_alpn_protocols(["h2"])
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as wrapped:
            return wrapped.version()

    async def intrude(network: Network) -> None:
        assert await asyncio.to_thread(handshake, network.port, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(handshake, network.port, ssl.TLSVersion.TLSv1_2)
        await refused_handshake(capfd, "below 1.3")

    disturbed(consortium, intrude)


def test_a_client_refuses_tls_below_1_3(tmp_path: Path) -> None:
    """The other side of it: a coordinator that speaks only TLS 1.2 is not spoken to."""
    consortium = five_clients(tmp_path)
    own = consortium.credentials(consortium.coordinator)
    (tmp_path / "key.pem").write_bytes(own.identity.tls_key_pem())
    (tmp_path / "certificate.pem").write_bytes(own.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def run() -> None:
        listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=context)
        network = Network(consortium)
        network.port = listener.sockets[0].getsockname()[1]
        site = consortium.credentials(consortium.clients_keys[0]).for_client()
        code = await within("the client to refuse", refused_call(network, site))
        assert code is grpc.StatusCode.UNAVAILABLE
        listener.close()

    asyncio.run(run())


def test_grpc_loaded_too_early(tmp_path: Path) -> None:
    """Then it cannot be held to TLS 1.3 any more, and is not used at all."""
    program = """
import grpc
from dresfl.errors import UsageError
from dresfl.runtimes.grpc_runtime import Credentials
try:
    Credentials(None, b"", b"", None).for_client()
except UsageError as error:
    print(error)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    arguments = [sys.executable, "-c", program]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True, timeout=LIMIT)
    assert "too early" in done.stdout


# -- the roster ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [("stranger", "is not in the roster"), ("site-0", "is listed with another key"), ("coordinator", "not in the")],
)
def test_certificates_beside_the_roster(tmp_path: Path, name: str, reason: str) -> None:
    """A good certificate of the right authority is not enough."""
    consortium = five_clients(tmp_path)
    other = consortium.credentials(Identity.create(name))
    credentials = grpc.ssl_channel_credentials(other.authority, other.identity.tls_key_pem(), other.certificate)

    async def intrude(network: Network) -> None:
        assert await refused_call(network, credentials) is grpc.StatusCode.PERMISSION_DENIED
        assert reason in (await network.coordinator_events.seen("refused"))["reason"]
        assert network.coordinator is not None
        assert network.coordinator.refusals == 1

    disturbed(consortium, intrude)


def test_a_client_with_an_expired_certificate_says_so(tmp_path: Path) -> None:
    consortium = five_clients(tmp_path)
    identity = consortium.clients_keys[0]
    credentials = consortium.credentials(identity, certificate=expired(consortium, identity))

    async def run() -> None:
        await Network(consortium).start_client(0, credentials=credentials)

    with pytest.raises(IdentityError, match="not now"):
        asyncio.run(run())


# -- messages --------------------------------------------------------------------------------------------------


def own_credentials(network: Network, index: int = PLACE) -> Any:
    return network.consortium.credentials(network.consortium.clients_keys[index]).for_client()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\xff", "kind 255"),
        (b"\x01", "too short"),
        (b"\x01\x09" + bytes(10), "version 9"),
        (Ready(bytes(16), bytes(32)).encode(), "where Hello was expected"),
        (bytes([1, VERSION]) + bytes(70_000), "too long"),
    ],
    ids=["unknown", "short", "version", "order", "long"],
)
def test_malformed_messages(tmp_path: Path, message: bytes, reason: str) -> None:
    """Even from a client of the roster: they end its connection, and its honest process can come back."""

    async def intrude(network: Network) -> None:
        code = await refused_call(network, own_credentials(network), message)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert reason in (await network.coordinator_events.seen("refused"))["reason"]

    disturbed(five_clients(tmp_path), intrude)


def test_messages_beyond_the_limit(tmp_path: Path) -> None:
    """A little above it the coordinator says so; far above it gRPC ends the stream before it has read the message."""

    async def intrude(network: Network) -> None:
        assert network.host is not None
        most = network.host.most_bytes
        code = await refused_call(network, own_credentials(network), bytes(most + 1))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "are the most" in (await network.coordinator_events.seen("refused"))["reason"]
        code = await refused_call(network, own_credentials(network), bytes(most + 2**24))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "far above" in (await network.coordinator_events.seen("cut"))["reason"]

    disturbed(five_clients(tmp_path), intrude)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"agreement": b"{}"}, "agreement differs"),
        ({"rows": 3}, "3 rows"),
        ({"contribution": b"x" * 64}, "secret or rows"),
    ],
)
def test_hellos_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    async def intrude(network: Network) -> None:
        code = await refused_call(network, own_credentials(network), hello(network, PLACE, **changes))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert reason in (await network.coordinator_events.seen("refused"))["reason"]

    disturbed(five_clients(tmp_path), intrude)


def test_a_client_with_another_agreement_ends(tmp_path: Path) -> None:
    """Its process ends with the coordinator's reason, instead of trying for ever."""

    async def run() -> None:
        network = Network(Consortium(tmp_path))
        coordinator = await network.start_coordinator()
        agreement = replace(network.consortium.agreement, seed=99)
        with pytest.raises(Refused, match="agreement differs"):
            await within("the client's end", network.start_client(5, agreement=agreement), report=network.report)
        await stop(coordinator)

    asyncio.run(run())


async def join(network: Network, index: int) -> tuple[Any, Any, Begin]:
    """Take a client's place by hand, up to the terms."""
    channel, call = dial(network, own_credentials(network, index))
    await call.write(hello(network, index))
    begin = decode(await call.read(), (Begin,))
    assert isinstance(begin, Begin)
    return channel, call, begin


@pytest.mark.parametrize(
    ("forged", "reason"), [("garbage", "too short"), ("another's name", "in the name of client 0")]
)
def test_invalid_answers(tmp_path: Path, forged: str, reason: str) -> None:
    """They end the connection they came over, and count for nothing.

    The honest client 4 is away before round 4 begins, and the round needs its answer: so the forged answer is the one
    that counts.
    """

    async def intrude(network: Network) -> None:
        channel, call, _ = await join(network, PLACE)
        session = network.machine.training.session
        async with channel:
            await call.write(Ready(session.sharing_id, bytes(32)).encode())
            while (data := await call.read())[0] == Judged.KIND:
                pass
            weights = decode(data, (Weights,))
            assert isinstance(weights, Weights)
            number = Task.decode(weights.task, session).round_number
            assert number == 4
            residues = torch.zeros((len(session.field.moduli), session.network.num_parameters))
            answer = Answer(number, 0, residues.to(session.field.dtype)).encode(session)
            await call.write(Answered(number, b"garbage" if forged == "garbage" else answer).encode())
            with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
                await drain(call)
        assert reason in (await network.coordinator_events.seen("refused"))["reason"]

    network = disturbed(five_clients(tmp_path), intrude)
    assert network.machine.counters.invalid == 1


def test_messages_before_the_terms(tmp_path: Path) -> None:
    """A client that was told to wait has nothing to say."""

    async def run() -> None:
        network = Network(five_clients(tmp_path))
        coordinator = await network.start_coordinator()
        channel, call = dial(network, own_credentials(network))
        introduction = Introduction(13, bytes(64))
        async with channel:
            await call.write(Hello(introduction, bytes(16), network.consortium.agreement.encode()).encode())
            assert isinstance(decode(await call.read(), (Wait,)), Wait)
            await call.write(Ready(bytes(16), bytes(32)).encode())
            with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
                await within("the refusal", drain(call), report=network.report)
        await stop(coordinator)

    asyncio.run(run())


# -- the relay -------------------------------------------------------------------------------------------------


def test_a_share_sealed_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not open at its receiver, which says so; the others share and train without it."""
    consortium = Consortium(tmp_path, clients=6)

    def seal(identity: Identity, receiver: Any, context: SealContext, plaintext: bytes) -> bytes:
        """Client 2 binds what is for client 3 to client 4."""
        swap = context.dealer == 2 and context.receiver == 3
        return sealing.seal(identity, receiver, replace(context, receiver=4) if swap else context, plaintext)

    monkeypatch.setattr(sealed_slices, "seal", seal)

    async def run() -> Network:
        network = Network(consortium, RoundTiming(deadline=1.0))  # after so long the check does without client 3
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(3):
            await stop(clients.pop(5))  # five others answer, client 3 cannot: the run waits
        events = network.coordinator_events
        await events.until("a slice to be given up", lambda _: "given up" in [e["then"] for e in rejected(network)])
        clients[5] = network.start_client(5)
        assert await network.finish(coordinator, clients) == consortium.expected()
        return network

    def rejected(network: Network) -> list[dict[str, Any]]:
        return network.coordinator_events.of("slice rejected")

    network = asyncio.run(run())
    assert {(event["dealer"], event["receiver"]) for event in rejected(network)} == {(2, 3)}
    assert [event["then"] for event in rejected(network)] == ["asked for again"] * 3 + ["given up"]
    assert 3 not in {event["client"] for event in network.coordinator_events.of("ready")}


# -- replays ---------------------------------------------------------------------------------------------------


def test_replayed_terms(tmp_path: Path) -> None:
    """Terms signed for an earlier Hello, by another key, or of a sharing that this client did not join."""
    consortium, captured = five_clients(tmp_path), list[Begin]()

    async def intrude(network: Network) -> None:
        channel, _, begin = await join(network, PLACE)
        captured.append(begin)
        await channel.close()

    disturbed(consortium, intrude)
    identity, rows = consortium.clients_keys[PLACE], consortium.rows[PLACE]

    def receive(folder: Path, signer: Identity | None) -> list[Action]:
        with ShareStore.open(folder, data_digest(*rows)) as store:
            workplace = Workplace(consortium.agreement, identity, consortium.roster, store, lambda: rows)
            challenge = secrets.token_bytes(16)
            site = Site(consortium.agreement, consortium.roster, PLACE, workplace.introduce, lambda: challenge)
            site.connected(0.0)
            begin = captured[0]
            if signer is not None:
                begin = signed_begin(signer, consortium.roster, PLACE, challenge, begin.terms)
            actions = site.received(begin.encode(), 0.0)
            if isinstance(actions[0], Join):
                return site.worked(actions[0], workplace.perform(actions[0]), 0.0)
            return actions

    own = tmp_path / f"client-{PLACE}"
    for folder, signer, kind, reason in (
        (own, None, IdentityError, "not signed"),
        (own, consortium.clients_keys[0], IdentityError, "not signed"),
        (tmp_path / "elsewhere", consortium.coordinator, Refused, "did not join"),
    ):
        *_, action = receive(folder, signer)
        assert isinstance(action, GiveUp)
        assert isinstance(action.error, kind)
        assert reason in str(action.error)
