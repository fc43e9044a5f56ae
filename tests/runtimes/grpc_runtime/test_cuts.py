"""Connections that break: clients come back by themselves, and nothing changes."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consortium import Consortium
from dresfl.runtimes.grpc_runtime import ConnectSettings

from .federation import LIMIT, Network
from .proxy import Proxy


class Proxied(Network):
    """A network whose clients all reach the coordinator through one proxy."""

    proxy: Proxy

    def connect_settings(self) -> ConnectSettings:
        return replace(super().connect_settings(), coordinator=f"127.0.0.1:{self.proxy.port}")


Disturb = Callable[[Proxied], Awaitable[None]]


def run_proxied(consortium: Consortium, disturb: Disturb, **settings: Any) -> Proxied:
    async def run() -> Proxied:
        network = Proxied(consortium, **settings)
        coordinator = await network.start_coordinator()
        network.proxy = await Proxy(network.port).start()
        clients = network.start_clients()
        await disturb(network)
        weights = await network.finish(coordinator, clients)
        await network.proxy.stop()
        assert weights == consortium.expected()
        return network

    return asyncio.run(run())


@pytest.mark.parametrize("number", [0, 3, 8])
def test_all_connections_are_cut(tmp_path: Path, number: int) -> None:
    async def disturb(network: Proxied) -> None:
        async with network.pause_after(number):
            network.proxy.cut()
            for events in network.client_events:
                await events.seen("disconnected")

    network = run_proxied(Consortium(tmp_path, clients=5), disturb)
    assert all(len(events.of("connected")) >= 2 for events in network.client_events)


def test_the_network_is_down_for_a_while(tmp_path: Path) -> None:
    """Each attempt waits longer than the one before, up to a limit, and never gives up."""

    async def disturb(network: Proxied) -> None:
        async with network.pause_after(2):
            network.proxy.down = True
            network.proxy.cut()
            await network.client_events[0].seen("disconnected", 4)
            network.proxy.down = False

    network = run_proxied(Consortium(tmp_path, clients=5), disturb)
    pauses = [event["again_in"] for event in network.client_events[0].of("disconnected")]
    assert max(pauses) <= 0.2 * 1.5
    assert len(pauses) >= 4


def test_cut_while_sharing(tmp_path: Path) -> None:
    """Shares that were under way are asked for again."""

    async def disturb(network: Proxied) -> None:
        await network.client_events[0].seen("connected")
        network.proxy.cut()

    run_proxied(Consortium(tmp_path, clients=5), disturb)


@pytest.mark.parametrize("number", [3, 11])
def test_half_open_connections_are_noticed(tmp_path: Path, number: int) -> None:
    """Nothing passes and nothing breaks: pings find out. After the last round, the end is told to those who come back:
    what the coordinator has written is not yet heard."""

    async def disturb(network: Proxied) -> None:
        async with network.pause_after(number):
            network.proxy.silence()

    network = run_proxied(Consortium(tmp_path, clients=5), disturb, keepalive=1.0, linger=LIMIT)
    assert all("ping" in events.of("disconnected")[0]["reason"] for events in network.client_events)
    assert not network.coordinator_events.of("ended without")
