"""Whole runs over real gRPC and TLS on loopback, sites as tasks in this process."""

import asyncio
from pathlib import Path

import pytest

from consortium import Consortium
from dresfl.errors import DresError
from dresfl.model import weights_sha256
from dresfl.protocol import Task

from .federation import Network


def test_the_weights_are_those_of_one_process(tmp_path: Path) -> None:
    async def run() -> tuple[str, set[str]]:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        sites = network.start_clients()
        finals = await asyncio.gather(*sites.values())
        server = await coordinator
        return weights_sha256(server.weights), {weights_sha256(task.weights) for task in finals}

    consortium = Consortium(tmp_path)
    ours, theirs = asyncio.run(run())
    assert ours == consortium.expected()
    assert theirs == {ours}


def test_nobody_leaves_before_the_end(tmp_path: Path) -> None:
    async def run() -> Network:
        network = Network(Consortium(tmp_path, rounds=30))
        coordinator = await network.start_coordinator()
        await asyncio.gather(*network.start_clients().values())
        await coordinator
        return network

    network = asyncio.run(run())
    assert len(network.coordinator_events.of("joined")) == 6
    assert all(not events.of("disconnected") for events in network.client_events)
    assert not network.coordinator_events.of("cut")
    assert network.machine.relay.stored_bytes == 0


def test_the_end_is_confirmed_only_when_the_weights_are_kept(tmp_path: Path) -> None:
    """Had the coordinator heard of site 2 before, it would be gone when the site comes back for the weights."""

    def fail(task: Task) -> None:
        raise DresError("no space left")

    async def run() -> Network:
        network = Network(consortium, linger=30.0)
        coordinator = await network.start_coordinator()
        sites = {**network.start_clients(but=(2,)), 2: network.start_client(2, keep=fail)}
        with pytest.raises(DresError, match="no space left"):
            await sites.pop(2)
        await asyncio.gather(*sites.values())
        assert not coordinator.done()
        kept: list[Task] = []
        await network.start_client(2, keep=kept.append)
        assert [weights_sha256(task.weights) for task in kept] == [consortium.expected()]
        await coordinator
        return network

    consortium = Consortium(tmp_path)
    assert not asyncio.run(run()).coordinator_events.of("ended without")
