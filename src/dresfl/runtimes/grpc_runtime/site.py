"""A site on the network: connect, share, answer, come back whatever happens, until the run is done."""

import asyncio
import contextlib
import functools
import random
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, final

import grpc
from grpc.aio import AioRpcError
from torch import Tensor

from dresfl.errors import MessageError, Refused, UsageError
from dresfl.federation import NO_NONCE, Agreement, make_session
from dresfl.protocol import Client, Session, Task
from dresfl.storage import DiskTable, ShareStore

from .calls import Call
from .exchange import Exchange
from .frames import Begin, Delta, Done, Hello, Ready, Reply, Wait, Weights, decode
from .hub import SERVICE, channel_options, largest_frame
from .lobby import to_sign
from .log import Log
from .streams import StreamEnded, first_of
from .tls import Credentials
from .weights import WeightReceiver

_T = TypeVar("_T")
_FAREWELL_SECONDS = 5.0
_FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION)


@final
@dataclass(frozen=True)
class SiteSettings:
    """Where the coordinator is, and how patiently a site comes back."""

    server: str = "127.0.0.1:7443"
    keepalive: float = 20.0  # seconds between pings on an idle connection
    first_delay: float = 0.2  # seconds before the first attempt to come back; then twice as long each time
    longest_delay: float = 30.0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.keepalive < 1 or not 0 < self.first_delay <= self.longest_delay:
            raise UsageError("keepalive must be at least 1, and first_delay positive and at most longest_delay")


@final
@dataclass(frozen=True)
class _Membership:
    """What a site is once the terms are known: the protocol's client, over its own disk."""

    session: Session
    client: Client
    table: DiskTable


