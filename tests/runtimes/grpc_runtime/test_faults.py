"""Clients and coordinators that vanish and come back: the weights are those of an undisturbed run."""

import asyncio
import shutil
from pathlib import Path

import pytest

from consortium import Consortium
from dresfl.errors import StoreError, TooFewAnswers
from dresfl.federation import RoundTiming

from .federation import Network, stop, within


def test_clients_that_leave_are_not_missed(tmp_path: Path) -> None:
    """The threshold is 5 of 7: two may go for good, at any round."""

    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(4):
            await stop(clients.pop(2))
            await stop(clients.pop(6))
        weights = await network.finish(coordinator, clients)
        assert network.coordinator_events.of("ended without")[0]["clients"] == [2, 6]
        return weights

    consortium = Consortium(tmp_path, clients=7)
    assert asyncio.run(run()) == consortium.expected()


def test_a_client_that_comes_back_goes_on(tmp_path: Path) -> None:
    """With 5 clients, all of them needed, the run waits for the one that left."""

    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(4):
            await stop(clients.pop(3))
        clients[3] = network.start_client(3)
        weights = await network.finish(coordinator, clients)
        assert not network.client_events[3].of("store damaged")
        return weights

    consortium = Consortium(tmp_path, clients=5)
    assert asyncio.run(run()) == consortium.expected()


@pytest.mark.parametrize("number", [0, 5])
def test_a_coordinator_that_comes_back_finds_its_clients(tmp_path: Path, number: int) -> None:
    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(number):
            coordinator.cancel()
        await stop(coordinator)
        coordinator = await network.start_coordinator()
        return await network.finish(coordinator, clients)

    consortium = Consortium(tmp_path)
    assert asyncio.run(run()) == consortium.expected()


def test_a_coordinator_that_lost_rounds_plays_them_again(tmp_path: Path) -> None:
    """From an older checkpoint: clients answer a round again for the same weights."""

    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(2):
            older = network.saved
        async with network.pause_after(7):
            coordinator.cancel()
        await stop(coordinator)
        network.saved = older
        coordinator = await network.start_coordinator()
        return await network.finish(coordinator, clients)

    consortium = Consortium(tmp_path)
    assert asyncio.run(run()) == consortium.expected()


def test_lost_shares_are_dealt_again(tmp_path: Path) -> None:
    """A client that kept its secret and lost its shares comes back: others deal to it as they did before."""

    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(3):
            await stop(clients.pop(1))
            for folder in (tmp_path / "client-1").glob("*"):
                if folder.is_dir():
                    for path in folder.glob("*.rows"):
                        path.unlink()
        clients[1] = network.start_client(1)
        return await network.finish(coordinator, clients)

    consortium = Consortium(tmp_path, clients=5)
    assert asyncio.run(run()) == consortium.expected()


def test_a_second_run_reuses_the_shares(tmp_path: Path) -> None:
    async def run() -> tuple[str, Network]:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        return await network.finish(coordinator, network.start_clients()), network

    consortium = Consortium(tmp_path)
    asyncio.run(run())
    shutil.rmtree(tmp_path / "coordinator")
    weights, network = asyncio.run(run())
    assert network.coordinator_events.of("terms settled")[0]["sharing"] == "reused"
    assert network.machine.relay.relayed_bytes == 0
    assert weights == consortium.expected()


def test_too_few_answers_retry(tmp_path: Path) -> None:
    """Below the threshold the round is sent again until somebody comes back."""

    async def run() -> str:
        network = Network(consortium, timing=RoundTiming(deadline=0.2))
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(4):
            await stop(clients.pop(0))
        await network.coordinator_events.seen("shortage", 2)
        clients[0] = network.start_client(0)
        return await network.finish(coordinator, clients)

    consortium = Consortium(tmp_path, clients=5)
    assert asyncio.run(run()) == consortium.expected()


def test_too_few_answers_skip(tmp_path: Path) -> None:
    """Skipped rounds are counted, and the run ends."""

    async def run() -> list[str]:
        network = Network(consortium, timing=RoundTiming(deadline=0.3, on_shortage="skip"))
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(8):
            await stop(clients.pop(0))
        await network.finish(coordinator, clients)
        return [record.outcome for record in network.records]

    consortium = Consortium(tmp_path, clients=5)
    outcomes = asyncio.run(run())
    assert len(outcomes) == consortium.rounds
    assert set(outcomes[9:]) == {"skipped"}


def test_weights_that_nobody_answers_for_end_the_run(tmp_path: Path) -> None:
    """The coordinator's state is not that of before: every client has answered the round for other weights."""

    async def run() -> str:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(3):
            coordinator.cancel()
        await stop(coordinator)
        assert network.saved is not None
        network.saved["round"] -= 1
        network.saved["optimizer.steps"] -= 1
        coordinator = await network.start_coordinator()
        with pytest.raises(TooFewAnswers) as ended:
            await within("the coordinator's end", coordinator, report=network.report)
        for client in clients.values():
            await stop(client)
        return str(ended.value)

    consortium = Consortium(tmp_path, clients=5)
    reason = asyncio.run(run())
    assert "will not answer round 3" in reason
    assert "round 3 was answered for other weights" in reason


def test_a_client_whose_disk_is_damaged_says_so_before_it_ends(tmp_path: Path) -> None:
    """All five are needed. The one that cannot go on tells the coordinator, which then ends as well."""

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(3):
            await stop(clients.pop(2))
        (record,) = tmp_path.glob("client-2/*/*.answered")
        record.write_bytes(b"damaged" + record.read_bytes())
        with pytest.raises(StoreError, match="is damaged"):
            await within("the client's end", network.start_client(2), report=network.report)
        with pytest.raises(TooFewAnswers, match="site-2: StoreError: see the log of this client"):
            await within("the coordinator's end", coordinator, report=network.report)
        for client in clients.values():
            await stop(client)

    consortium = Consortium(tmp_path, clients=5)
    asyncio.run(run())
