"""The coordinator on the network: one port, one stream for each client. All decisions are the machine's.

The machine and its disk have one thread. Events are handed to it in order; what it answers is done here, in order.
"""

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import grpc

from dresfl.errors import DresError, IdentityError, MessageError, Refused, UsageError
from dresfl.federation.actions import Close, Finish, Send, SendSlice
from dresfl.federation.messages import VERSION, Done, Message, Opened, Resume, Weights
from dresfl.runtimes.clock import LOOK_SECONDS, ClockWatch
from dresfl.runtimes.coordinator_host import CoordinatorHost, OnNetwork
from dresfl.runtimes.log import Log
from dresfl.sealing import valid_until

from .descriptors import connection_limit
from .strangers import Strangers, keep_room
from .streams import (
    METHOD,
    METHOD_OF_VERSION_2,
    SAME_RELEASE,
    SERVICE,
    SERVICE_OF_VERSION_1,
    Bundle,
    ClientStream,
    StreamEnded,
    channel_options,
    first_of,
)
from .tls import Credentials, caller
from .weights import WeightSender

_ON_EXPIRY = "no client can connect anew; open connections go on, since it was valid when they began"
_LARGE_BYTES = 2**18


@final
@dataclass(frozen=True)
class ListenSettings:
    """Where the coordinator listens."""

    listen: str = "127.0.0.1:0"
    keepalive: float = 20.0  # seconds between pings on an idle connection
    handshake: float = 10.0  # seconds until a connection must have shown its certificate, and then opened its stream

    def __post_init__(self) -> None:
        if self.keepalive < 1 or self.handshake < 1:
            raise UsageError("keepalive and handshake must be at least 1 second")


@final
class Connection:
    """One client's connection: what is to be written, and why it ends."""

    def __init__(self, client: int, stream: ClientStream, valid_until: float = math.inf, peer: str = "") -> None:
        """valid_until: the end of the client's certificate, in seconds since 1970. peer: gRPC's name for it."""
        self.client, self.stream, self.valid_until, self.peer = client, stream, valid_until, peer
        self.expired = False  # only the machine's thread looks at it
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

    @property
    def waiting(self) -> bool:
        """Whether there is more to write."""
        return bool(self._outbox)

    def close(self, error: DresError | None, replaced: bool = False) -> None:
        """End the connection. The first reason counts."""
        if not self.closed.is_set():
            self.close_error, self.replaced = error, replaced
            self.closed.set()


