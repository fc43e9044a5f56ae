"""A site's ends of the streams."""

import asyncio
from typing import Any

import grpc
from grpc.aio import EOF

from .streams import StreamEnded

Call = Any  # grpc.aio.StreamStreamCall: gRPC has no types


async def receive(call: Call) -> bytes:
    """The next frame of a stream. At its end: the coordinator's reason, as gRPC has it."""
    data = await call.read()
    if data is EOF:
        raise await _end(call)
    return bytes(data)


async def send(call: Call, data: bytes) -> None:
    """Send a frame. If the stream has ended: the coordinator's reason, as gRPC has it."""
    try:
        await call.write(data)
    except asyncio.InvalidStateError:  # gRPC's word for a stream that ended before
        raise await _end(call) from None


async def _end(call: Call) -> Exception:
    code = await call.code()
    if code is grpc.StatusCode.OK:
        return StreamEnded("the coordinator closed the connection")
    reason: Exception = grpc.aio.AioRpcError(
        code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )
    return reason
