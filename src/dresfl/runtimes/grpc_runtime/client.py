"""A client on the network: it connects, and comes back whatever happens. All decisions are the machine's."""

import asyncio
import contextlib
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import final

import grpc
from grpc.aio import AioRpcError

from dresfl.errors import DresError, MessageError, Refused, UsageError
from dresfl.federation import Agreement, Site, Workplace, largest_message
from dresfl.federation.actions import Action, Deal, Disconnect, Flush, GiveUp, Keep, Leave, SendToCoordinator, Work
from dresfl.federation.actions import Log as LogAction
from dresfl.federation.messages import VERSION, Message
from dresfl.protocol import Task
from dresfl.runtimes.clock import LOOK_SECONDS, ClockWatch
from dresfl.runtimes.log import Log
from dresfl.runtimes.wire_recorder import WireRecorder
from dresfl.sealing import valid_until

from .streams import (
    SAME_RELEASE,
    Bundle,
    CoordinatorStream,
    StreamEnded,
    channel_options,
    first_of,
)
from .tls import Credentials
from .weights import WeightReceiver

_SLICE_WORK = (Deal, Keep, Flush)
_TOGETHER = 16  # pieces of work
_LAST_WORDS_SECONDS = 3.0
_ON_EXPIRY = "the coordinator ends this connection when the next round begins"
_FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION)


@final
@dataclass(frozen=True)
class ConnectSettings:
    """Where the coordinator is, and how patiently a client comes back."""

    coordinator: str = "127.0.0.1:7443"
    keepalive: float = 20.0  # seconds between pings on an idle connection
    first_delay: float = 0.2  # seconds before the first attempt to come back; then twice as long each time
    longest_delay: float = 30.0

    def __post_init__(self) -> None:
        if self.keepalive < 1 or not 0 < self.first_delay <= self.longest_delay:
            raise UsageError("keepalive must be at least 1, and first_delay positive and at most longest_delay")


class _Disconnected(Exception):
    """The machine wants to come back later."""


