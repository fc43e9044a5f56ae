"""The coordinator's ends of the streams, one set for each client: the newest connection wins.

A client's streams never touch another's: what is wrong with one ends that one, with a log line that says why.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, final

import grpc
from grpc.aio import EOF

from dresfl.errors import DresError, MessageError, Refused
from dresfl.sealing import Roster

from .log import Log
from .tls import caller

Context = Any  # grpc.aio.ServicerContext: gRPC has no types


class StreamEnded(Exception):
    """The other side closed or lost the stream: nothing is wrong, and nothing more will come."""


@final
class Stream:
    """One open stream of a known client."""

    def __init__(self, index: int, context: Context, most_bytes: int) -> None:
        self.index = index
        self._context = context
        self._most_bytes = most_bytes
        self._reading: asyncio.Future[Any] | None = None
        self.replaced = asyncio.Event()

    async def read(self) -> bytes:
        """The next frame. Giving up on it (by cancelling) leaves it for the next read: gRPC would end the stream."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._context.read())
            self._reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())
        data = await asyncio.shield(self._reading)
        self._reading = None
        if data is EOF:
            raise StreamEnded
        if len(data) > self._most_bytes:
            raise MessageError(f"a frame of {len(data)} bytes came, {self._most_bytes} are the most")
        return bytes(data)

    async def write(self, data: bytes) -> None:
        await self._context.write(data)


Serve = Callable[[Stream], Awaitable[None]]


@final
class Door:
    """Lets clients in by their certificates, and serves each stream until it ends, is replaced, or breaks the rules."""

    def __init__(self, roster: Roster, log: Log, most_bytes: int) -> None:
        self._roster, self._log, self._most_bytes = roster, log, most_bytes
        self._open: dict[tuple[str, int], Stream] = {}
        self.refusals = 0
        self.closing = False

    def handler(self, method: str, serve: Serve) -> grpc.RpcMethodHandler:
        """A gRPC handler for one kind of stream."""

        async def handle(_: object, context: Context) -> None:
            await self._handle(method, serve, context)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _handle(self, method: str, serve: Serve, context: Context) -> None:
        try:
            index = caller(context, self._roster)
        except Refused as error:
            self._refuse(method, context.peer(), error)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, _details(error))
        stream = Stream(index, context, self._most_bytes)
        name = self._roster.members[index].name
        if (method, index) in self._open:
            self._open[method, index].replaced.set()
        self._open[method, index] = stream
        try:
            await first_of(serve(stream), _wait(stream.replaced))
            if stream.replaced.is_set():
                self._log("replaced", stream=method, client=index, name=name)
                await context.abort(grpc.StatusCode.ABORTED, "a newer connection of this client took over")
        except StreamEnded:
            pass
        except Refused as error:
            self._refuse(method, name, error, index)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _details(error))
        except MessageError as error:
            self._refuse(method, name, error, index)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _details(error))
        except DresError as error:
            self._log("failed", stream=method, client=index, name=name, reason=str(error), hint=error.hint)
            await context.abort(grpc.StatusCode.INTERNAL, _details(error))
        except asyncio.CancelledError:
            # gRPC ends a stream in one way for both, and tells only the client which it was
            if not self.closing:
                reason = f"the client vanished, or sent a frame far above {self._most_bytes} bytes"
                self._log("cut", stream=method, client=index, name=name, reason=reason)
            raise
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # gRPC's own, when a client vanishes in the middle of a frame
            self._log(
                "stream failed", stream=method, client=index, name=name, reason=f"{type(error).__name__}: {error}"
            )
        finally:
            if self._open.get((method, index)) is stream:
                del self._open[method, index]

    def _refuse(self, method: str, who: str, error: DresError, index: int | None = None) -> None:
        self.refusals += 1
        self._log("refused", where=method, client=index, name=who, reason=str(error), hint=error.hint)


def _details(error: DresError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


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
