"""Strangers who open many connections, say nothing on them, and open others when the coordinator closes them."""

import asyncio
import contextlib


class Flood:
    """`async with Flood(port, 2000):` so many idle connections, for as long as it lasts."""

    def __init__(self, port: int, connections: int, again_after: float = 1.0) -> None:
        """again_after: seconds until a connection that was closed is opened anew."""
        self._port, self._count, self._again_after = port, connections, again_after
        self._tasks: list[asyncio.Task[None]] = []
        self.opened = self.closed = self.most = 0
        self.full = asyncio.Event()  # all have been opened once

    @property
    def alive(self) -> int:
        return self.opened - self.closed

    async def __aenter__(self) -> "Flood":
        self._tasks = [asyncio.create_task(self._stranger()) for _ in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stranger(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                self.opened += 1
                self.most = max(self.most, self.alive)
                if self.opened >= self._count:
                    self.full.set()
                try:
                    with contextlib.suppress(OSError):
                        await reader.read()
                finally:
                    self.closed += 1
                    writer.close()
            await asyncio.sleep(self._again_after)
