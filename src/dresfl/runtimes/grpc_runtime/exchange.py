"""A site's side of the relay: deal what the coordinator asks for, collect what others dealt, sealed end to end."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar, final

from dresfl.errors import MessageError
from dresfl.federation import Parcels
from dresfl.protocol import Client, num_slices
from dresfl.storage import DiskTable

from .calls import Call
from .frames import Ack, Holding, Open, Reject, Request, Slice, decode
from .log import Log
from .streams import first_of
from .tls import Credentials

_FLUSH_AFTER = 8  # slices
_IDLE_SECONDS = 0.05  # without a slice: then what has come is put on the disk
_T = TypeVar("_T")


class InWorker(Protocol):
    """Runs a function in the thread that owns the share table."""

    def __call__(self, work: Callable[[], _T]) -> Awaitable[_T]: ...


@final
class Exchange:
    """Dealing and collecting over one connection."""

    def __init__(
        self,
        open_stream: Callable[[str], Call],
        client: Client,
        table: DiskTable,
        credentials: Credentials,
        in_worker: InWorker,
        log: Log,
    ) -> None:
        self._open_stream, self._table, self._in_worker, self._log = open_stream, table, in_worker, log
        self._session = client.session
        self._parcels = Parcels(client, table, credentials.identity, credentials.roster)

    # -- dealing ---------------------------------------------------------------------------------------------

    async def deal(self) -> None:
        """Serve the coordinator's requests until the stream ends."""
        call = self._open_stream("Deal")
        await call.write(Open(self._session.sharing_id).encode())
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "dealer") as dealer:
            while True:
                request = decode(await call.read(), Request)
                frame = await loop.run_in_executor(dealer, self._dealt, request.peer, request.number)
                await call.write(frame)

    def _dealt(self, receiver: int, number: int) -> bytes:
        """One slice for one receiver, sealed."""
        return Slice(receiver, number, self._parcels.deal_one(receiver, number)).encode()

    # -- collecting ------------------------------------------------------------------------------------------

    async def collect(self) -> None:
        """Fetch every slice that is missing; return when all are on the disk."""
        await self._in_worker(self._keep_own)
        if self._table.complete:
            return
        call = self._open_stream("Collect")
        await call.write(Open(self._session.sharing_id).encode())
        for dealer in range(self._session.num_clients):
            held = set(range(num_slices(self._session, dealer))) - set(self._table.missing_slices(dealer))
            await call.write(Holding(dealer, frozenset(held)).encode())
        arrived: asyncio.Queue[Slice] = asyncio.Queue(maxsize=2)

        async def follow() -> None:
            while True:
                await arrived.put(decode(await call.read(), Slice))

        await first_of(self._keep(call, arrived), follow())
        await call.close()

    def _keep_own(self) -> None:
        self._parcels.keep_own()
        self._table.flush()

    async def _keep(self, call: Call, arrived: "asyncio.Queue[Slice]") -> None:
        """Open and keep what comes. A slice is acknowledged when it is on the disk for good."""
        kept: list[Ack] = []
        while not (self._table.complete and not kept):
            try:
                async with asyncio.timeout(_IDLE_SECONDS if kept else None):
                    frame = await arrived.get()
            except TimeoutError:
                frame = None
            if frame is not None:
                reason = await self._in_worker(functools.partial(self._open, frame))
                if reason:
                    self._log("slice rejected", dealer=frame.peer, slice=frame.number, reason=reason)
                    await call.write(Reject(frame.peer, frame.number, reason).encode())
                else:
                    kept.append(Ack(frame.peer, frame.number))
            if kept and (frame is None or len(kept) >= _FLUSH_AFTER or self._table.complete):
                await self._in_worker(self._table.flush)
                for ack in kept:
                    await call.write(ack.encode())
                kept.clear()

    def _open(self, frame: Slice) -> str:
        """Keep a slice; why not, if it is refused."""
        try:
            self._parcels.keep(frame.peer, frame.number, frame.sealed)
        except MessageError as error:
            return str(error)
        return ""
