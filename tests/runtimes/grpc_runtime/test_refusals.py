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
from dresfl.runtimes.grpc_runtime.frames import Begin, Hello, Ready, Reply, Weights, decode
from dresfl.runtimes.grpc_runtime.log import core_event
from dresfl.runtimes.grpc_runtime.site import Site

from consortium import Consortium
from dresfl import sealing
from dresfl.errors import IdentityError, Refused
from dresfl.federation import NO_NONCE
from dresfl.federation import sealed_slices as parcels
from dresfl.model import weights_sha256
from dresfl.protocol import Answer, Task
from dresfl.runtimes.grpc_runtime import Credentials
from dresfl.runtimes.grpc_runtime.coordinator import SERVICE
from dresfl.sealing import CertificateAuthority, Identity, SealContext, certificate_request
from dresfl.storage import ShareStore, data_digest

from .federation import Events, Network

Intrude = Callable[[Network], Awaitable[None]]


def disturbed(consortium: Consortium, intrude: Intrude) -> Network:
    """A run with an intruder in the middle of it: the weights are those of an undisturbed one."""

    async def run() -> Network:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        sites = network.start_clients()
        async with network.pause_after(3):
            await intrude(network)
        async with asyncio.timeout(60):
            await asyncio.gather(*sites.values())
            server = await coordinator
        assert weights_sha256(server.weights) == consortium.expected()
        return network

    return asyncio.run(run())


def dial(network: Network, credentials: Any, method: str = "Session", **options: Any) -> tuple[Any, Any]:
    target, name = f"127.0.0.1:{network.port}", network.consortium.coordinator.name
    chosen = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        channel = grpc.aio.insecure_channel(target, chosen)
    else:
        channel = grpc.aio.secure_channel(target, credentials, chosen)
    return channel, channel.stream_stream(f"/{SERVICE}/{method}")()


async def drain(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def refused_call(network: Network, credentials: Any, *frames: bytes, method: str = "Session") -> grpc.StatusCode:
    """Dial, send frames, and return how the coordinator ended it."""
    channel, call = dial(network, credentials, method)
    async with channel, asyncio.timeout(20):
        try:
            for frame in frames:  # none for who is refused at the door: what meets an ended stream hides its reason
                await call.write(frame)
            await drain(call)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return await call.code()


def reasons(capfd: pytest.CaptureFixture[str]) -> str:
    lines = capfd.readouterr().err.splitlines()
    found = [event[1] for event in map(core_event, lines) if event and event[0] == "refused"]
    return "\n".join(str(fields["reason"]) for fields in found)


def hello(network: Network, index: int, **changes: Any) -> Hello:
    consortium = network.consortium
    rows = len(consortium.rows[index][0])
    own = Hello(consortium.agreement.digest, rows, bytes(32), NO_NONCE, secrets.token_bytes(16))
    return replace(own, **changes)


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
    consortium = Consortium(tmp_path)
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
            capfd.readouterr()
            assert await refused_call(network, credentials) is grpc.StatusCode.UNAVAILABLE
            assert reason in reasons(capfd)

    disturbed(consortium, intrude)


def test_tls_below_1_3(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    consortium = Consortium(tmp_path)
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
        assert "below 1.3" in reasons(capfd)

    disturbed(consortium, intrude)


def test_a_site_refuses_tls_below_1_3(tmp_path: Path) -> None:
    """The other side of it: a coordinator that speaks only TLS 1.2 is not spoken to."""
    consortium = Consortium(tmp_path)
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
        assert await refused_call(network, site) is grpc.StatusCode.UNAVAILABLE
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
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "too early" in done.stdout


# -- the roster ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [("stranger", "is not in the roster"), ("site-0", "is listed with another key"), ("coordinator", "not in the")],
)
def test_certificates_beside_the_roster(tmp_path: Path, name: str, reason: str) -> None:
    """A good certificate of the right authority is not enough."""
    consortium = Consortium(tmp_path)
    other = consortium.credentials(Identity.create(name))
    credentials = grpc.ssl_channel_credentials(other.authority, other.identity.tls_key_pem(), other.certificate)

    async def intrude(network: Network) -> None:
        assert await refused_call(network, credentials) is grpc.StatusCode.PERMISSION_DENIED
        assert reason in (await network.coordinator_events.seen("refused"))["reason"]

    disturbed(consortium, intrude)


def test_a_site_with_an_expired_certificate_says_so(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    identity = consortium.clients_keys[0]
    credentials = consortium.credentials(identity, certificate=expired(consortium, identity))

    async def run() -> None:
        await Network(consortium).start_client(0, credentials=credentials)

    with pytest.raises(IdentityError, match="not now"):
        asyncio.run(run())


# -- frames ----------------------------------------------------------------------------------------------------


def own_credentials(network: Network, index: int) -> Any:
    return network.consortium.credentials(network.consortium.clients_keys[index]).for_client()


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\xff", "kind 255"),
        (b"\x01", "Hello has"),
        (b"\x01\x09" + bytes(10), "version 9"),
        (Ready(bytes(16)).encode(), "where Hello was expected"),
        (bytes([1, 1]) + bytes(70_000), "Hello has"),
        (bytes(2**20 + 2000), "are the most"),
    ],
    ids=["unknown", "short", "version", "order", "long", "large"],
)
def test_malformed_frames(tmp_path: Path, frame: bytes, reason: str) -> None:
    """From a listed member, even: they end its own connection, which its honest process then takes back."""
    consortium = Consortium(tmp_path, clients=6)

    async def intrude(network: Network) -> None:
        code = await refused_call(network, own_credentials(network, 5), frame)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert reason in (await network.coordinator_events.seen("refused"))["reason"]

    disturbed(consortium, intrude)


