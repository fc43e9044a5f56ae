"""The coordinator's rounds: publish the weights, take the first R valid answers, go on. No stream in sight.

An answer to another round is dropped unread. Fewer than R at the deadline: the same round is sent again to those who
have not answered ("retry"; the result then never depends on who was away), or it is skipped and counted ("skip").
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, Protocol, final

from dresfl.errors import MessageError, UsageError
from dresfl.protocol import Answer, RoundRecord, Task, Training

from .log import Log

OnShortage = Literal["retry", "skip"]


@final
@dataclass(frozen=True)
class Pace:
    """How long a round waits."""

    grace: float = 0.0  # seconds for stragglers after the R-th answer: they keep pace, the result is the same
    deadline: float = 120.0  # seconds until a round with fewer than R answers is sent again or skipped
    on_shortage: OnShortage = "retry"

    def __post_init__(self) -> None:
        if self.grace < 0 or not self.deadline > 0:
            raise UsageError("grace must not be negative, and deadline must be positive")


class Audience(Protocol):
    """Who hears of the weights."""

    def publish(self, task: Task) -> None:
        """Send the newest weights to every client that is ready, now or later."""

    def resend(self, answered: set[int]) -> None:
        """Send them again to those who have not answered."""

    def dismiss(self, index: int, reason: MessageError) -> None:
        """End the connection of a client that sent something invalid."""


@final
@dataclass
class Counters:
    """What happened so far, for the metrics endpoint."""

    answers: int = 0
    late: int = 0
    invalid: int = 0
    shortages: int = 0
    last_answered: dict[int, int] = field(default_factory=dict)  # client -> round


Watch = Callable[[RoundRecord, int], None]


@final
class Rounds:
    """Plays the rounds of a Training. Decoding and `watch` run in one thread, in order, so that the streams stay alive
    and a checkpoint is written while the clients compute."""

    def __init__(self, server: Training, audience: Audience, pace: Pace, watch: Watch, log: Log) -> None:
        self._server, self._audience, self._pace, self._watch, self._log = server, audience, pace, watch, log
        self._arrivals: asyncio.Queue[tuple[int, int, bytes]] = asyncio.Queue()
        self._worker = ThreadPoolExecutor(1, "rounds")
        self._waiting: set[tuple[int, int]] = set()
        self._published = -1
        self.counters = Counters()

    def arrive(self, index: int, round_number: int, answer: bytes) -> None:
        """An answer from the client `index`, as its connection says. One of another round is dropped here."""
        if round_number == self._published and (index, round_number) not in self._waiting:
            self._waiting.add((index, round_number))  # one of each: nobody fills the memory
            self._arrivals.put_nowait((index, round_number, answer))
        else:
            self.counters.late += 1

    async def _arrival(self) -> tuple[int, int, bytes]:
        index, round_number, answer = await self._arrivals.get()
        self._waiting.discard((index, round_number))
        return index, round_number, answer

    async def run(self) -> None:
        """Play all rounds that are left."""
        loop = asyncio.get_running_loop()
        watching: asyncio.Future[None] | None = None
        try:
            while not self._server.done:
                self._published = self._server.round_number
                self._audience.publish(self._server.task())
                answered: set[int] = set()
                record = await self._round(answered)
                await self._linger(record, answered)
                if watching is not None:
                    await watching
                watching = loop.run_in_executor(self._worker, self._watch, record, len(answered))
                if record.outcome != "stepped":
                    # Played again, this round might end otherwise, and clients answer a round for one set of weights:
                    # it is on the disk before they see what follows from it.
                    await watching
            if watching is not None:
                await watching
        finally:
            self._worker.shutdown(wait=False)

    async def _round(self, answered: set[int]) -> RoundRecord:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._pace.deadline
        while True:
            try:
                async with asyncio.timeout_at(until):
                    index, round_number, answer = await self._arrival()
            except TimeoutError:
                record = self._shortage(answered)
                if record is not None:
                    return record
                until = loop.time() + self._pace.deadline
                continue
            if round_number != self._server.round_number or index in answered:
                self.counters.late += 1  # the second of the same round comes from a client that was sent it again
                continue
            try:
                record = await loop.run_in_executor(self._worker, self._take, index, answer)
            except MessageError as error:
                self.counters.invalid += 1
                self._audience.dismiss(index, error)
                continue
            answered.add(index)
            self.counters.answers += 1
            self.counters.last_answered[index] = round_number
            if record is not None:
                return record

    def _take(self, index: int, data: bytes) -> RoundRecord | None:
        return self._server.receive(Answer.decode_from(index, data, self._server.session))

    def _shortage(self, answered: set[int]) -> RoundRecord | None:
        needed = self._server.session.recovery_threshold
        self.counters.shortages += 1
        self._log(
            "shortage",
            round=self._server.round_number,
            answered=sorted(answered),
            needed=needed,
            then=self._pace.on_shortage,
        )
        if self._pace.on_shortage == "skip":
            return self._server.skip()
        self._audience.resend(answered)
        return None

    async def _linger(self, record: RoundRecord, answered: set[int]) -> None:
        """Give stragglers their grace: they are counted and dropped, but not left behind by the next round."""
        if not self._pace.grace or record.outcome == "skipped":
            return
        try:
            async with asyncio.timeout(self._pace.grace):
                while len(answered) < self._server.session.num_clients:
                    index, round_number, _ = await self._arrival()
                    if round_number == record.round_number:
                        answered.add(index)
        except TimeoutError:
            pass
