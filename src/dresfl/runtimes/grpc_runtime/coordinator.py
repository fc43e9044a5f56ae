"""The coordinator on the network: one port, one stream for each client. All decisions are the machine's.

The machine and its disk have one thread. Events are handed to it in order; what it answers is done here, in order.
"""

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import grpc

from dresfl.errors import DresError, MessageError, Refused, UsageError
from dresfl.federation.actions import Close, Finish, Send, SendSlice
from dresfl.federation.messages import Message, Weights
from dresfl.runtimes.coordinator_host import CoordinatorHost, OnNetwork
from dresfl.runtimes.log import Log

from .streams import (
    METHOD,
    SAME_RELEASE,
    SERVICE,
    SERVICE_OF_VERSION_1,
    ClientStream,
    StreamEnded,
    channel_options,
    first_of,
)
from .tls import Credentials, caller
from .weights import WeightSender

_LARGE_BYTES = 2**18


@final
@dataclass(frozen=True)
class ListenSettings:
    """Where the coordinator listens."""

    listen: str = "127.0.0.1:0"
    keepalive: float = 20.0  # seconds between pings on an idle connection

    def __post_init__(self) -> None:
        if self.keepalive < 1:
            raise UsageError(f"keepalive must be at least 1 second, not {self.keepalive}")


@final
class Connection:
    """One client's connection: what is to be written, and why it ends."""

    def __init__(self, client: int, stream: ClientStream) -> None:
        self.client, self.stream = client, stream
        self._outbox: deque[Message | SendSlice] = deque()
        self._something = asyncio.Event()
        self.closed = asyncio.Event()
        self.close_error: DresError | None = None
        self.replaced = False
        self.base_round: int | None = None  # of the weights last written here

    def put(self, item: Message | SendSlice) -> None:
        """Write this when the stream is free. A newer message of a kind takes the place of an older one, if it may."""
        if isinstance(item, Message) and item.newest_only:
            self._outbox = deque(other for other in self._outbox if type(other) is not type(item))
        self._outbox.append(item)
        self._something.set()

    async def next(self) -> Message | SendSlice:
        while not self._outbox:
            self._something.clear()
            await self._something.wait()
        return self._outbox.popleft()

    def close(self, error: DresError | None, replaced: bool = False) -> None:
        """End the connection. The first reason counts."""
        if not self.closed.is_set():
            self.close_error, self.replaced = error, replaced
            self.closed.set()