def test_frames_beyond_any_size(tmp_path: Path) -> None:
    async def intrude(network: Network) -> None:
        code = await refused_call(network, own_credentials(network, 5), bytes(2**25))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await network.coordinator_events.until(lambda events: any("far above" in e["reason"] for e in events.of("cut")))

    disturbed(Consortium(tmp_path), intrude)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"agreement": bytes(32)}, "agreement differs"),
        ({"rows": 3}, "3 rows"),
        ({"contribution": b"x" * 32}, "secret or rows"),
    ],
)
def test_hellos_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    async def intrude(network: Network) -> None:
        frame = hello(network, 5, **changes).encode()
        code = await refused_call(network, own_credentials(network, 5), frame)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert reason in (await network.coordinator_events.seen("refused"))["reason"]

    disturbed(Consortium(tmp_path), intrude)


def test_a_site_with_another_agreement_ends(tmp_path: Path) -> None:
    """Its process ends with the coordinator's reason, instead of trying for ever."""

    async def run() -> None:
        network = Network(Consortium(tmp_path))
        coordinator = await network.start_coordinator()
        agreement = replace(network.consortium.agreement, seed=99)
        with pytest.raises(Refused, match="agreement differs"):
            await network.start_client(5, agreement=agreement)
        coordinator.cancel()

    asyncio.run(run())


async def join(network: Network, index: int) -> tuple[Any, Any, Begin]:
    """Take a site's place by hand, up to the terms."""
    site = network.consortium.clients_keys[index]
    channel, call = dial(network, network.consortium.credentials(site).for_client())
    contribution = network.running.terms.contributions[index]
    await call.write(hello(network, index, contribution=contribution).encode())
    return channel, call, decode(await call.read(), Begin)


