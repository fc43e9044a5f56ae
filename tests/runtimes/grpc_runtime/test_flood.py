"""Strangers with many connections: there is a limit and a time for them, and the run goes on."""

import asyncio
import errno
import resource
import socket
import ssl
from pathlib import Path

import pytest

from commands import Run
from consortium import Consortium
from dresfl.deploy.settings import Keys
from dresfl.errors import StoreError, UsageError
from dresfl.experiments.config import load_config
from dresfl.experiments.training import train
from dresfl.experiments.trials.grpc_trial import Trial, write_clients, write_trial
from dresfl.files import disk
from dresfl.runtimes.grpc_runtime import coordinator as coordinator_module
from dresfl.runtimes.grpc_runtime.descriptors import RESERVE, STRANGERS, connection_limit
from dresfl.sealing import Roster

from .federation import LIMIT, Network, within
from .flood import Flood
from .test_processes import preset as preset
from .test_processes import wait_for


@pytest.mark.parametrize("handshake", [1.0, 1000.0], ids=["timed out", "the oldest make room"])
def test_idle_connections_do_not_keep_clients_out(
    tmp_path: Path, handshake: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More strangers than connections are allowed, before the first client comes and until the end."""
    monkeypatch.setattr(coordinator_module, "connection_limit", lambda clients: 20)
    if handshake < 10:
        monkeypatch.setattr(coordinator_module.Strangers, "many", lambda _: False)  # as where there is no /proc
    consortium = Consortium(tmp_path, clients=5)

    async def run() -> None:
        network = Network(consortium, handshake=handshake)
        coordinator = await network.start_coordinator()
        async with Flood(network.port, 30, again_after=0.5) as flood:
            await within("the flood", flood.full.wait())
            clients = network.start_clients()
            assert await network.finish(coordinator, clients) == consortium.expected()
        assert flood.closed > 0
        assert bool(network.coordinator_events.of("strangers closed")) == (handshake > 10)

    asyncio.run(run())


def test_a_certificate_alone_does_not_keep_a_connection(tmp_path: Path) -> None:
    """A client that gets through the handshake and opens no stream is sent away too."""
    consortium = Consortium(tmp_path, clients=5)
    own = consortium.credentials(consortium.clients_keys[0])
    (tmp_path / "key.pem").write_bytes(own.identity.tls_key_pem())
    (tmp_path / "certificate.pem").write_bytes(own.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=own.authority.decode())
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    context.set_alpn_protocols(["h2"])

    def idle(port: int) -> None:
        settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
        with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as wrapped:
            wrapped.settimeout(LIMIT)
            wrapped.sendall(settings)
            while wrapped.recv(4096):  # until the coordinator closes it
                pass

    async def run() -> None:
        network = Network(consortium, handshake=1.0)
        coordinator = await network.start_coordinator()
        await within("the end of the connection", asyncio.to_thread(idle, network.port))
        assert await network.finish(coordinator, network.start_clients()) == consortium.expected()

    asyncio.run(run())


# -- descriptors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "clients", "connections", "soft"),
    [
        ((1024, 1024), 20, 1024 - RESERVE, 1024),
        ((256, 1024), 20, 1024 - RESERVE, 1024),  # the soft limit is raised
        ((256, resource.RLIM_INFINITY), 20, 20 + STRANGERS, 20 + STRANGERS + RESERVE),
        ((10_000, 20_000), 20, 20 + STRANGERS, 10_000),
        ((1024, 1024), 800, 1024 - RESERVE, 1024),
    ],
)
def test_connections_leave_room_for_files(
    limits: tuple[int, int], clients: int, connections: int, soft: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda _: now[0])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: now.__setitem__(0, wanted))
    assert connection_limit(clients) == connections
    assert now[0] == (soft, limits[1])


def test_more_clients_than_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with pytest.raises(UsageError, match="1000 clients need") as caught:
        connection_limit(1000)
    assert "LimitNOFILE=" in caught.value.hint


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_no_descriptor_left_has_a_hint_of_its_own(number: int, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught, disk(tmp_path, "read"):
        raise OSError(number, "too many")
    assert "ulimit -n" in caught.value.hint


# -- real processes --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("again_after", [1000.0, 0.5], ids=["held", "opened again"])
def test_two_thousand_connections_at_1024_descriptors(
    tmp_path: Path, preset: str, dresfl: Run, again_after: float
) -> None:
    """They are there before the first client comes, and until the end."""
    trial = Trial(preset, clients=6, mode="open")
    coordinator, clients = write_trial(trial, tmp_path / "trial")
    digest = Roster.load(tmp_path / "trial" / "roster.json").digest
    keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", digest)
    processes = [coordinator, *clients]

    async def run() -> None:
        coordinator.start()
        resource.prlimit(coordinator.process.pid, resource.RLIMIT_NOFILE, (1024, 1024))  # long before it looks
        port = int(str((await asyncio.to_thread(wait_for, coordinator, "listening"))["port"]))
        write_clients(trial.run_config(), keys, "", tmp_path / "trial", 6, port)
        async with Flood(port, 2000, again_after) as flood:
            await within("the flood", flood.full.wait())
            for client in clients:
                client.start()
            ends = asyncio.gather(*(asyncio.to_thread(process.process.wait, 300) for process in processes))
            assert await within("the end of all processes", ends, 400.0) == [0] * len(processes)
        assert flood.opened >= 2000

    try:
        asyncio.run(run())
    finally:
        for process in processes:
            if process.starts and process.running:
                process.kill()
    undisturbed = train(
        load_config(preset, ["federation.num_clients=6", 'dropout.model="none"']), out=tmp_path / "undisturbed"
    )
    assert {process.result()["weights_sha256"] for process in processes} == {undisturbed["weights_sha256"]}
