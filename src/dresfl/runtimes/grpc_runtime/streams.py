"""The two ends of a stream: bundles of messages each way, and the reason when it ends.

A gRPC message is a bundle: for each message in it, its length u32, little-endian, and the message. What waits to be
written goes together, up to BUNDLE_BYTES and BUNDLE_MESSAGES: a federation of 200 clients exchanges 200,000 small
messages before its first round, and gRPC needs as long for each of its own as the machines do.
"""

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, final

import grpc
from grpc.aio import EOF

from dresfl.errors import MessageError
from dresfl.federation.messages import Message

SERVICE = "dresfl.Federation"
METHOD = "Bundles"
METHOD_OF_VERSION_2 = "Session"
SERVICE_OF_VERSION_1 = "dresfl.Hub"
SAME_RELEASE = "use the same release of dresfl everywhere"


BUNDLE_BYTES = 2**18  # a bundle that has so many takes no further message
BUNDLE_MESSAGES = 1024  # likewise
_LENGTH = struct.Struct("<I")


@final
class Bundle:
    """Messages that go out together as one gRPC message."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        self._messages = self._bytes = 0

    def add(self, message: Message) -> None:
        parts = message.parts()
        size = sum(map(len, parts))
        self._parts += [_LENGTH.pack(size), *parts]
        self._messages += 1
        self._bytes += size

    @property
    def empty(self) -> bool:
        return not self._messages

    @property
    def full(self) -> bool:
        """Whether it takes no further message."""
        return self._bytes >= BUNDLE_BYTES or self._messages >= BUNDLE_MESSAGES

    def encode(self) -> bytes:
        return b"".join(self._parts)


def bundle(messages: Iterable[Message]) -> bytes:
    """Messages as one gRPC message."""
    together = Bundle()
    for message in messages:
        together.add(message)
    return together.encode()


def unbundle(data: bytes) -> list[memoryview]:
    """The messages of a bundle; MessageError if its lengths do not fit."""
    whole, found, place = memoryview(data), list[memoryview](), 0
    while place < len(whole):
        if len(found) == BUNDLE_MESSAGES or place > 2 * BUNDLE_BYTES:
            raise MessageError(f"a bundle has more than {BUNDLE_MESSAGES} messages, or goes on after a long one")
        if place + _LENGTH.size > len(whole):
            raise MessageError("a bundle ends within a length")
        (length,) = _LENGTH.unpack_from(whole, place)
        place += _LENGTH.size
        if not 1 <= length <= len(whole) - place:
            raise MessageError(f"a message of {length} bytes is said to follow in a bundle that has not so many")
        found.append(whole[place : place + length])
        place += length
    if not found:
        raise MessageError("an empty bundle came")
    return found


_FRAME_BYTES = 2**20  # of HTTP/2: a slice is one frame instead of sixty-four


class StreamEnded(Exception):
    """The other side closed or lost the stream: nothing is wrong, and nothing more will come."""


def channel_options(keepalive: float, most_bytes: int) -> list[tuple[str, int]]:
    """gRPC options that both sides share."""
    milliseconds, most_bytes = int(1000 * keepalive), most_bytes + 2**20  # beyond it gRPC ends the stream by itself
    return [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", most_bytes),
        ("grpc.http2.max_frame_size", _FRAME_BYTES),
        ("grpc.http2.write_buffer_size", _FRAME_BYTES),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds // 2),
        ("grpc.http2.ping_timeout_ms", 2 * milliseconds),  # the one that gRPC keeps to: else a minute, always
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", milliseconds // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]


@final
class _Reader:
    """Reads from either end. A read that is cancelled is left for the next one: gRPC would end the stream."""

    def __init__(self, end: Any) -> None:
        self._end = end  # gRPC has no types
        self._reading: asyncio.Future[Any] | None = None

    async def read(self) -> bytes | None:
        """The next message; None at the end."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._end.read())
            self._reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())
        data = await asyncio.shield(self._reading)
        self._reading = None
        return None if data is EOF else bytes(data)


@final
class ClientStream:
    """The coordinator's end of one client's stream."""

    def __init__(self, context: Any, most_bytes: int) -> None:
        self._context, self._most_bytes = context, most_bytes
        self._reader = _Reader(context)

    async def read(self) -> list[memoryview]:
        data = await self._reader.read()
        if data is None:
            raise StreamEnded
        messages = unbundle(data)
        longest = max(map(len, messages))
        if longest > self._most_bytes:
            raise MessageError(f"a message of {longest} bytes came, {self._most_bytes} are the most")
        return messages

    async def write(self, messages: Bundle) -> None:
        await self._context.write(messages.encode())


@final
class CoordinatorStream:
    """A client's end of its stream to the coordinator."""

    def __init__(self, channel: Any) -> None:
        self._call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        self._reader = _Reader(self._call)

    async def read(self) -> list[memoryview]:
        """The next messages; at the end, the coordinator's reason."""
        data = await self._reader.read()
        if data is None:
            raise await self._end()
        return unbundle(data)

    async def write(self, messages: Bundle) -> None:
        """Send messages; if the stream has ended, the coordinator's reason."""
        try:
            await self._call.write(messages.encode())
        except asyncio.InvalidStateError:  # gRPC's word for a stream that ended before
            raise await self._end() from None

    async def end(self) -> None:
        """Say that no more messages come, and wait until the coordinator has seen them all: it then ends the stream."""
        with contextlib.suppress(grpc.aio.BaseError, asyncio.InvalidStateError):
            await self._call.done_writing()
            await self._call.code()

    async def _end(self) -> Exception:
        call = self._call
        code = await call.code()
        if code is grpc.StatusCode.OK:
            return StreamEnded("the coordinator closed the connection")
        reason: Exception = grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
        return reason


async def first_of(*parts: Awaitable[None] | Coroutine[Any, Any, None]) -> None:
    """Run parts side by side until the first one ends; stop the others; raise what it raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.wait(tasks)  # who is stopped meanwhile is stopped, and does not go on
    for task in done:
        task.result()