@pytest.mark.parametrize(
    ("forged", "reason"), [("garbage", "too short"), ("another's name", "in the name of client 0")]
)
def test_invalid_answers(tmp_path: Path, forged: str, reason: str) -> None:
    """They end the connection they came over, and count for nothing. (All five are needed, so the run waits.)"""

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        sites = network.start_clients()
        async with network.pause_after(3):
            sites[4].cancel()
            await asyncio.wait({sites[4]})
        channel, call, _ = await join(network, 4)
        session = network.running.session
        async with channel:
            await call.write(Ready(session.sharing_id).encode())
            number = Task.decode(decode(await call.read(), Weights).task, session).round_number
            residues = torch.zeros((len(session.field.moduli), session.network.num_parameters))
            answer = Answer(number, 0, residues.to(session.field.dtype)).encode(session)
            await call.write(Reply(number, b"garbage" if forged == "garbage" else answer).encode())
            with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
                await drain(call)
        assert reason in network.coordinator_events.of("refused")[0]["reason"]
        sites[4] = network.start_client(4)
        async with asyncio.timeout(60):
            await asyncio.gather(*sites.values())
            assert weights_sha256((await coordinator).weights) == consortium.expected()

    consortium = Consortium(tmp_path, clients=5)
    asyncio.run(run())


# -- the relay -------------------------------------------------------------------------------------------------


def test_a_share_sealed_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not open at its receiver, which says so; the others share and train without it."""
    consortium = Consortium(tmp_path, clients=6)

    def seal(identity: Identity, receiver: Any, context: SealContext, plaintext: bytes) -> bytes:
        """Site 2 binds what is for site 3 to site 4."""
        swap = context.dealer == 2 and context.receiver == 3
        return sealing.seal(identity, receiver, replace(context, receiver=4) if swap else context, plaintext)

    monkeypatch.setattr(parcels, "seal", seal)

    async def run() -> Network:
        network = Network(consortium, linger=0.1)
        coordinator = await network.start_coordinator()
        sites = network.start_clients()
        server = await coordinator
        assert weights_sha256(server.weights) == consortium.expected()
        for task in sites.values():
            task.cancel()
        return network

    network = asyncio.run(run())
    rejected = network.coordinator_events.of("slice rejected")
    assert {(event["dealer"], event["receiver"]) for event in rejected} == {(2, 3)}
    assert rejected[-1]["then"] == "given up"
    assert 3 not in {event["client"] for event in network.coordinator_events.of("ready")}


# -- replays ---------------------------------------------------------------------------------------------------


def test_a_replayed_session(tmp_path: Path) -> None:
    """Terms signed for an earlier hello, by another key, or of a sharing this site did not join."""
    consortium = Consortium(tmp_path)
    captured: list[Begin] = []

    async def intrude(network: Network) -> None:
        channel, _, begin = await join(network, 5)
        captured.append(begin)
        await channel.close()

    disturbed(consortium, intrude)
    rows = consortium.rows[5]
    credentials = consortium.credentials(consortium.clients_keys[5])
    with ShareStore.open(tmp_path / "site-5", data_digest(*rows)) as store:
        site = Site(Network(consortium).site_settings(), consortium.agreement, credentials, store, rows, Events().log)
        with pytest.raises(IdentityError, match="not signed"):
            site._accept(captured[0], site._hello())

    def signed(credentials: Credentials, begin: Begin, greeting: Hello) -> Begin:
        from dresfl.runtimes.grpc_runtime.lobby import to_sign

        message = to_sign(greeting.challenge, 5, consortium.roster.digest, begin.body())
        return replace(begin, signature=credentials.identity.sign("begin", message))

    with ShareStore.open(tmp_path / "elsewhere", data_digest(*rows)) as store:
        site = Site(Network(consortium).site_settings(), consortium.agreement, credentials, store, rows, Events().log)
        greeting = site._hello()
        replayed = signed(consortium.credentials(consortium.coordinator), captured[0], greeting)
        with pytest.raises(Refused, match="did not join"):
            site._accept(replayed, greeting)
        with pytest.raises(IdentityError, match="not signed"):
            site._accept(signed(consortium.credentials(consortium.clients_keys[0]), captured[0], greeting), greeting)
