"""A site's ends of the streams."""

import asyncio
from typing import Any, final

import grpc
from grpc.aio import EOF

from .streams import StreamEnded


@final
class Call:
    """One stream to the coordinator."""

    def __init__(self, channel: Any, path: str) -> None:
        self._call = channel.stream_stream(path)()
        self._reading: asyncio.Future[Any] | None = None
        self._writing = asyncio.Lock()  # gRPC ends a stream on which two frames are written at once

    async def read(self) -> bytes:
        """The next frame; at the end, the coordinator's reason. Giving up on it leaves it for the next read."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
            self._reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())
        data = await asyncio.shield(self._reading)
        self._reading = None
        if data is EOF:
            raise await self._end()
        return bytes(data)

    async def write(self, data: bytes) -> None:
        """Send a frame; if the stream has ended, the coordinator's reason."""
        try:
            async with self._writing:
                await self._call.write(data)
        except asyncio.InvalidStateError:  # gRPC's word for a stream that ended before
            raise await self._end() from None

    async def close(self) -> None:
        """Nothing more will be sent: what was sent still arrives."""
        await self._call.done_writing()

    async def _end(self) -> Exception:
        call = self._call
        code = await call.code()
        if code is grpc.StatusCode.OK:
            return StreamEnded("the coordinator closed the connection")
        reason: Exception = grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
        return reason
