"""A client's side as a state machine: events and times go in, actions come out. No I/O, no clock, no threads.

    disconnected --connected: Hello--> waiting --Begin, accepted--> sharing --all on the disk: Ready--> ready
         ^                               |  ^ Wait: log it            |                                    |
         |                               +--+                         +--Done: keep, Informed--> leaving --+--> left
         +---- the connection ends, or a message is not valid --------+------------------------------------+

A client that is ready checks its dealers when it is sent everybody's coins (Check), keeps what came of it (Judged), and
only then answers rounds (answering.py). In the hidden mode it judges the dealers itself, from what all clients signed.
Work that takes time (dealing, keeping, answering) leaves as an action too; `worked` is told what came of it.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from dresfl.errors import DresError, MessageError, Refused, StoreError
from dresfl.protocol import Session, Task, Verdict, final_sum, num_slices
from dresfl.sealing import Roster

from .actions import (
    Action,
    AddDealt,
    AnswerTask,
    CheckDealers,
    Deal,
    DealCounts,
    Disconnect,
    EndRun,
    Flush,
    GiveUp,
    Join,
    JudgeDealers,
    Keep,
    KeepModel,
    KeepVerdict,
    Leave,
    ResumeRun,
    SendToCoordinator,
    SignDealers,
    TakeHops,
    Work,
    log,
)
from .agreement import Agreement
from .answering import Answering, OpenAnswering
from .enrolment import check_begin
from .hidden_answering import HiddenAnswering
from .messages import (
    ANY_ROUND,
    FROM_COORDINATOR,
    Ack,
    Attestations,
    Attested,
    Begin,
    Check,
    Checked,
    DealersOf,
    Declined,
    Done,
    Hello,
    Holding,
    Informed,
    Judged,
    Message,
    Ready,
    Reject,
    Relayed,
    Release,
    Request,
    Slice,
    TotalsOf,
    Wait,
    decode,
)
from .summing import Summing
from .terms import Introduction, Terms

_FLUSH_BYTES = 2**23  # of slices kept: then they are put on the disk for good, and acknowledged
_FLUSH_SLICES = 256  # likewise
_IDLE_SECONDS = 0.05  # without a slice: then what has come is put on the disk
_LASTING_SECONDS = 10.0  # a connection that was of use for so long did not fail at once, whatever ended it
_SUM_SECONDS = 600.0  # that a client which has the model stays for the sum; the coordinator ends it before
_FAREWELL_SECONDS = 5.0  # for the coordinator to close the connection after the end
NO_CHALLENGE = bytes(16)


@final
@dataclass(frozen=True)
class Membership:
    """What a client is once it has joined: the session, and for each dealer the numbers of the slices it lacks.

    verdict: on the dealers, if they were checked; the session is then without those that are excluded.
    """

    session: Session
    missing: list[set[int]]
    coin: bytes
    verdict: Verdict | None = None
    damage: tuple[str, ...] = ()  # what was found wrong on the disk, in words


@final
@dataclass(frozen=True)
class Judgement:
    """A client's own verdict in the hidden mode, and the session of the run that follows from it."""

    verdict: Verdict
    session: Session


def _place(work: Work) -> tuple[int, int] | None:
    """Of work that answers something: the round and the hop."""
    match work:
        case AnswerTask():
            return work.task.round_number, 0
        case TakeHops():
            return work.opened[-1].round_number, work.opened[-1].hop
        case ResumeRun():
            return work.resume.round_number, work.resume.hop
    return None


