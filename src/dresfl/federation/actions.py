"""What the state machines ask of their runtime. A runtime carries actions out one by one, in their order.

The order is a promise: what stands before a `Send` has happened when the message leaves. So "on the disk before anybody
hears of it" needs no event of its own, and a crash between two actions leaves a state that a restart continues from.
"""

from dataclasses import dataclass, field
from typing import final

from dresfl.errors import DresError
from dresfl.protocol import RoundRecord, Task, Verdict

from .messages import Attestations, Confirmations, DealersOf, Message, Opened, Release, Resume, Started
from .terms import Terms

Value = str | int | float | bool | None | list[int] | list[str]


class Action:
    """Anything that a machine asks for."""


@final
@dataclass(frozen=True)
class Log(Action):
    """Write one event to the log. No key, share or row is ever in it."""

    event: str
    fields: dict[str, Value] = field(default_factory=dict)


def log(event: str, **fields: Value) -> Log:
    return Log(event, fields)


# -- the coordinator's -----------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Send(Action):
    """Send a message to a client that is connected; drop it if the client has gone meanwhile."""

    client: int
    message: Message


@final
@dataclass(frozen=True)
class SendSlice(Action):
    """Send a stored slice to its receiver as a Relayed message; report `slice_lost` if the disk has lost it."""

    receiver: int
    dealer: int
    number: int


@final
@dataclass(frozen=True)
class Close(Action):
    """End a client's connection: because of an error, or, without one, because all is said."""

    client: int
    error: DresError | None = None


@final
@dataclass(frozen=True)
class StoreTerms(Action):
    """Put the terms on the disk, for good."""

    terms: Terms


@final
@dataclass(frozen=True)
class StoreSlice(Action):
    """Keep a sealed slice until its receiver has it. It need not survive a crash."""

    receiver: int
    dealer: int
    number: int
    sealed: bytes | memoryview


@final
@dataclass(frozen=True)
class DropSlice(Action):
    """Forget a sealed slice."""

    receiver: int
    dealer: int
    number: int


@final
@dataclass(frozen=True)
class Record(Action):
    """A round has ended: write down how, and checkpoint the training when it is time."""

    record: RoundRecord
    answers: int


@final
@dataclass(frozen=True)
class StoreBroadcast(Action):
    """Put what a hop publishes on the disk, for good. The last four rounds must be kept, the current one included.

    run: the run digest. note: what the machine wants to have back with it when it is started again.
    """

    run: bytes
    round_number: int
    hop: int
    published: bytes
    note: bytes


@final
@dataclass(frozen=True)
class RecordLoss(Action):
    """A hidden run has opened a validation loss."""

    round_number: int
    loss: float


@final
@dataclass(frozen=True)
class Finish(Action):
    """The run is over; with an error: it cannot go on, and the coordinator ends with it."""

    error: DresError | None = None


# -- a client's ------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class SendToCoordinator(Action):
    """Send a message to the coordinator; drop it if the connection has ended."""

    message: Message


@final
@dataclass(frozen=True)
class Disconnect(Action):
    """End the connection and come back later: something was wrong with what the coordinator sent."""

    reason: str


@final
@dataclass(frozen=True)
class GiveUp(Action):
    """End with an error: coming back would not change it."""

    error: DresError


@final
@dataclass(frozen=True)
class Leave(Action):
    """The run is over for this client, which has the final weights; None: it had no model, or kept it before."""

    final: Task | None


class Work(Action):
    """Something that takes time: `Workplace.perform` does it, and `Site.worked` is told the result.

    Pieces of work are done in their order, except that `Deal` may have a thread of its own.
    """


@final
@dataclass(frozen=True)
class Join(Work):
    """Become a member of the session that these terms give. look: read every share that is held, and report."""

    terms: Terms
    look: bool = True


@final
@dataclass(frozen=True)
class Deal(Work):
    """Deal one slice of the own rows, sealed for a receiver."""

    receiver: int
    number: int


@final
@dataclass(frozen=True)
class Keep(Work):
    """Open a slice that a dealer sealed for this client, and keep it."""

    dealer: int
    number: int
    sealed: bytes | memoryview


@final
@dataclass(frozen=True)
class Flush(Work):
    """Put all slices kept so far on the disk for good."""


@final
@dataclass(frozen=True)
class CheckDealers(Work):
    """Note that the check is answered for these coins, on the disk, and compute this client's part of it."""

    coins: tuple[bytes, ...]


@final
@dataclass(frozen=True)
class KeepVerdict(Work):
    """Keep what came of the check."""

    verdict: Verdict


@final
@dataclass(frozen=True)
class AnswerTask(Work):
    """Note that the round is answered for these weights, on the disk, and compute the answer."""

    task: Task


@final
@dataclass(frozen=True)
class KeepModel(Work):
    """Keep the final weights."""

    final: Task


# -- a client's, in the hidden mode ----------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class JudgeDealers(Work):
    """Judge the dealers from what all clients have signed, and keep what came of it."""

    attestations: Attestations


@final
@dataclass(frozen=True)
class Stand(Work):
    """Begin the run, or go on with it: count it, sign it, and say where this client stands."""


@final
@dataclass(frozen=True)
class StartRun(Work):
    """Look whether enough clients have signed the run."""

    started: Started


@final
@dataclass(frozen=True, eq=False)
class ResumeRun(Work):
    """Catch up with the run, and answer its next hop."""

    resume: Resume


@final
@dataclass(frozen=True, eq=False)
class TakeHops(Work):
    """Take what hops have published, one after the other, and answer the next one."""

    opened: tuple[Opened, ...]


@final
@dataclass(frozen=True, eq=False)
class ConfirmHop(Work):
    """Look whether all clients say that the last hop was published truly, and answer the next one."""

    confirmations: Confirmations


@final
@dataclass(frozen=True, eq=False)
class DealCounts(Work):
    """Count on the own rows what the final weights get right, and share the counts."""

    final: Task
    opened: bytes = b""  # as in `EndRun`


@final
@dataclass(frozen=True, eq=False)
class SignDealers(Work):
    """Open the shares of a set of dealers, note the set on the disk, and sign it."""

    proposed: DealersOf


@final
@dataclass(frozen=True, eq=False)
class AddDealt(Work):
    """Look whether enough clients have signed a set of dealers, and show what was added of it."""

    release: Release


@final
@dataclass(frozen=True)
class EndRun(Work):
    """Keep the final weights, if there are any, and note that the run has ended."""

    final: Task | None
    opened: bytes = b""  # SHA-256 of what the last hop published; empty: this client has not seen it
