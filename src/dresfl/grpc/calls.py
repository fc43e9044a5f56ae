"""A site's ends of the streams."""

from typing import Any

import grpc
from grpc.aio import EOF

from .streams import StreamEnded

Call = Any  # grpc.aio.StreamStreamCall: gRPC has no types


async def receive(call: Call) -> bytes:
    """The next frame of a stream. At its end: the coordinator's reason, as gRPC has it."""
    data = await call.read()
    if data is not EOF:
        return bytes(data)
    code = await call.code()
    if code is grpc.StatusCode.OK:
        raise StreamEnded
    raise grpc.aio.AioRpcError(
        code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )
