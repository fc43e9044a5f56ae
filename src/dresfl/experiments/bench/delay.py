"""A link with a delay, on loopback: what goes in at one end comes out of the other so many seconds later.

It carries bytes and knows nothing of what is in them. Bytes of one connection keep their order, and any number of them
are under way at a time: the link is long, not narrow.
"""

import asyncio
import contextlib
import threading
from typing import final

_CHUNK = 2**16


@final
class DelayedLink:
    """Listens on a port of its own and passes connections on to another port, with a delay in each direction."""

    def __init__(self, target: int, seconds: float) -> None:
        """target: the port on this machine that is to be reached. seconds: of one direction, half a round trip."""
        self._target, self._seconds = target, seconds
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, name="delayed link", daemon=True)
        self._thread.start()
        self._listening.wait()

    def close(self) -> None:
        """Stop; connections end."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arriving = asyncio.ensure_future(self._arrive(under_way, target))
        data = b"-"
        while data:
            try:
                data = await source.read(_CHUNK)
            except OSError:
                data = b""
            under_way.put_nowait((self._loop.time() + self._seconds, data))
        await arriving

    async def _arrive(self, under_way: "asyncio.Queue[tuple[float, bytes]]", target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if not data:
                    break
                target.write(data)
                await target.drain()
        target.close()
