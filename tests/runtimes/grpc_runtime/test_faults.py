"""Clients and coordinators that vanish and come back: the weights are those of an undisturbed run."""

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from consortium import Consortium
from dresfl.model import weights_sha256
from dresfl.runtimes.grpc_runtime import Pace

from .federation import Network


async def stop(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def finish(network: Network, coordinator: "asyncio.Task[Any]", sites: "dict[int, asyncio.Task[Any]]") -> str:
    async with asyncio.timeout(60):
        finals = await asyncio.gather(*sites.values())
        server = await coordinator
    weights = weights_sha256(server.weights)
    assert {weights_sha256(task.weights) for task in finals} == {weights}
    return weights


def test_clients_that_leave_are_not_missed(tmp_path: Path) -> None:
    """The threshold is 5 of 7: two may go for good, at any round."""

    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        sites = network.start_clients()
        async with network.pause_after(4):
            await stop(sites.pop(2))
            await stop(sites.pop(6))
        weights = await finish(network, coordinator, sites)
        assert network.coordinator_events.of("ended without")[0]["clients"] == [2, 6]
        return weights

    consortium = Consortium(tmp_path, clients=7)
    assert asyncio.run(run()) == consortium.expected()


def test_a_client_that_comes_back_goes_on(tmp_path: Path) -> None:
    """With 5 clients, all of them needed, the run waits for the one that left."""

    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        sites = network.start_clients()
        async with network.pause_after(4):
            await stop(sites.pop(3))
        sites[3] = network.start_client(3)
        weights = await finish(network, coordinator, sites)
        assert not network.client_events[3].of("store damaged")
        return weights

    consortium = Consortium(tmp_path, clients=5)
    assert asyncio.run(run()) == consortium.expected()


@pytest.mark.parametrize("number", [0, 5])
def test_a_coordinator_that_comes_back_finds_its_clients(tmp_path: Path, number: int) -> None:
    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        sites = network.start_clients()
        async with network.pause_after(number):
            await stop(coordinator)
        coordinator = await network.start_coordinator()
        return await finish(network, coordinator, sites)

    consortium = Consortium(tmp_path)
    assert asyncio.run(run()) == consortium.expected()


def test_a_coordinator_that_lost_rounds_plays_them_again(tmp_path: Path) -> None:
    """From an older checkpoint: clients answer a round again for the same weights."""

    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        sites = network.start_clients()
        async with network.pause_after(2):
            older = network.saved
        async with network.pause_after(7):
            await stop(coordinator)
        network.saved = older
        coordinator = await network.start_coordinator()
        return await finish(network, coordinator, sites)

    consortium = Consortium(tmp_path)
    assert asyncio.run(run()) == consortium.expected()


def test_lost_shares_are_dealt_again(tmp_path: Path) -> None:
    """A site that kept its secret and lost its shares comes back: others deal to it as they did before."""

    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        sites = network.start_clients()
        async with network.pause_after(3):
            await stop(sites.pop(1))
            for folder in (tmp_path / "site-1").glob("*"):
                if folder.is_dir():
                    for path in folder.glob("*.rows"):
                        path.unlink()
        sites[1] = network.start_client(1)
        return await finish(network, coordinator, sites)

    consortium = Consortium(tmp_path, clients=5)
    assert asyncio.run(run()) == consortium.expected()


def test_a_second_run_reuses_the_shares(tmp_path: Path) -> None:
    async def run(network: Network) -> None:
        coordinator = await network.start_coordinator()
        await finish(network, coordinator, network.start_clients())

    consortium = Consortium(tmp_path)
    asyncio.run(_with(run, consortium))
    shutil.rmtree(tmp_path / "coordinator")
    network = asyncio.run(_with(run, consortium))
    assert network.coordinator_events.of("terms settled")[0]["sharing"] == "reused"
    assert network.machine.relay.relayed_bytes == 0
    assert weights_sha256(network.machine.training.weights) == consortium.expected()


async def _with(run: Any, consortium: Consortium) -> Network:
    network = Network(consortium)
    await run(network)
    return network


def test_too_few_answers_retry(tmp_path: Path) -> None:
    """Below the threshold the round is sent again until somebody comes back."""

    async def run() -> str:
        network = Network(consortium, pace=Pace(deadline=0.2))
        coordinator = await network.start_coordinator()
        sites = network.start_clients()
        async with network.pause_after(4):
            await stop(sites.pop(0))
        await network.coordinator_events.seen("shortage", 2)
        sites[0] = network.start_client(0)
        return await finish(network, coordinator, sites)

    consortium = Consortium(tmp_path, clients=5)
    assert asyncio.run(run()) == consortium.expected()


def test_too_few_answers_skip(tmp_path: Path) -> None:
    """Skipped rounds are counted, on the disk before the next weights are seen, and the run ends."""

    async def run() -> list[str]:
        network = Network(consortium, pace=Pace(deadline=0.3, on_shortage="skip"))
        coordinator = await network.start_coordinator()
        sites = network.start_clients()
        async with network.pause_after(8):
            await stop(sites.pop(0))
        await finish(network, coordinator, sites)
        return [record.outcome for record in network.records]

    consortium = Consortium(tmp_path, clients=5)
    outcomes = asyncio.run(run())
    assert outcomes[:9] == ["stepped"] * 9
    assert "skipped" in outcomes[9:]
