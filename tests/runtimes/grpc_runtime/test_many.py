"""Two hundred clients at once."""

import asyncio
from pathlib import Path

import grpc

from consortium import Consortium
from dresfl.federation import Introduction
from dresfl.federation.messages import Begin, Hello, Wait, decode
from dresfl.runtimes.grpc_runtime.streams import METHOD, SERVICE, bundle, unbundle

from .federation import Network, stop, within


def test_two_hundred_clients(tmp_path: Path) -> None:
    """All connect over TLS, say hello, and hear the terms; all streams stay open."""
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
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        rows = len(consortium.rows[index][0])
        hello = Hello(Introduction(rows, bytes(64)), bytes(16), consortium.agreement.encode())
        await call.write(bundle([hello]))
        while True:
            for data in unbundle(await call.read()):
                if isinstance(message := decode(data, (Begin, Wait)), Begin):
                    return channel, message

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        everybody = asyncio.gather(*(join(network, index) for index in range(clients)))
        joined = await within("200 clients to hear the terms", everybody, report=network.coordinator_events.last)
        assert network.machine.connected == list(range(clients))
        assert len({begin.terms.encode() for _, begin in joined}) == 1
        for channel, _ in joined:
            await channel.close()
        await stop(coordinator)

    asyncio.run(run())