@final
class Site:
    """One client. `introduce` and the results of work are all that it knows of the client's disk."""

    def __init__(
        self,
        agreement: Agreement,
        roster: Roster,
        index: int,
        introduce: Callable[[], Introduction],
        challenge: Callable[[], bytes] = lambda: secrets.token_bytes(16),
        instance: bytes = b"",
    ) -> None:
        """introduce: what this client brings: its rows, its part of a nonce, and the sharing that it holds.

        challenge: fresh bytes that the coordinator must sign; a runtime that signs whole bundles needs none.
        instance: 8 bytes that no other process has; empty: chosen here, at random.
        """
        agreement.check_consent()
        agreement.check_masks()
        self._agreement, self._roster, self.index = agreement, roster, index
        self._introduce, self._make_challenge = introduce, challenge
        self._instance = instance or secrets.token_bytes(8)
        self._member: Membership | None = None
        self._hidden = HiddenAnswering() if agreement.mode == "hidden" else None
        self._answering: Answering = self._hidden or OpenAnswering(agreement)
        self._over = False  # this client has what it came for
        self._summing = Summing()
        self._final: Task | None = None
        self._failed_at: tuple[int, int] | None = None  # the last hop that the own disk kept from being answered
        # Whether this connection, or the last one, was of use: slices were kept, a round came after an answered one, or
        # it lasted. If so, the runtime may come back soon. A Begin alone is not enough: a coordinator with a full disk
        # sends dealers away right after it.
        self.came_far = False
        self._heard_at: float | None = None  # the connection's first message
        self._reset()

    def _reset(self) -> None:
        """Forget what belongs to one connection."""
        self._challenge = b""
        self._connected = self._joining = False
        self._joined = self._ready = False
        self._pending: list[Work] = []  # asked for on this connection and not done
        self._kept: list[Ack] = []  # slices kept and not flushed
        self._kept_bytes = 0
        self._flushing: list[Ack] = []
        self._answering.reset()
        self._idle_at: float | None = None
        self._leave_at: float | None = None

    @property
    def session(self) -> Session | None:
        """The session that this client has joined; None before that."""
        return None if self._member is None else self._member.session

    @property
    def rounds_answered(self) -> int:
        """How many rounds this process has answered."""
        return self._answering.rounds_answered

    @property
    def wake_at(self) -> float | None:
        """When `tick` has to be called at the latest, if nothing happens before; None: not at all."""
        return min((at for at in (self._idle_at, self._leave_at) if at is not None), default=None)

    # -- events ----------------------------------------------------------------------------------------------

    def connected(self, now: float) -> list[Action]:
        """There is a connection to the coordinator."""
        self._reset()
        self._connected, self.came_far, self._heard_at = True, False, None
        self._challenge = self._make_challenge()
        return [_send(Hello(self._introduce(), self._challenge, self._agreement.encode(), self._instance))]

    def resumed(self, terms: Terms, now: float) -> list[Action]:
        """Go on within a session that this client has joined before, in a process that has ended since.

        The runtime vouches that the coordinator has signed these terms. Nothing is reported: the coordinator knows.
        """
        self._reset()
        self._connected = self._joining = True
        return [self._do(Join(terms, look=False))]

    def disconnected(self, now: float) -> list[Action]:
        """The connection has ended. What is being worked on is finished, and forgotten."""
        self.came_far = self.came_far or (self._heard_at is not None and now - self._heard_at >= _LASTING_SECONDS)
        self._reset()
        return [Leave(self._final)] if self._over else []

    def received(self, data: bytes | memoryview, now: float) -> list[Action]:
        """A message of the coordinator has come."""
        if not self._connected or (self._leave_at is not None and not self._summing.active):
            return []
        if self._heard_at is None:
            self._heard_at = now
        try:
            message = decode(data, FROM_COORDINATOR)
            if isinstance(message, DealersOf | Release | TotalsOf):
                return self._of_sum(self._summing.received(message), now)
            return [] if self._over else self._take(message)
        except MessageError as error:
            return self.disconnected(now) if self._over else self._disconnect(str(error))
        except DresError as error:  # not to be trusted, or not for this client: coming back does not change it
            return [GiveUp(error)]

    def worked(self, work: Work, result: object, now: float) -> list[Action]:
        """A piece of work is done, or has failed with an error. What an earlier connection asked for is forgotten."""
        if not any(work is pending for pending in self._pending):
            return []
        self._pending = [pending for pending in self._pending if pending is not work]
        place = _place(work)
        if isinstance(result, StoreError) and place is not None:
            again, self._failed_at = place == self._failed_at, place
            if again:  # fetching shares again did not help: the disk itself will not do
                return self._give_up(result)
            return self._disconnect(str(result))  # the next Join finds out what has to be fetched again
        summing = isinstance(work, DealCounts | SignDealers | AddDealt)
        if isinstance(result, DresError) and not isinstance(result, MessageError) and not summing:
            return self._give_up(result)
        match work:
            case Join():
                return self._has_joined(work, result)
            case Deal():
                return self._dealt(work, result)
            case Keep():
                return self._has_kept(work, result, now)
            case Flush():
                return self._flushed()
            case CheckDealers():
                checked = isinstance(result, Checked | Attested)
                return [_send(result)] if checked else self._disconnect(str(result))  # type: ignore[arg-type]
            case KeepVerdict():
                return []
            case JudgeDealers():
                return self._has_judged(result)
            case KeepModel():
                self._over, self._final, self._leave_at = True, work.final, now + _FAREWELL_SECONDS
                return [_send(Informed(work.final.round_number))]
            case EndRun():
                self._over, self._final, self._leave_at = True, work.final, now + _FAREWELL_SECONDS
                return [_send(Informed(self._agreement.rounds)), *self._count(work, now)]
            case DealCounts() | SignDealers() | AddDealt():
                return self._of_sum(self._summing.worked(work, result), now)
        return self._of_rounds(self._answering.worked(work, result))

    def _of_rounds(self, actions: list[Action]) -> list[Action]:
        """What the rounds ask for; their work is noted."""
        self.came_far = self.came_far or self._answering.came_far
        reasons = [action.reason for action in actions if isinstance(action, Disconnect)]
        if reasons:
            return self._disconnect(reasons[0])
        self._pending += [action for action in actions if isinstance(action, Work)]
        return actions

    def _count(self, end: EndRun, now: float) -> list[Action]:
        """After the model: count on the own rows, if totals are agreed on and this client knows of the run."""
        member, final_task = self._member, end.final
        if final_task is None or member is None or final_sum(member.session) is None:
            return []
        self._leave_at = now + _SUM_SECONDS
        return [self._do(self._summing.begin(final_task, end.opened))]

    def _of_sum(self, actions: list[Action], now: float) -> list[Action]:
        """What the sum asks for. When it is over for this client, it leaves soon."""
        if not self._joined:
            raise MessageError("a message of a sum came before Begin")
        self._pending += [action for action in actions if isinstance(action, Work)]
        if self._over and not self._summing.active:
            self._leave_at = now + _FAREWELL_SECONDS
        return actions

    def _give_up(self, error: DresError) -> list[Action]:
        """End with an error, and let the coordinator know. What the error says may be for this client alone."""
        hidden = f"{type(error).__name__}: see the log of this client"
        return [_send(Declined(ANY_ROUND, hidden)), GiveUp(error)]

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if self._leave_at is not None and now >= self._leave_at:
            return self.disconnected(now)
        if self._idle_at is not None and now >= self._idle_at:
            return self._flush()
        return []

    def _disconnect(self, reason: str) -> list[Action]:
        self._reset()
        return [Disconnect(reason)]

    def _do(self, work: Work) -> Action:
        self._pending.append(work)
        return work

    # -- messages --------------------------------------------------------------------------------------------

    def _take(self, message: Message) -> list[Action]:
        if isinstance(message, Wait):
            return [log("waiting", reason=message.text)]
        if isinstance(message, Begin):
            return self._begin(message)
        member = self._member
        if member is None or not self._joined:
            raise MessageError(f"{type(message).__name__} came before Begin")
        match message:
            case Request():
                return [self._do(Deal(message.peer, message.number))]
            case Relayed():
                self._idle_at = None
                return [self._do(Keep(message.peer, message.number, message.sealed))]
            case Check():
                return [self._do(CheckDealers(message.coins))]
            case Judged() if self._hidden is None:
                return self._judged(message.verdict, member)
            case Attestations() if self._hidden is not None:
                return [self._do(JudgeDealers(message))] if member.verdict is None else self._may_begin(member)
            case Done():
                return self._done(Task.decode(message.task, member.session), member)
        if member.verdict is None:
            raise MessageError(f"{type(message).__name__} came before the dealers were checked")
        return self._of_rounds(self._answering.received(message, member.session))

    def _done(self, final_task: Task, member: Membership) -> list[Action]:
        """The model, as the coordinator sends it. In the hidden mode it is for clients that have no part in hops."""
        if self._hidden is None:
            self._agreement.check_end(final_task.round_number)
        elif member.verdict is None or self.index not in member.verdict.deviating:
            raise MessageError("a model came that this client has not seen opened")
        return [self._do(KeepModel(final_task) if self._hidden is None else EndRun(final_task))]

    def _begin(self, begin: Begin) -> list[Action]:
        if self._joining or self._joined or not self._challenge:
            raise MessageError("a second Begin came")
        check_begin(self._roster.server, self._roster, self.index, self._challenge, begin)
        self._joining = True
        return [self._do(Join(begin.terms))]

    def _judged(self, verdict: Verdict, member: Membership) -> list[Action]:
        """Take what came of the check. There is one verdict for a sharing."""
        if member.verdict is not None:
            if member.verdict != verdict:
                raise Refused("another verdict on the dealers came than before", "an old session may be replayed")
            return []
        verdict.check(member.session.num_clients)
        self._member = replace(member, session=member.session.without(verdict.excluded), verdict=verdict)
        line = log("dealers checked", excluded=list(verdict.excluded), deviating=list(verdict.deviating))
        return [line, self._do(KeepVerdict(verdict))]

    def _has_judged(self, result: object) -> list[Action]:
        """This client's own verdict, in the hidden mode. If it deviates itself, it never answers a hop."""
        member = self._member
        if not isinstance(result, Judgement) or member is None:
            return self._disconnect(str(result))
        verdict = result.verdict
        self._member = member = replace(member, session=result.session, verdict=verdict)
        line = log("dealers checked", excluded=list(verdict.excluded), deviating=list(verdict.deviating))
        return [line, *self._may_begin(member)]

    def _may_begin(self, member: Membership) -> list[Action]:
        """Take part in the hops, if the dealers are checked, every share is there, and this client does not deviate."""
        if self._hidden is None or member.verdict is None or any(member.missing):
            return []
        if self.index in member.verdict.deviating:
            return [log("silent", client=self.index, reason="it deviates on a dealer that stays")]
        return self._of_rounds(self._hidden.begin())

    # -- sharing ---------------------------------------------------------------------------------------------

    def _has_joined(self, work: Join, result: object) -> list[Action]:
        if not isinstance(result, Membership):
            return [GiveUp(Refused(str(result)))]
        self._member, self._joining = result, False
        self._joined = True
        return self._report(result) if work.look else []

    def _report(self, member: Membership) -> list[Action]:
        """Tell the coordinator which slices this client holds."""
        session = member.session
        actions: list[Action] = [log("store damaged", what=text) for text in member.damage]
        sharing, run = session.sharing_id.hex(), session.session_id.hex()
        actions.append(log("connected", client=self.index, sharing=sharing, session=run))
        for dealer in range(session.num_clients):
            lacking = sum(1 << number for number in member.missing[dealer])
            actions.append(_send(Holding(dealer, (1 << num_slices(session, dealer)) - 1 - lacking)))
        return actions + self._ready_if_complete(member)

    def _ready_if_complete(self, member: Membership) -> list[Action]:
        if self._ready or any(member.missing) or self._kept or self._flushing:
            return []
        self._ready = True
        ready = _send(Ready(member.session.sharing_id, member.coin))
        return [ready, log("ready", client=self.index), *self._may_begin(member)]

    def _dealt(self, work: Deal, result: object) -> list[Action]:
        if not isinstance(result, bytes):
            return self._disconnect(str(result))
        return [_send(Slice(work.receiver, work.number, result))]

    def _has_kept(self, work: Keep, result: object, now: float) -> list[Action]:
        """Acknowledge a slice only when it is on the disk for good; flush every few, or when no more come."""
        member = self._member
        if member is None:
            return []
        if isinstance(result, MessageError):
            reason = str(result)
            rejected = log("slice rejected", dealer=work.dealer, slice=work.number, reason=reason)
            actions: list[Action] = [rejected, _send(Reject(work.dealer, work.number, reason))]
        else:
            member.missing[work.dealer].discard(work.number)
            self._kept.append(Ack(work.dealer, work.number))
            self._kept_bytes += len(work.sealed)
            actions = []
        enough = self._kept_bytes >= _FLUSH_BYTES or len(self._kept) >= _FLUSH_SLICES
        if enough or (self._kept and not any(member.missing)):
            return actions + self._flush()
        more_to_come = any(isinstance(work, Keep) for work in self._pending)
        self._idle_at = now + _IDLE_SECONDS if self._kept and not more_to_come else None
        return actions

    def _flush(self) -> list[Action]:
        self._idle_at = None
        self._flushing, self._kept, self._kept_bytes = self._flushing + self._kept, [], 0
        return [self._do(Flush())]

    def _flushed(self) -> list[Action]:
        acks, self._flushing = self._flushing, []
        self.came_far = self.came_far or bool(acks)
        actions: list[Action] = [_send(ack) for ack in acks]
        return actions + (self._ready_if_complete(self._member) if self._member is not None else [])


def _send(message: Message) -> Action:
    return SendToCoordinator(message)
