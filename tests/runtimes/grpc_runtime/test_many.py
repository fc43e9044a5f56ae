"""Two hundred clients at once."""

import asyncio
from pathlib import Path

import grpc
from dresfl.runtimes.grpc_runtime.frames import Begin, Hello, Wait, decode

from consortium import Consortium
from dresfl.federation import NO_NONCE
from dresfl.runtimes.grpc_runtime.coordinator import SERVICE

from .federation import Network


def test_two_hundred_clients(tmp_path: Path) -> None:
    """All connect over TLS, say hello, and hear the terms; all sessions stay open."""
    clients = 200
    consortium = Consortium(tmp_path, clients=clients)
    authority = consortium.authority.certificate_pem()

    async def join(network: Network, index: int) -> tuple[grpc.aio.Channel, Begin]:
        site = consortium.clients_keys[index]
        credentials = grpc.ssl_channel_credentials(
            authority, site.tls_key_pem(), consortium.credentials(site).certificate
        )
        options = [("grpc.ssl_target_name_override", "coordinator"), ("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.secure_channel(f"127.0.0.1:{network.port}", credentials, options)
        call = channel.stream_stream(f"/{SERVICE}/Session")()
        rows = len(consortium.rows[index][0])
        greeting = Hello(consortium.agreement.digest, rows, bytes(32), NO_NONCE, bytes(16))
        await call.write(greeting.encode())
        while isinstance(frame := decode(await call.read(), Begin, Wait), Wait):
            pass
        return channel, frame

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        async with asyncio.timeout(120):
            joined = await asyncio.gather(*(join(network, index) for index in range(clients)))
        assert network.coordinator is not None
        assert network.coordinator.connected == list(range(clients))
        assert len({begin.body() for _, begin in joined}) == 1
        for channel, _ in joined:
            await channel.close()
        coordinator.cancel()
        await asyncio.wait({coordinator})

    asyncio.run(run())