@final
class GrpcClient:
    """One client: its machine, its work in threads, and a connection that comes back."""

    def __init__(
        self,
        settings: ConnectSettings,
        agreement: Agreement,
        credentials: Credentials,
        workplace: Workplace,
        log: Log,
        folder: Path | None = None,
    ) -> None:
        """folder: the client's own. It gets a transcript, if the agreement says so."""
        self._settings, self._credentials, self._workplace, self._log = settings, credentials, workplace, log
        self._most_bytes = largest_message(agreement)
        self.machine = Site(agreement, credentials.roster, workplace.index, workplace.introduce)
        self._recorder = WireRecorder(agreement, folder, workplace.index)
        self._loop = asyncio.get_running_loop()
        self._outbox: asyncio.Queue[Message | None] = asyncio.Queue()  # None: that was all
        self._work: asyncio.Queue[Work] = asyncio.Queue()
        self._dealing: asyncio.Queue[Work] = asyncio.Queue()
        self._worker, self._dealer = ThreadPoolExecutor(1, "work"), ThreadPoolExecutor(1, "deal")
        self._wake_at: float | None = None
        self._changed = asyncio.Event()
        self._clock = ClockWatch(log, valid_until(credentials.certificate), _ON_EXPIRY)
        self._final: Task | None = None
        self._has_left = False
        self._given_up: DresError | None = None
        self._gives_up, self._all_said = asyncio.Event(), asyncio.Event()

    async def run(self) -> Task | None:
        """Take part until the end; return the final weights, or None if there are none for this client now.

        Raises Refused if the coordinator will not have us.
        """
        delay = self._settings.first_delay
        try:
            while True:
                try:
                    await self._connect()
                except AioRpcError as error:
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        raise Refused(
                            f"the coordinator does not speak version {VERSION} of the protocol", SAME_RELEASE
                        ) from error
                    if error.code() in _FINAL:
                        raise Refused(f"the coordinator refuses this client: {error.details()}") from error
                    reason = f"{error.code().name}: {error.details()}"
                except (MessageError, StreamEnded, _Disconnected) as error:
                    reason = str(error)
                if self._given_up is not None:
                    raise self._given_up
                self._carry_out(self.machine.disconnected(self._loop.time()))
                if self._has_left:
                    return self._final
                came_far, longest = self.machine.came_far, self._settings.longest_delay
                delay = self._settings.first_delay if came_far else min(2 * delay, longest)
                pause = delay * random.uniform(0.5, 1.5)  # noqa: S311 - so that clients do not all come back at once
                self._log("disconnected", reason=reason, again_in=round(pause, 3))
                await asyncio.sleep(pause)
        finally:
            self._worker.shutdown(wait=True)
            self._dealer.shutdown(wait=True)

    async def _connect(self) -> None:
        """One connection, from Hello to its end."""
        options = [
            *channel_options(self._settings.keepalive, self._most_bytes),
            ("grpc.ssl_target_name_override", self._credentials.roster.server.name),
            ("grpc.use_local_subchannel_pool", 1),  # a new attempt is not slowed by an older one's back-off
        ]
        for queue in (self._outbox, self._work, self._dealing):
            while not queue.empty():  # what an earlier connection left
                queue.get_nowait()
        credentials = self._credentials.for_client()
        async with grpc.aio.secure_channel(self._settings.coordinator, credentials, options) as channel:
            stream = CoordinatorStream(channel)
            self._carry_out(self.machine.connected(self._loop.time()))
            await first_of(
                self._read(stream),
                self._write(stream),
                self._perform(self._work, self._worker),
                self._perform(self._dealing, self._dealer),
                self._keep_time(),
                self._watch_clock(),
                self._give_up(),
            )

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendToCoordinator():
                    self._recorder.sent_by_client(self._workplace.index, action.message, self.machine.session)
                    self._outbox.put_nowait(action.message)
                case Work():
                    (self._dealing if isinstance(action, Deal) else self._work).put_nowait(action)
                case LogAction():
                    self._log(action.event, **action.fields)
                case Disconnect():
                    raise _Disconnected(action.reason)
                case GiveUp():
                    self._given_up = action.error
                    self._outbox.put_nowait(None)
                    self._gives_up.set()
                case Leave():
                    self._final, self._has_left = action.final, True
        if self._has_left or self.machine.wake_at != self._wake_at:
            self._wake_at = self.machine.wake_at
            self._changed.set()

    async def _read(self, stream: CoordinatorStream) -> None:
        weights = WeightReceiver()
        while True:
            for data in await stream.read():
                message = weights.take(data)
                self._recorder.data_from_coordinator(message, self.machine.session)
                self._carry_out(self.machine.received(message, self._loop.time()))

    async def _write(self, stream: CoordinatorStream) -> None:
        """Write what waits: together, up to the size of a bundle."""
        while True:
            messages = Bundle()
            message = await self._outbox.get()
            while message is not None:
                messages.add(message)
                if self._outbox.empty() or messages.full:
                    break
                message = self._outbox.get_nowait()
            if not messages.empty:
                await stream.write(messages)
            if message is None:
                await stream.end()
                self._all_said.set()

    async def _perform(self, queue: "asyncio.Queue[Work]", thread: ThreadPoolExecutor) -> None:
        """Work through a queue. Slices are small pieces of work: several go to the thread together."""
        while True:
            pieces = [await queue.get()]
            while isinstance(pieces[-1], _SLICE_WORK) and len(pieces) < _TOGETHER and not queue.empty():
                pieces.append(queue.get_nowait())
            results = await self._loop.run_in_executor(thread, self._perform_all, pieces)
            for work, result in zip(pieces, results, strict=True):
                self._carry_out(self.machine.worked(work, result, self._loop.time()))

    def _perform_all(self, pieces: list[Work]) -> list[object]:
        return [self._workplace.perform(work) for work in pieces]

    async def _watch_clock(self) -> None:
        while True:
            self._clock.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _give_up(self) -> None:
        """End with the machine's error, after what it had to say has been said, or after a while."""
        await self._gives_up.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self._all_said.wait()
        if self._given_up is not None:
            raise self._given_up

    async def _keep_time(self) -> None:
        """Tell the machine when its time has come; end when it has left."""
        while not self._has_left:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(self._wake_at):
                    await self._changed.wait()
            except TimeoutError:
                self._carry_out(self.machine.tick(self._loop.time()))
