"""The coordinator on the network: one port, three kinds of streams, all clients at once."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import grpc

from dresfl.errors import DresError, MessageError, Refused, UsageError
from dresfl.federation import Agreement, Terms, make_session, most_parcel_bytes
from dresfl.protocol import Answer, Session, Task, Training

from .frames import Ack, Begin, Done, Hello, Holding, Open, Ready, Reject, Reply, Request, Slice, Wait, decode
from .lobby import Lobby, to_sign
from .log import Log
from .relay import Relay
from .rounds import Pace, Rounds, Watch
from .spool import Spool
from .streams import Door, Stream, first_of
from .tls import Credentials
from .weights import WeightSender

SERVICE = "dresfl.Hub"
_HELLO_SECONDS = 30.0
_FRAME_HEADER = 64  # more than any frame has before its payload
_SPOOL_THREADS = 4


@final
@dataclass(frozen=True)
class HubSettings:
    """Where the coordinator listens and what it allows itself."""

    listen: str = "127.0.0.1:0"
    folder: Path = Path("state")
    spool_bytes: int = 4 * 2**30
    keepalive: float = 20.0  # seconds between pings on an idle connection
    linger: float = 30.0  # seconds to wait at the end for clients that have not heard of it
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        if self.keepalive < 1 or self.linger < 0 or self.spool_bytes < 1:
            raise UsageError("keepalive must be at least 1, linger must not be negative, spool_bytes must be positive")


def channel_options(keepalive: float, most_bytes: int) -> list[tuple[str, int]]:
    """gRPC options that both sides share."""
    milliseconds = int(1000 * keepalive)
    return [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", most_bytes),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds // 2),
        ("grpc.http2.ping_timeout_ms", 2 * milliseconds),  # the one that gRPC keeps to: else a minute, always
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", milliseconds // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]


def largest_frame(session: Session) -> int:
    """The most bytes that any frame of a session has."""
    parameters = session.network.num_parameters
    answer = Answer.size(session.field, parameters)
    return _FRAME_HEADER + max(answer, 4 * parameters, most_parcel_bytes(session), 36 * session.num_clients + 200)


@final
class _Seat:
    """A client's place at the session: what it was sent on this connection."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.ready = False
        self.sent_round: int | None = None
        self.dismissed: MessageError | None = None


@final
@dataclass(frozen=True)
class _Running:
    """What there is once the terms are settled."""

    terms: Terms
    session: Session
    server: Training
    rounds: Rounds
    relay: Relay
    sender: WeightSender


