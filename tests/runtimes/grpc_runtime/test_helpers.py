"""A client without rows over real gRPC, with its shares on its disk; it is stopped in the middle and comes back."""

import asyncio
from pathlib import Path

from consortium import Consortium
from dresfl.data import no_rows

from .federation import Network, stop


def test_a_helper_computes_like_the_others(tmp_path: Path) -> None:
    async def run() -> str:
        network = Network(consortium)
        pause = network.pause_after(3)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with pause:
            await stop(clients[2])
            clients[2] = network.start_client(2)
        return await network.finish(coordinator, clients)

    consortium = Consortium(tmp_path, clients=5)
    consortium.rows[2] = no_rows(5, 3)
    assert asyncio.run(run()) == consortium.expected()
