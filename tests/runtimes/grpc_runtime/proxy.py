"""A TCP proxy on loopback: the network between a site and its coordinator, and all that can happen to it."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False)
class Link:
    """One connection through the proxy. A silent one swallows all it gets: neither end hears of the other again."""

    up: asyncio.StreamWriter  # to the coordinator
    down: asyncio.StreamWriter  # to the site
    silent: bool = False

    def abort(self) -> None:
        for writer in (self.up, self.down):
            writer.transport.abort()


@dataclass
class Way:
    """One direction, all connections together: what has passed, and what is to befall later bytes."""

    passed: int = 0
    plans: list[tuple[int, Callable[[bytes], bytes | None]]] = field(default_factory=list)

    def plan(self, after: int, change: Callable[[bytes], bytes | None]) -> None:
        """When `after` more bytes have passed, hand what follows to `change`; None breaks the connection there."""
        self.plans.append((self.passed + after, change))

    def take(self, data: bytes) -> tuple[bytes, bool]:
        """What of these bytes goes on, and whether the connection lives."""
        for plan in sorted(self.plans, key=lambda plan: plan[0]):
            at = max(plan[0] - self.passed, 0)
            if at < len(data):
                self.plans.remove(plan)
                changed = plan[1](data[at:])
                if changed is None:
                    self.passed += at
                    return data[:at], False
                data = data[:at] + changed
        self.passed += len(data)
        return data, True


def flipped(data: bytes) -> bytes:
    """One bit of the first byte is not what it was."""
    return bytes([data[0] ^ 0x10]) + data[1:]


def dropped(data: bytes) -> bytes:
    """Some bytes are lost."""
    return data[7:]


def garbage(data: bytes) -> bytes:
    """Some bytes are others."""
    return bytes(byte ^ 0xA5 for byte in data[:64]) + data[64:]


def broken(data: bytes) -> None:
    """The connection breaks here, in the middle of whatever it was."""


class Proxy:
    """Forwards connections to `target`, if there is one.

    `cut` breaks those that exist, `silence` leaves them half open; `down` refuses new ones; `delay` holds every piece
    of bytes back for so many seconds; `hold` all of them until `release`. `ways` plan changes of single bytes.
    """

    def __init__(self, target: int | None) -> None:
        self.target = target
        self.down = False
        self.delay = 0.0
        self.port = 0
        self.ways = {"up": Way(), "down": Way()}
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = asyncio.Event()
        self._free.set()

    async def start(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = None if self.down else self.target
        try:
            if target is None:
                raise ConnectionRefusedError
            onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.transport.abort()
            return
        link = Link(onward_writer, writer)
        self._links.add(link)
        if self.down or self.target != target:  # since then
            link.abort()
        for way, source, sink in (("up", reader, onward_writer), ("down", onward_reader, writer)):
            task = asyncio.create_task(self._pump(link, self.ways[way], source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, link: Link, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        alive = True
        with contextlib.suppress(OSError):
            while alive and (data := await source.read(2**16)):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._free.wait()
                if link.silent:
                    continue
                data, alive = way.take(data)
                sink.write(data)
                await sink.drain()
        if not link.silent:
            link.abort()
            self._links.discard(link)

    def cut(self) -> None:
        """Break every connection now, without a word."""
        for link in self._links:
            link.abort()
        self._links.clear()

    def silence(self) -> None:
        """Whatever is sent on the connections of now gets lost from here on, and their ends are not told."""
        for link in self._links:
            link.silent = True

    def hold(self) -> None:
        """Let nothing through, and break nothing."""
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