@final
class GrpcCoordinator:
    """Accepts clients by their certificates, and moves messages between them and the machine."""

    def __init__(
        self,
        settings: ListenSettings,
        host: CoordinatorHost,
        credentials: Credentials,
        log: Log,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """wall: the clock that certificates go by, in seconds since 1970."""
        self._settings, self._host, self._credentials, self._log = settings, host, credentials, log
        self._wall, self._clock = wall, ClockWatch(log, valid_until(credentials.certificate), _ON_EXPIRY, wall)
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
        self._most_connections = connection_limit(len(credentials.roster.members))
        self.refusals = 0

    async def run(self, on_ready: Callable[[int], None] = lambda port: None) -> None:
        """Serve until the run is over. `on_ready` gets the port. When this returns, nobody uses the run's folder."""
        # gRPC's own complaints, e.g. that a client vanished before its refusal: the log has said what matters
        logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)
        listener = grpc.aio.server(options=self._options())
        handlers = {
            SERVICE: {
                METHOD: grpc.stream_stream_rpc_method_handler(self._accept),
                METHOD_OF_VERSION_2: grpc.stream_stream_rpc_method_handler(functools.partial(self._refuse_version, 2)),
            },
            SERVICE_OF_VERSION_1: {
                METHOD_OF_VERSION_2: grpc.stream_stream_rpc_method_handler(functools.partial(self._refuse_version, 1))
            },
        }
        for service, methods in handlers.items():
            listener.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
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
            await first_of(_wait(self._over), self._keep_time(), self._watch_clock(), self._keep_room(port))
        finally:
            for connection in self._open:
                connection.close(None)
            try:
                await listener.stop(1.0)
            finally:
                self._disk.shutdown(wait=False, cancel_futures=True)
                self._machine.shutdown(wait=False, cancel_futures=True)
            await asyncio.to_thread(self._machine.shutdown)  # may be writing a checkpoint

    def _options(self) -> list[tuple[str, int]]:
        """gRPC's options. The limits keep strangers, who need no certificate to connect, from using up descriptors."""
        milliseconds = int(1000 * self._settings.handshake)
        return [
            *channel_options(self._settings.keepalive, self._host.most_bytes),
            ("grpc.max_allowed_incoming_connections", self._most_connections),
            ("grpc.server_handshake_timeout_ms", milliseconds),
            ("grpc.max_connection_idle_ms", milliseconds),  # without a stream
            ("grpc.max_concurrent_streams", 4),  # of a connection; a client has one
        ]

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
                calls.append(functools.partial(self._end, action.error))
                continue
            client = action.receiver if isinstance(action, SendSlice) else action.client
            connection = self._newest.get(client)
            if connection is None:
                continue
            match action:
                case Send(message=Weights() | Done() | Opened() | Resume()) if self._has_expired(connection):
                    calls.append(functools.partial(connection.close, _expired(client)))
                case Send():
                    calls.append(functools.partial(connection.put, action.message))
                case SendSlice():
                    calls.append(functools.partial(connection.put, action))
                case Close():
                    calls.append(functools.partial(connection.close, action.error))
        return calls

    def _has_expired(self, connection: Connection) -> bool:
        """In the machine's thread, when a round begins: whether the client's certificate has ended since it came."""
        if self._wall() <= connection.valid_until:
            return False
        if not connection.expired:
            connection.expired = True
            error = _expired(connection.client)
            name = self._credentials.roster.members[connection.client].name
            self._log("refused", client=connection.client, name=name, reason=str(error), hint=error.hint)
            self.refusals += 1
        return True

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

    async def _keep_room(self, port: int) -> None:
        """Keep half of the places free of strangers."""
        most = (self._most_connections - len(self._credentials.roster.members)) // 2
        strangers = Strangers(port, most)
        try:
            await keep_room(strangers, lambda: [connection.peer for connection in self._open], self._log)
        finally:
            strangers.close()

    async def _watch_clock(self) -> None:
        while True:
            self._clock.look()
            await asyncio.sleep(LOOK_SECONDS)

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
            client, ends = caller(context, self._credentials.roster)
        except Refused as error:
            self.refusals += 1
            self._log("refused", name=context.peer(), reason=str(error), hint=error.hint)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, _details(error))
        connection = Connection(client, ClientStream(context, self._host.most_bytes), ends, context.peer())
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

    async def _refuse_version(self, version: int, _: object, context: Any) -> None:
        """A client of an older version asks for a stream that there is not any more: tell it why."""
        error = Refused(
            f"the client speaks version {version} of the protocol, this coordinator version {VERSION}", SAME_RELEASE
        )
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

    def _received(self, connection: Connection, messages: Sequence[memoryview]) -> None:
        """In the machine's thread: messages of a connection that still counts."""
        if self._newest.get(connection.client) is connection:
            self._handle(functools.partial(self._host.received, connection.client, *messages))

    def _lost(self, connection: Connection, item: SendSlice) -> None:
        """In the machine's thread: a slice for a connection that still counts is not on the disk."""
        if self._newest.get(connection.client) is connection:
            self._handle(functools.partial(self._host.slice_lost, item))

    async def _read(self, connection: Connection) -> None:
        """One bundle at a time: who sends faster than the machine takes is slowed down by the stream."""
        while True:
            messages = await connection.stream.read()
            await self._loop.run_in_executor(self._machine, self._received, connection, messages)

    async def _write(self, connection: Connection) -> None:
        """Write whenever the stream is free, as much as a bundle takes.

        A slow client skips rounds, and is never sent an old one.
        """
        while True:
            messages = Bundle()
            while messages.empty or (connection.waiting and not messages.full):
                message = await self._next_message(connection)
                if message is not None:
                    messages.add(message)
            await connection.stream.write(messages)

    async def _next_message(self, connection: Connection) -> Message | None:
        """What is to be written next; None if it is not there any more."""
        item = await connection.next()
        if isinstance(item, Weights):
            make = functools.partial(self._sender.message, item, connection.base_round)
            large = len(item.task) >= _LARGE_BYTES  # then it is made beside the loop, which others wait for
            item, connection.base_round = await self._loop.run_in_executor(self._disk, make) if large else make()
        if not isinstance(item, SendSlice):
            return item
        stored = self._host.slice_in_memory(item)
        if stored is None:
            stored = await self._loop.run_in_executor(self._disk, self._host.stored_slice, item)
        if stored is None:
            await self._loop.run_in_executor(self._machine, self._lost, connection, item)
        return stored


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


def _expired(client: int) -> IdentityError:
    """Not a refusal for good: a client whose clock agrees ends by itself; if only ours is wrong, it comes back."""
    return IdentityError(
        f"the certificate of client {client} has expired during the run",
        "renew it with the same key (dresfl ca sign) and start the client again; or set this machine's clock",
    )


def _details(error: DresError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


async def _wait(what: asyncio.Event | asyncio.Future[None]) -> None:
    await (what.wait() if isinstance(what, asyncio.Event) else what)
