"""A certificate that ends while its client is connected, and clocks that jump."""

import asyncio
from pathlib import Path

import pytest

from consortium import Consortium

from .federation import Network


def test_a_certificate_that_expires_ends_the_connection_at_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is sent the next weights on the strength of an expired one. If only the clock was wrong, all come back."""
    consortium = Consortium(tmp_path, clients=5)
    monkeypatch.setattr("dresfl.runtimes.grpc_runtime.coordinator.LOOK_SECONDS", 0.05)

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(3):
            network.wall_ahead = 400 * 86400.0  # certificates are for a year
        events = network.coordinator_events
        await events.until("five refusals", lambda seen: {e["client"] for e in seen.of("refused")} == set(range(5)))
        assert all("expired during the run" in event["reason"] for event in events.of("refused"))
        assert len(network.records) == 4  # nobody was sent round 4
        assert "INTERNAL" in (await network.client_events[0].seen("disconnected"))["reason"]
        assert abs((await events.seen("clock jumped"))["seconds"] - 400 * 86400.0) < 1
        await events.seen("certificate expired")  # its own
        network.wall_ahead = 0.0
        assert await network.finish(coordinator, clients) == consortium.expected()

    asyncio.run(run())


def test_a_clock_that_is_set_disturbs_nothing_else(tmp_path: Path) -> None:
    """An hour forward, a day back: no deadline comes sooner or later."""
    consortium = Consortium(tmp_path, clients=5)

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        for round_number, ahead in ((2, 3600.0), (5, -86400.0)):
            async with network.pause_after(round_number):
                network.wall_ahead = ahead
        assert await network.finish(coordinator, clients) == consortium.expected()
        assert network.coordinator_events.of("shortage") == network.coordinator_events.of("refused") == []

    asyncio.run(run())
