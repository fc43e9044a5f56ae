"""Health and metrics, on request."""

import asyncio
import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from consortium import Consortium
from dresfl.deploy.metrics import MOST_REQUESTS, serve_metrics
from dresfl.errors import UsageError
from runtimes.grpc_runtime.federation import Events, Network, stop


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def test_health_and_metrics(tmp_path: Path) -> None:
    async def run() -> None:
        network = Network(Consortium(tmp_path))
        coordinator = await network.start_coordinator()
        events, refusals = Events(), [0]
        with serve_metrics("127.0.0.1:0", network.machine, lambda: refusals[0], events.log):
            port = events.of("metrics")[0]["port"]
            before = json.loads(await asyncio.to_thread(get, port, "/health"))
            assert before == {"connected": 0, "ready": 0, "round": None}
            clients = network.start_clients()
            refusals[0] = 3
            async with network.pause_after(4):
                network.machine.training._lies[2] = 3
                text = await asyncio.to_thread(get, port, "/metrics")
                state = json.loads(await asyncio.to_thread(get, port, "/health"))
            await network.finish(coordinator, clients)
            with pytest.raises(urllib.error.HTTPError, match="404"):
                await asyncio.to_thread(get, port, "/else")
        assert state["round"] == 5
        assert state["connected"] == state["ready"] == 6
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(values["dresfl_round"]) == 5
        assert float(values["dresfl_answers_total"]) >= 5 * 5
        assert float(values["dresfl_relayed_bytes_total"]) > 0
        assert float(values["dresfl_refusals_total"]) == 3
        assert float(values['dresfl_liars_total{client="2"}']) == 3

    asyncio.run(run())


def test_none_unless_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        network = Network(Consortium(tmp_path))
        coordinator = await network.start_coordinator()
        events = Events()
        with serve_metrics("", network.machine, lambda: 0, events.log):
            assert not events.lines
        nowhere = serve_metrics("nowhere", network.machine, lambda: 0, events.log)
        with pytest.raises(UsageError, match="cannot serve"), nowhere:
            pass
        await stop(coordinator)

    asyncio.run(run())


def test_idle_connections_take_few_threads(tmp_path: Path) -> None:
    """Those beyond the first few are closed; when the others have gone, there is room again."""

    def flood(port: int) -> None:
        idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(4 * MOST_REQUESTS)]
        closed = [connection for connection in idle[MOST_REQUESTS:] if connection.recv(1) == b""]
        assert len(closed) == 3 * MOST_REQUESTS
        for connection in idle[:MOST_REQUESTS]:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert b" 200 " in connection.makefile("rb").readline()
        for connection in idle:
            connection.close()

    async def run() -> None:
        network = Network(Consortium(tmp_path))
        coordinator = await network.start_coordinator()
        events = Events()
        with serve_metrics("127.0.0.1:0", network.machine, lambda: 0, events.log):
            await asyncio.to_thread(flood, events.of("metrics")[0]["port"])
        await stop(coordinator)

    asyncio.run(run())
