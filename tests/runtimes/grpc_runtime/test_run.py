"""Whole runs over real gRPC and TLS on loopback, clients as tasks in this process."""

import asyncio
from pathlib import Path

import pytest

from consortium import Consortium
from dresfl.errors import DresError
from dresfl.model import weights_sha256
from dresfl.protocol import Task

from .federation import LIMIT, Network, within


def test_the_weights_are_those_of_one_process(tmp_path: Path) -> None:
    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        return await network.finish(coordinator, network.start_clients())

    consortium = Consortium(tmp_path)
    assert asyncio.run(run()) == consortium.expected()


def test_nobody_leaves_before_the_end(tmp_path: Path) -> None:
    async def run() -> Network:
        network = Network(Consortium(tmp_path, rounds=30))
        coordinator = await network.start_coordinator()
        await network.finish(coordinator, network.start_clients())
        return network

    network = asyncio.run(run())
    assert len(network.coordinator_events.of("joined")) == 6
    assert all(not events.of("disconnected") for events in network.client_events)
    assert not network.coordinator_events.of("cut")
    assert network.machine.relay.stored_bytes == 0


def test_the_end_is_confirmed_only_when_the_weights_are_kept(tmp_path: Path) -> None:
    """Had the coordinator heard of client 2 before, it would be gone when the client comes back for the weights."""

    def fail(task: Task) -> None:
        raise DresError("no space left")

    async def run() -> Network:
        network = Network(consortium, linger=LIMIT)
        coordinator = await network.start_coordinator()
        clients = {**network.start_clients(but=(2,)), 2: network.start_client(2, keep=fail)}
        with pytest.raises(DresError, match="no space left"):
            await within("client 2 to fail", clients.pop(2), report=network.report)
        await within("the others' end", asyncio.gather(*clients.values()), report=network.report)
        assert not coordinator.done()
        kept: list[Task] = []
        again = {2: network.start_client(2, keep=kept.append)}
        assert await network.finish(coordinator, again) == consortium.expected()
        assert [weights_sha256(task.weights) for task in kept] == [consortium.expected()]
        return network

    consortium = Consortium(tmp_path)
    assert not asyncio.run(run()).coordinator_events.of("ended without")