@final
class _Newest:
    """A place for one task: a newer one takes it, whether the older was answered or not."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._there = asyncio.Event()
        self.round_number = -1
        self.final: Task | None = None

    def put(self, task: Task) -> None:
        self._task, self.round_number = task, task.round_number
        self._there.set()

    async def get(self) -> Task:
        while self._task is None:
            self._there.clear()
            await self._there.wait()
        task, self._task = self._task, None
        return task


@final
class Site:
    """One organisation's end of the network."""

    def __init__(
        self,
        settings: SiteSettings,
        agreement: Agreement,
        credentials: Credentials,
        store: ShareStore,
        rows: tuple[Tensor, Tensor],
        log: Log,
        keep: Callable[[Task], None] = lambda task: None,
    ) -> None:
        """rows: this site's integer inputs (m,F) and targets (m,C).

        keep: stores the final weights. The coordinator is told that we have them only afterwards, so that a site
        killed on the way is given them again.
        """
        self._settings, self._agreement, self._credentials = settings, agreement, credentials
        self._store, self._rows, self._log, self._keep = store, rows, log, keep
        self.index = credentials.roster.index_of(credentials.identity.member)
        self._contribution = store.contribution()
        self._member: _Membership | None = None
        self._worker = ThreadPoolExecutor(1, "site")  # answers and the share table: one thread at a time
        self._began = False  # whether this connection came as far as a session
        self.rounds_answered = 0
        sample = make_session(agreement, (1,) * agreement.num_clients, b"", b"")
        self._most_bytes = largest_frame(sample)

    async def run(self) -> Task:
        """Take part until the end; return the final weights. Raises Refused if the coordinator will not have us."""
        delay = self._settings.first_delay
        try:
            while True:
                self._began = False
                try:
                    return await self._connect()
                except AioRpcError as error:
                    if error.code() in _FINAL:
                        raise Refused(f"the coordinator refuses this site: {error.details()}") from error
                    reason = f"{error.code().name}: {error.details()}"
                except (MessageError, StreamEnded) as error:
                    reason = str(error)
                delay = self._settings.first_delay if self._began else min(2 * delay, self._settings.longest_delay)
                pause = delay * random.uniform(0.5, 1.5)  # noqa: S311 - so that sites do not all come back at once
                self._log("disconnected", reason=reason, again_in=round(pause, 3))
                await asyncio.sleep(pause)
        finally:
            self._worker.shutdown(wait=True)

    async def _connect(self) -> Task:
        """One connection, from hello to its end."""
        options = [
            *channel_options(self._settings.keepalive, self._most_bytes + 2**20),
            ("grpc.ssl_target_name_override", self._credentials.roster.server.name),
            ("grpc.use_local_subchannel_pool", 1),  # a new attempt is not slowed by an older one's back-off
        ]
        credentials = self._credentials.for_client()
        async with grpc.aio.secure_channel(self._settings.server, credentials, options) as channel:
            call = Call(channel, f"/{SERVICE}/Session")
            hello = self._hello()
            await call.write(hello.encode())
            begin = await self._wait_for_begin(call)
            member = await self._in_worker(lambda: self._accept(begin, hello))
            self._began = True
            sharing, session = member.session.sharing_id.hex(), member.session.session_id.hex()
            self._log("connected", client=self.index, sharing=sharing, session=session)
            return await self._take_part(channel, call, member)

    def _hello(self) -> Hello:
        held = self._store.held(self._agreement, self.index)
        nonce = held[0].nonce if held else NO_NONCE
        rows = self._rows[0].shape[0]
        return Hello(self._agreement.digest, rows, self._contribution, nonce, secrets.token_bytes(16))

    async def _wait_for_begin(self, call: Call) -> Begin:
        while True:
            frame = decode(await call.read(), Begin, Wait)
            if isinstance(frame, Begin):
                return frame
            self._log("waiting", reason=frame.text)

    def _accept(self, begin: Begin, hello: Hello) -> _Membership:
        """Check the terms, and become a member of the session they give. Refused if they are not as agreed."""
        roster, index = self._credentials.roster, self.index
        message = to_sign(hello.challenge, index, roster.digest, begin.body())
        roster.server.check_signature("begin", message, begin.signature)
        begin.terms.check_for(self._store, self._agreement, index, hello.rows)
        session = begin.terms.session(self._agreement, self._settings.device)
        if self._member is None or self._member.session.session_id != session.session_id:
            table, answered = self._store.table(session, index), self._store.answered(session)
            client = Client(session, index, self._store.secret(session), *self._rows, table, answered)
            for text in table.damage:
                self._log("store damaged", what=text)
            self._member = _Membership(session, client, table)
        return self._member

    async def _take_part(self, channel: grpc.aio.Channel, call: Call, member: _Membership) -> Task:
        tasks = _Newest()
        exchange = Exchange(
            lambda method: Call(channel, f"/{SERVICE}/{method}"),
            member.client,
            member.table,
            self._credentials,
            self._in_worker,
            self._log,
        )

        async def collect() -> None:
            await exchange.collect()
            await call.write(Ready(member.session.sharing_id).encode())
            self._log("ready", client=self.index)
            await asyncio.Event().wait()  # there is nothing more to collect

        follow, answer = self._follow(call, member.session, tasks), self._answer(call, member, tasks)
        try:
            await first_of(follow, answer, exchange.deal(), collect())
        except (AioRpcError, StreamEnded):
            if tasks.final is None:
                raise
        if tasks.final is None:
            raise StreamEnded("a stream to the coordinator ended")
        return tasks.final

    async def _follow(self, call: Call, session: Session, tasks: _Newest) -> None:
        """Keep up with the weights; the answering side takes the newest when it is free."""
        weights = WeightReceiver(session)
        while True:
            frame = decode(await call.read(), Weights, Delta, Done)
            if isinstance(frame, Done):
                final = Task.decode(frame.task, session)
                self._agreement.check_end(final.round_number)
                await self._in_worker(functools.partial(self._keep, final))
                tasks.final = final
                await call.write(Reply(final.round_number, b"").encode())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_FAREWELL_SECONDS):
                        await call.read()  # the coordinator closes the stream when it knows
                return
            task = weights.take(frame)
            self._agreement.check_round(task.round_number)
            tasks.put(task)

    async def _answer(self, call: Call, member: _Membership, tasks: _Newest) -> None:
        while True:
            task = await tasks.get()
            try:
                data = await self._in_worker(functools.partial(_answered, member, task))
            except MessageError as error:
                self._log("task refused", round=task.round_number, reason=str(error), hint=error.hint)
                continue
            if task.round_number >= tasks.round_number:  # else the answer would be late
                await call.write(Reply(task.round_number, data).encode())
                self.rounds_answered += 1

    async def _in_worker(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


def _answered(member: _Membership, task: Task) -> bytes:
    return member.client.answer(task).encode(member.session)
