"""Hidden runs over real gRPC and TLS on loopback, clients as tasks in this process."""

import asyncio
from pathlib import Path

from consortium import Consortium
from dresfl.federation import RoundTiming
from dresfl.protocol.hidden.settings import HiddenSettings

from .federation import Network, stop, within

TWICE = HiddenSettings(schedule="S2", trusted_dealers=True, runs=2)  # so that dealt seeds are there after the run


def model_again(network: Network, but: tuple[int, ...] = ()) -> str:
    consortium = network.consortium
    stores = {i: consortium.folder / f"client-{i}" for i in range(consortium.clients) if i not in but}
    return consortium.hidden_model(network.terms.session(consortium.agreement), stores)


def test_the_model_is_that_of_one_process(tmp_path: Path) -> None:
    async def run() -> tuple[Network, str]:
        network = Network(Consortium(tmp_path, clients=5, rounds=4, hidden=TWICE))
        coordinator = await network.start_coordinator()
        return network, await network.finish(coordinator, network.start_clients())

    network, weights = asyncio.run(run())
    assert weights == model_again(network)
    assert [record.round_number for record in network.records] == [0, 1, 2, 3]
    assert all(not events.of("disconnected") for events in network.client_events)
    assert network.machine.counters.shortages == 0


def test_one_client_dies_and_the_coordinator_is_restarted(tmp_path: Path) -> None:
    """One of five leaves for good in the middle; then the coordinator stops, and goes on in a new process."""

    async def run() -> tuple[Network, str]:
        network = Network(Consortium(tmp_path, clients=5, rounds=6, hidden=TWICE), RoundTiming(deadline=2.0))
        pause = network.pause_after(1)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with pause:
            await stop(clients.pop(3))
        second = network.pause_after(3)
        async with second:
            coordinator.cancel()
        await within("the coordinator to stop", asyncio.wait({coordinator}))
        coordinator = await network.start_coordinator()
        return network, await network.finish(coordinator, clients)

    network, weights = asyncio.run(run())
    assert weights == model_again(network, but=(3,))


def test_a_model_for_clients_alone(tmp_path: Path) -> None:
    settings = HiddenSettings(schedule="S2", trusted_dealers=True, model_for="clients", check="C")

    async def run() -> tuple[Network, set[bytes]]:
        network = Network(Consortium(tmp_path, clients=4 + 1, rounds=2, hidden=settings))
        coordinator = await network.start_coordinator()
        finals = await within("the clients' end", asyncio.gather(*network.start_clients().values()))
        await within("the coordinator's end", asyncio.wait({coordinator}))
        return network, {task.weights.numpy().tobytes() for task in finals}

    network, models = asyncio.run(run())
    assert len(models) == 1
    assert network.machine.model is None
    assert network.machine.ended