@final
class GrpcCoordinator:
    """Accepts clients by their certificates, and moves messages between them and the machine."""

    def __init__(self, settings: ListenSettings, host: CoordinatorHost, credentials: Credentials, log: Log) -> None:
        self._settings, self._host, self._credentials, self._log = settings, host, credentials, log
        self._open: set[Connection] = set()
        self._newest: dict[int, Connection] = {}  # each client's; only the machine's thread looks at them
        self._failed = False  # only the machine's thread looks at it
        self._told_wake_at: float | None = None  # likewise
        self._sender = WeightSender()
        self._machine = ThreadPoolExecutor(1, "machine")
        self._disk = ThreadPoolExecutor(2, "spool")
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._over.add_done_callback(lambda over: over.cancelled() or over.exception())  # who is stopped asks no more
        self._wake_at: float | None = None
        self._wake_at_changed = asyncio.Event()
        self.refusals = 0

    async def run(self, on_ready: Callable[[int], None] = lambda port: None) -> None:
        """Serve until the run is over. `on_ready` gets the port. When this returns, nobody uses the run's folder."""
        # gRPC's own complaints, e.g. that a client vanished before its refusal: the log has said what matters
        logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)
        listener = grpc.aio.server(options=channel_options(self._settings.keepalive, self._host.most_bytes))
        handlers = {METHOD: grpc.stream_stream_rpc_method_handler(self._accept)}
        listener.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        older = {METHOD: grpc.stream_stream_rpc_method_handler(self._refuse_version_1)}
        listener.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_OF_VERSION_1, older),))
        try:
            port = listener.add_secure_port(self._settings.listen, self._credentials.for_server())
        except RuntimeError as error:
            raise DresError(
                f"cannot listen on {self._settings.listen}", "is the port in use or not allowed?"
            ) from error
        try:
            await self._event(self._host.start)
            if not self._over.done():  # else it has failed
                await listener.start()
                self._log("listening", port=port, **self._host.described)
                on_ready(port)
            await first_of(_wait(self._over), self._keep_time())
        finally:
            for connection in self._open:
                connection.close(None)
            try:
                await listener.stop(1.0)
            finally:
                self._disk.shutdown(wait=False, cancel_futures=True)
                self._machine.shutdown(wait=False, cancel_futures=True)
            await asyncio.to_thread(self._machine.shutdown)  # may be writing a checkpoint

    # -- the machine -----------------------------------------------------------------------------------------

    async def _event(self, handle: Callable[[], list[OnNetwork]]) -> None:
        """Have the machine's thread handle an event; returns when what follows from it is in the outboxes."""
        await self._loop.run_in_executor(self._machine, self._handle, handle)

    def _handle(self, handle: Callable[[], list[OnNetwork]]) -> None:
        """In the machine's thread. What follows reaches the loop in the order of the events; nothing after an error."""
        if self._failed:
            return
        try:
            calls, wake_at = self._calls(handle()), self._host.machine.wake_at
        except BaseException as error:
            self._failed = True
            self._loop.call_soon_threadsafe(self._end, error)
            return
        if calls or wake_at != self._told_wake_at:  # most answers change nothing
            self._told_wake_at = wake_at
            self._loop.call_soon_threadsafe(self._carry_out, calls, wake_at)

    def _calls(self, actions: list[OnNetwork]) -> list[Callable[[], None]]:
        """In the machine's thread: actions as calls upon the connections that clients have at this moment."""
        calls: list[Callable[[], None]] = []
        for action in actions:
            if isinstance(action, Finish):
                calls.append(self._end)
                continue
            client = action.receiver if isinstance(action, SendSlice) else action.client
            connection = self._newest.get(client)
            if connection is None:
                continue
            match action:
                case Send():
                    calls.append(functools.partial(connection.put, action.message))
                case SendSlice():
                    calls.append(functools.partial(connection.put, action))
                case Close():
                    calls.append(functools.partial(connection.close, action.error))
        return calls

    def _carry_out(self, calls: list[Callable[[], None]], wake_at: float | None) -> None:
        if wake_at != self._wake_at:
            self._wake_at = wake_at
            self._wake_at_changed.set()
        for call in calls:
            call()

    def _end(self, error: BaseException | None = None) -> None:
        """The run is over, or has failed."""
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)

    async def _keep_time(self) -> None:
        """Tell the machine when its time has come. The host and the loop have the same clock."""
        while True:
            self._wake_at_changed.clear()
            try:
                async with asyncio.timeout_at(self._wake_at):
                    await self._wake_at_changed.wait()
            except TimeoutError:
                await self._event(self._host.tick)

    # -- one client ------------------------------------------------------------------------------------------

    async def _accept(self, _: object, context: Any) -> None:
        """Let a client in by its certificate, and serve its stream until it ends, is replaced, or is refused."""
        try:
            client = caller(context, self._credentials.roster)
        except Refused as error:
            self.refusals += 1
            self._log("refused", name=context.peer(), reason=str(error), hint=error.hint)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, _details(error))
        connection = Connection(client, ClientStream(context, self._host.most_bytes))
        self._open.add(connection)
        try:
            await self._loop.run_in_executor(self._machine, self._connect, connection)
            await first_of(self._read(connection), self._write(connection), _wait(connection.closed))
        except StreamEnded:
            pass
        except MessageError as error:  # beyond the limit: the machine has not seen it
            self.refusals += 1
            connection.close(error)
            self._log("refused", client=client, reason=str(error), hint=error.hint)
        except asyncio.CancelledError:
            # gRPC ends a stream in one way for both, and tells only the client which it was
            reason = f"the client vanished, or sent a message far above {self._host.most_bytes} bytes"
            self._log("cut", client=client, reason=reason)
            raise
        except grpc.aio.BaseError as error:  # when a client vanishes in the middle of a message
            self._log("stream failed", client=client, reason=f"{type(error).__name__}: {error}")
        except Exception as error:
            self._end(error)
        finally:
            self._open.discard(connection)
            with contextlib.suppress(RuntimeError):  # the run is over
                self._machine.submit(self._forget, connection)
        await _close(context, connection)

    async def _refuse_version_1(self, _: object, context: Any) -> None:
        """A client of version 1 asks for a stream that there is not any more: tell it why."""
        error = Refused("the client speaks version 1 of the protocol, this coordinator version 2", SAME_RELEASE)
        self.refusals += 1
        self._log("refused", name=context.peer(), reason=str(error), hint=error.hint)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _details(error))

    def _connect(self, connection: Connection) -> None:
        """In the machine's thread: from here on this is the client's connection, and an older one is not."""
        older, self._newest[connection.client] = self._newest.get(connection.client), connection
        if older is not None:
            self._log("replaced", client=connection.client)
            self._loop.call_soon_threadsafe(older.close, None, True)
        self._handle(functools.partial(self._host.connected, connection.client))

    def _forget(self, connection: Connection) -> None:
        """In the machine's thread: the connection has ended."""
        if self._newest.get(connection.client) is connection:
            del self._newest[connection.client]
            self._handle(functools.partial(self._host.disconnected, connection.client))

    def _received(self, connection: Connection, data: bytes) -> None:
        """In the machine's thread: a message of a connection that still counts."""
        if self._newest.get(connection.client) is connection:
            self._handle(functools.partial(self._host.received, connection.client, data))

    def _lost(self, connection: Connection, item: SendSlice) -> None:
        """In the machine's thread: a slice for a connection that still counts is not on the disk."""
        if self._newest.get(connection.client) is connection:
            self._handle(functools.partial(self._host.slice_lost, item))

    async def _read(self, connection: Connection) -> None:
        """One message at a time: who sends faster than the machine takes is slowed down by the stream."""
        while True:
            data = await connection.stream.read()
            await self._loop.run_in_executor(self._machine, self._received, connection, data)

    async def _write(self, connection: Connection) -> None:
        """Write whenever the stream is free: a slow client skips rounds, and is never sent an old one."""
        while True:
            item = await connection.next()
            if isinstance(item, SendSlice):
                stored = await self._loop.run_in_executor(self._disk, self._host.stored_slice, item)
                if stored is None:
                    await self._loop.run_in_executor(self._machine, self._lost, connection, item)
                    continue
                item = stored
            elif isinstance(item, Weights):
                await connection.stream.write(await self._weights(connection, item))
                continue
            await connection.stream.write(item.encode())

    async def _weights(self, connection: Connection, weights: Weights) -> bytes:
        """A round's message for this connection. A large model's is made beside the loop, which others wait for."""
        make = functools.partial(self._sender.encoded, weights, connection.base_round)
        if len(weights.task) < _LARGE_BYTES:
            message, connection.base_round = make()
        else:
            message, connection.base_round = await self._loop.run_in_executor(self._disk, make)
        return message


async def _close(context: Any, connection: Connection) -> None:
    """End a stream with the status that tells the client whether coming back makes sense."""
    error = connection.close_error
    if connection.replaced:
        await context.abort(grpc.StatusCode.ABORTED, "a newer connection of this client took over")
    if isinstance(error, MessageError):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _details(error))
    if isinstance(error, Refused):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _details(error))
    if error is not None:
        await context.abort(grpc.StatusCode.INTERNAL, _details(error))


def _details(error: DresError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


async def _wait(what: asyncio.Event | asyncio.Future[None]) -> None:
    await (what.wait() if isinstance(what, asyncio.Event) else what)