@final
class Hub:
    """The coordinator: lets clients in, relays their shares, sends weights, hands their answers to the rounds."""

    def __init__(
        self,
        settings: HubSettings,
        agreement: Agreement,
        credentials: Credentials,
        make_server: Callable[[Session], Training],
        watch: Watch,
        log: Log,
    ) -> None:
        """make_server: a session's Training, restored if there is a checkpoint. watch: called after every round."""
        if len(credentials.roster.members) != agreement.num_clients:
            raise UsageError(
                f"the roster lists {len(credentials.roster.members)} clients, the agreement has {agreement.num_clients}"
            )
        self._settings, self._agreement, self._credentials = settings, agreement, credentials
        self._make_server, self._watch, self._log = make_server, watch, log
        self._lobby = Lobby(agreement, settings.folder / "terms.json", log)
        sample = make_session(agreement, (1,) * agreement.num_clients, b"", b"")
        self._most_bytes = largest_frame(sample)
        self._door = Door(credentials.roster, log, self._most_bytes)
        self._seats: dict[int, _Seat] = {}
        self._told: set[int] = set()
        self._met, self._enough, self._heard = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._running: asyncio.Future[_Running] = asyncio.get_running_loop().create_future()
        self._done: bytes | None = None
        self._disk = ThreadPoolExecutor(_SPOOL_THREADS, "spool")

    # -- the whole run ---------------------------------------------------------------------------------------

    async def run(self, on_ready: Callable[[int], None] = lambda port: None) -> Training:
        """Serve until the run is complete; return the Training with its final weights. `on_ready` gets the port."""
        # gRPC's own complaints, e.g. that a client vanished before its refusal: the log has said what matters
        logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)
        listener = grpc.aio.server(options=channel_options(self._settings.keepalive, self._most_bytes + 2**20))
        handlers = {
            "Session": self._door.handler("Session", self._serve_session),
            "Deal": self._door.handler("Deal", self._serve_deal),
            "Collect": self._door.handler("Collect", self._serve_collect),
        }
        listener.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            port = listener.add_secure_port(self._settings.listen, self._credentials.for_server())
        except RuntimeError as error:
            raise DresError(
                f"cannot listen on {self._settings.listen}", "is the port in use or not allowed?"
            ) from error
        await listener.start()
        self._log("listening", port=port, clients=self._agreement.num_clients, agreement=self._agreement.digest.hex())
        on_ready(port)
        try:
            server = await self._run()
        finally:
            self._door.closing = True
            await listener.stop(1.0)
            self._disk.shutdown(wait=False)
        return server

    async def _run(self) -> Training:
        if self._lobby.terms is None:
            await self._met.wait()
        running = self._settle(self._lobby.settled_terms)
        self._running.set_result(running)
        server = running.server
        if not server.done:
            await self._enough.wait()
            self._log("rounds", first=server.round_number, rounds=server.rounds, ready=self.ready)
            await running.rounds.run()
        await self._close(server)
        return server

    def _settle(self, terms: Terms) -> _Running:
        """Make the session that the terms give."""
        session = terms.session(self._agreement)
        spool = Spool(self._settings.folder / "spool", session.sharing_id)
        server = self._make_server(session)
        rounds = Rounds(server, self, self._settings.pace, self._watch, self._log)
        relay = Relay(session, spool, self._settings.spool_bytes)
        return _Running(terms, session, server, rounds, relay, WeightSender(session))

    async def _close(self, server: Training) -> None:
        """Tell every client the final weights; wait a while for those who are away."""
        self._door.closing = True  # from now on clients leave as they should
        final_task = Task(server.rounds, server.weights.cpu())
        self._done = Done(final_task.encode(server.session)).encode()
        self._wake_all()
        try:
            async with asyncio.timeout(self._settings.linger):
                while len(self._told) < self._agreement.num_clients:
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            untold = [i for i in range(self._agreement.num_clients) if i not in self._told]
            self._log("ended without", clients=untold)

    # -- who is here (also for the metrics endpoint) ---------------------------------------------------------

    @property
    def connected(self) -> list[int]:
        return sorted(self._seats)

    @property
    def ready(self) -> list[int]:
        return sorted(index for index, seat in tuple(self._seats.items()) if seat.ready)

    @property
    def running(self) -> _Running | None:
        return self._running.result() if self._running.done() else None

    @property
    def refusals(self) -> int:
        return self._door.refusals

    # -- Audience --------------------------------------------------------------------------------------------

    def publish(self, task: Task) -> None:
        self._running.result().sender.publish(task)
        self._wake_all()

    def resend(self, answered: set[int]) -> None:
        for index, seat in self._seats.items():
            if index not in answered:
                seat.sent_round = None
                seat.wake.set()

    def dismiss(self, index: int, reason: MessageError) -> None:
        if index in self._seats:
            self._seats[index].dismissed = reason
            self._seats[index].wake.set()
        else:
            self._log("refused", where="Session", client=index, reason=str(reason), hint=reason.hint)

    def _wake_all(self) -> None:
        for seat in self._seats.values():
            seat.wake.set()

    # -- Session ---------------------------------------------------------------------------------------------

    async def _serve_session(self, stream: Stream) -> None:
        index, seat = stream.index, _Seat()
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = decode(await stream.read(), Hello)
        except TimeoutError:
            raise MessageError("no Hello came in time") from None
        except MessageError as error:  # no dresfl of this version sends such a one: trying again is of no use
            raise Refused(str(error), error.hint) from error
        self._lobby.hello(index, hello)
        self._log("joined", client=index, name=self._credentials.roster.members[index].name)
        self._seats[index] = seat
        try:
            if self._lobby.terms is not None:
                self._met.set()
            if not self._running.done():
                await self._wait(stream)
            running = self._running.result()
            await stream.write(self._begin(index, hello, running.terms))
            await first_of(self._send_weights(stream, seat, running), self._take_replies(stream, seat, running))
        finally:
            if self._seats.get(index) is seat:
                del self._seats[index]
                self._lobby.leave(index)
                self._log("left", client=index)

    async def _wait(self, stream: Stream) -> None:
        missing = self._lobby.missing()
        await stream.write(Wait(f"{len(missing)} of {self._agreement.num_clients} clients are missing").encode())

        async def silence() -> None:
            decode(await stream.read(), Ready)
            raise MessageError("a Ready came before the terms")

        async def settled() -> None:
            await asyncio.shield(self._running)

        await first_of(settled(), silence())

    def _begin(self, index: int, hello: Hello, terms: Terms) -> bytes:
        message = to_sign(hello.challenge, index, self._credentials.roster.digest, terms.encode())
        return Begin(self._credentials.identity.sign("begin", message), terms).encode()

    async def _send_weights(self, stream: Stream, seat: _Seat, running: _Running) -> None:
        """Send what is newest whenever the stream is free: a slow client skips rounds, and is never sent an old one."""
        sender = running.sender
        while True:
            if seat.dismissed is not None:
                raise seat.dismissed
            if self._done is not None:
                await stream.write(self._done)
                await asyncio.Event().wait()  # until the client says that it has it: what is written may be lost
            if seat.ready and sender.round_number not in (None, seat.sent_round):
                frame, seat.sent_round = sender.frame(seat.sent_round), sender.round_number
                await stream.write(frame)
                continue  # something newer may be there by now
            seat.wake.clear()
            await seat.wake.wait()

    async def _take_replies(self, stream: Stream, seat: _Seat, running: _Running) -> None:
        session = running.session
        while True:
            frame = decode(await stream.read(), Ready, Reply)
            if isinstance(frame, Reply):
                if self._done is not None and frame.round_number == running.server.rounds:  # its answer to Done
                    self._told.add(stream.index)
                    self._heard.set()
                    return
                running.rounds.arrive(stream.index, frame.round_number, frame.answer)
                continue
            if frame.sharing_id != session.sharing_id:
                raise MessageError("a Ready for another sharing came")
            seat.ready = True
            seat.wake.set()
            self._log("ready", client=stream.index, ready=len(self.ready))
            if len(self.ready) >= session.recovery_threshold:
                self._enough.set()

    # -- Deal and Collect ------------------------------------------------------------------------------------

    async def _opened(self, stream: Stream) -> Relay:
        frame = decode(await stream.read(), Open)
        if self.running is None or frame.sharing_id != self.running.session.sharing_id:
            raise MessageError("a relay stream for another sharing came")
        return self.running.relay

    async def _serve_deal(self, stream: Stream) -> None:
        relay, index = await self._opened(stream), stream.index
        loop = asyncio.get_running_loop()

        async def ask() -> None:
            wake = relay.dealer_wakes[index]
            while True:
                while (place := relay.next_for_dealer(index)) is not None:
                    await stream.write(Request(*place).encode())
                wake.clear()
                await wake.wait()

        async def keep() -> None:
            while True:
                frame = decode(await stream.read(), Slice)
                relay.expect(index, frame.peer, frame.number, len(frame.sealed))
                await loop.run_in_executor(self._disk, relay.store, index, frame.peer, frame.number, frame.sealed)
                relay.stored(index, frame.peer, frame.number, len(frame.sealed))

        number = relay.dealer_came(index)
        try:
            await first_of(ask(), keep())
        finally:
            relay.dealer_left(index, number)

    async def _serve_collect(self, stream: Stream) -> None:
        relay, index = await self._opened(stream), stream.index
        loop = asyncio.get_running_loop()
        number = relay.receiver_came(index)
        for _ in range(self._agreement.num_clients):
            holding = decode(await stream.read(), Holding)
            relay.declare(index, holding.peer, holding.held)

        async def send() -> None:
            wake = relay.receiver_wakes[index]
            while True:
                while (place := relay.next_for_receiver(index)) is not None:
                    sealed = await loop.run_in_executor(self._disk, relay.load, index, *place)
                    if sealed is None:
                        relay.lost(index, *place)
                    else:
                        await stream.write(Slice(*place, sealed).encode())
                wake.clear()
                await wake.wait()

        async def listen() -> None:
            while True:
                frame = decode(await stream.read(), Ack, Reject)
                if isinstance(frame, Ack):
                    relay.acknowledge(index, frame.peer, frame.number)
                    continue
                again = relay.reject(index, frame.peer, frame.number)
                self._log(
                    "slice rejected",
                    dealer=frame.peer,
                    receiver=index,
                    slice=frame.number,
                    reason=frame.reason,
                    then="asked for again" if again else "given up",
                )

        try:
            await first_of(send(), listen())
        finally:
            relay.receiver_left(index, number)
