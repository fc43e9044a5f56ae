"""A client written from SPEC.md alone takes part with those of the package, and every round needs its answer."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch

from consortium import Consortium
from dresfl.federation import RoundTiming
from dresfl.model import weights_sha256
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.grpc_runtime import Credentials
from reference.second_client import SecondClient

from .federation import Network

PLACE = 2  # of the second client among the others


def second_client(consortium: Consortium, folder: Path) -> tuple[SecondClient, grpc.ChannelCredentials]:
    """The client from the page alone, with its own keys and rows."""
    consortium.roster.save(folder / "roster.json")
    consortium.clients_keys[PLACE].save(folder / "keys")
    own: Credentials = consortium.credentials(consortium.clients_keys[PLACE])
    rows = torch.cat(consortium.rows[PLACE], 1).tolist()
    text = consortium.agreement.encode().decode()
    second = SecondClient(folder / "roster.json", folder / "keys" / "identity.json", text, rows)
    return second, grpc.ssl_channel_credentials(own.authority, own.identity.tls_key_pem(), own.certificate)


@pytest.mark.parametrize(("shards", "clients"), [(1, 5), (2, 9)])
def test_a_client_from_the_page_alone(tmp_path: Path, shards: int, clients: int) -> None:
    consortium = Consortium(tmp_path, clients=clients, rounds=6)
    consortium.agreement = replace(consortium.agreement, num_shards=shards)
    second, credentials = second_client(consortium, tmp_path)

    async def run() -> list[int]:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        sites = network.start_clients(but=(PLACE,))
        async with asyncio.timeout(120):
            final = await second.run(f"127.0.0.1:{network.port}", credentials)
            await asyncio.gather(*sites.values())
            server = await coordinator
        assert network.coordinator_events.of("refused") == []
        assert weights_sha256(server) == consortium.expected()
        assert server.tolist() == final
        return final

    asyncio.run(run())
    assert second.index == PLACE
    assert second.answered == consortium.rounds


@pytest.mark.parametrize(("shards", "clients", "check"), [(1, 5, "A"), (1, 5, "C"), (2, 7, "A")])
def test_a_client_from_the_page_alone_in_the_hidden_mode(tmp_path: Path, shards: int, clients: int, check: str) -> None:
    settings = HiddenSettings(schedule="S2", check=check, trusted_dealers=True)  # type: ignore[arg-type]
    consortium = Consortium(tmp_path, clients=clients, rounds=2, hidden=settings)
    consortium.agreement = replace(consortium.agreement, num_shards=shards)
    second, credentials = second_client(consortium, tmp_path)

    async def run() -> list[int]:
        network = Network(consortium, RoundTiming(deadline=1.0))  # a sum at the end waits so long for this client
        coordinator = await network.start_coordinator()
        sites = network.start_clients(but=(PLACE,))
        async with asyncio.timeout(120):
            final = await second.run(f"127.0.0.1:{network.port}", credentials)
            await asyncio.gather(*sites.values())
            await asyncio.wait({coordinator})
        assert network.coordinator_events.of("liar") == []
        assert network.coordinator_events.of("refused") == []
        assert network.machine.model is not None
        assert network.machine.model.tolist() == final
        return final

    asyncio.run(run())
    assert second.answered > 0
