"""The rounds of the hidden mode, at the coordinator: hop after hop, each an opening with its own deadline.

    (none) --enough stand, enough have signed--> open --enough answers that agree--> stored, published --> the next hop
                                                  ^ |                                               --the last--> done
                                                  +-+ too few within the deadline: waits; who cannot answer is helped

Clients go on by themselves: what a hop publishes lets them answer the next one. The coordinator writes it down first.
Who has missed something says where it stands, and is sent what it lacks: the hops, if they are few, or the last two
weight broadcasts and this round's hops. Such a client has no check value at the start of a round and is silent there.
If that leaves too few, it is sent the last round as well, which it computes again. After a deadline, so is everybody
who has not been heard of: it is never known who only seems to be able to answer.

With check C a client speaks of a hop only if it has confirmed the hop before. One that comes back does so while it
plays both again: it is sent what the others had said there. So no hop is published before that is known, and it is
stored with the hop. Then any R + T clients that live can go on, whoever has died between an answer and a word.

Answers that came and do not agree are never published: the hop waits for more, which may outvote a liar. If everybody
has answered, the run ends with an alarm, for good.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from dresfl.errors import DresError, HeadroomAlarm, MessageError, Refused
from dresfl.protocol import RoundRecord, Session, Task
from dresfl.protocol.hidden.answers import HopAnswer
from dresfl.protocol.hidden.archive import Archive, encode_history
from dresfl.protocol.hidden.ledger import DIGEST, Ledger, Position
from dresfl.protocol.hidden.opening import HopOpening, loss_of, opened_weights
from dresfl.protocol.hidden.opening import Opened as OpenedHop
from dresfl.protocol.hidden.published import final_weights
from dresfl.protocol.hidden.start import signatures_needed, start_text
from dresfl.sealing import Roster

from .actions import Action, Finish, Record, RecordLoss, Send, StoreBroadcast, log
from .confirming import Confirming
from .coordinator_state import Counters
from .hidden_work import START_PURPOSE
from .messages import Alarm, Confirmations, Confirmed, Done, HopAnswered, Message, Opened, Resume, Standing, Started
from .opening import RoundTiming
from .rounds import Attendance, Rounds

_LIED = "its answers were false"
_MOST_HELP = 8  # histories for one client at one hop: each is work for it and bytes for us
_AHEAD = 2  # rounds that a client is sent before it has answered any of it
_NOTE = struct.Struct(f"<{DIGEST}s{DIGEST}sI")


@final
@dataclass
class _Follower:
    """A client that takes part, as the coordinator sees it."""

    holds_check: bool  # it can answer the current hop
    sent: tuple[int, int] = (-1, 0)  # the last hop that it was sent
    unanswered: int = 0  # hops that it was sent since it last answered
    lagging: bool = False  # it is sent nothing until it has worked through what it was sent
    helped: int = 0  # histories that it was sent at this hop


@final
@dataclass
class _Waiting:
    """The current hop: its answers, and until when enough must have come."""

    opening: HopOpening
    until: float
    opened: OpenedHop | None = None  # enough answers agree, but it is not known yet that the hop before was confirmed
    late_chains: set[int] = field(default_factory=set)  # clients that answer in another course of the run


def _note(ledger: Ledger, confirmed: Confirmations | None) -> bytes:
    """What is needed to go on from the beginning of a round, and with check C the word on the hop before."""
    losses = struct.pack(f"<{len(ledger.losses)}q", *ledger.losses)
    words = b"" if confirmed is None else b"".join(confirmed.body())
    return _NOTE.pack(ledger.chain, ledger.weights_digest, len(ledger.losses)) + losses + words


def _confirmed_in(note: bytes) -> Confirmations | None:
    """What all clients had confirmed before a hop, from its note."""
    words = memoryview(note)[_NOTE.size + 8 * _NOTE.unpack_from(note)[2] :]
    return Confirmations.from_body(words) if len(words) else None


def _restored(session: Session, stored: StoreBroadcast) -> Ledger:
    """The ledger at the beginning of a round, from the note of its first hop."""
    plan, note = session.hidden_plan, stored.note
    chain, digest, count = _NOTE.unpack_from(note)
    ledger = Ledger(plan, session.run)
    ledger.round_number, ledger.chain, ledger.weights_digest = stored.round_number, chain, digest
    ledger.losses = struct.unpack_from(f"<{count}q", note, _NOTE.size)
    ledger.after_total = stored.round_number > 0
    ledger.final = stored.round_number == plan.rounds or plan.stops(ledger.losses)
    return ledger


@final
class HiddenRounds(Rounds):
    """Hops out, answers in. It sees masked values, and at the end the model."""

    def __init__(
        self,
        session: Session,
        timing: RoundTiming,
        attendance: Attendance,
        roster: Roster,
        counters: Counters,
        stored: Iterable[StoreBroadcast] = (),
        starts: Iterable[tuple[int, bytes]] = (),
        keep_starts: Callable[[tuple[tuple[int, bytes], ...]], Action] | None = None,
        keep_alarm: Callable[[str], Action] | None = None,
    ) -> None:
        """stored: what an earlier start has published, the last rounds of it. starts: who has signed the run.

        keep_starts, keep_alarm: what puts these on the disk.
        """
        self._session, self._plan, self._timing = session, session.hidden_plan, timing
        self._attendance, self._roster, self._counters = attendance, roster, counters
        self._keep_starts, self._keep_alarm = keep_starts, keep_alarm
        self._ledger, self._archive = Ledger(self._plan, session.run), Archive()
        self._recent: list[tuple[Position, bytes]] = []  # hops of the last rounds, and where the run stood before each
        self._starts = dict(starts)
        self._followers: dict[int, _Follower] = {}
        self._standing: dict[int, Standing] = {}  # of clients that wait for the beginning
        self._waiting: _Waiting | None = None
        self._confirming: Confirming | None = None  # of the hop that was published last
        self._earlier: Confirmations | None = None  # of the hop before that one
        self.model: Tensor | None = None  # (P,) int64, once it is opened, if it is opened to the coordinator
        for hop in stored:
            self._restore(hop)
        self._begin_to_confirm()

    def _restore(self, stored: StoreBroadcast) -> None:
        if not self._recent and stored.round_number:
            self._ledger = _restored(self._session, stored)
        if self._ledger.position.order != (stored.round_number, stored.hop):
            raise RuntimeError(f"hop {stored.hop} of round {stored.round_number} is not the next one")
        self._move_on(stored.published)
        self._earlier = _confirmed_in(stored.note)

    def _move_on(self, published: bytes) -> None:
        """The next hop is published: on the disk, as far as the coordinator is concerned."""
        ledger = self._ledger
        loss = loss_of(self._session, ledger, published)
        if ledger.final and self._plan.settings.model_for == "everybody":
            self.model = final_weights(self._session, opened_weights(self._session, ledger, published))
        self._archive.note(ledger, published)
        self._recent.append((ledger.position, published))
        first = ledger.round_number - 1
        self._recent = [hop for hop in self._recent if hop[0].round_number >= first]
        ledger.advance(published, loss)

    # -- what others may look at -----------------------------------------------------------------------------

    @property
    def number(self) -> int:
        return self._ledger.round_number

    @property
    def rounds(self) -> int:
        return self._plan.rounds

    @property
    def done(self) -> bool:
        return self._ledger.ended

    @property
    def opened(self) -> bytes:
        return self._ledger.opened

    @property
    def wake_at(self) -> float | None:
        release = None if self._confirming is None else self._confirming.release_at
        times = [release, None if self._waiting is None else self._waiting.until]
        return min((at for at in times if at is not None), default=None)

    def current(self, round_number: int) -> bool:
        return self._waiting is not None and round_number == self.number

    # -- events ----------------------------------------------------------------------------------------------

    def begin(self, now: float) -> list[Action]:
        return []  # clients say where they stand

    def ready(self, client: int, now: float) -> list[Action]:
        return []

    def left(self, client: int, now: float) -> list[Action]:
        self._followers.pop(client, None)
        self._standing.pop(client, None)
        return []

    def received(self, client: int, message: Message, now: float) -> list[Action]:
        match message:
            case Standing():
                return self._stands(client, message, now)
            case HopAnswered():
                return self._answered(client, message, now)
            case Confirmed():
                return self._has_confirmed(client, message, now)
        raise MessageError(f"{type(message).__name__} does not belong to the hidden mode")

    def tick(self, now: float) -> list[Action]:
        waiting, confirming = self._waiting, self._confirming
        if confirming is not None and confirming.is_due(now):
            return self._confirmations(confirming, now)
        return self._shortage(waiting, now) if waiting is not None and now >= waiting.until else []

    def final(self, client: int) -> list[Message]:
        """The model for a client that takes no part in the rounds: it has to take the coordinator's word for it."""
        if self.model is None or client not in self._attendance.dropped:
            return []
        return [Done(Task(self._played, self.model).encode(self._session))]

    @property
    def _played(self) -> int:
        """How many rounds moved the weights."""
        return self.number - (self._ledger.ended and not self._plan.settings.trial)

    # -- who takes part --------------------------------------------------------------------------------------

    def _stands(self, client: int, message: Standing, now: float) -> list[Action]:
        """A client says where it stands: it is told where the run stands, and what it lacks."""
        if client in self._attendance.dropped:
            return []
        self._roster.members[client].check_signature(START_PURPOSE, start_text(self._session.run), message.signature)
        actions: list[Action] = []
        needed = signatures_needed(self._session.num_clients, self._session.max_colluders)
        known = len(self._starts)
        self._starts[client] = message.signature
        if known < needed <= len(self._starts) and self._keep_starts is not None:
            actions.append(self._keep_starts(tuple(sorted(self._starts.items()))))
        if self._ledger.ended:
            return [*actions, *self._help(client, self._follow(client), message)]
        if self._waiting is not None:
            return [*actions, *self._join(client, message), *self._help_silent()]
        self._standing[client] = message
        enough = len(self._standing) >= self._session.answers_needed and len(self._starts) >= needed
        return [*actions, *(self._first(now) if enough else [])]

    def _first(self, now: float) -> list[Action]:
        """Enough clients are there: the run begins, or goes on."""
        standing, self._standing = self._standing, {}
        actions: list[Action] = [
            log("rounds", first=self.number, rounds=self.rounds, ready=self._attendance.ready),
        ]
        self._open(now)
        for client, message in sorted(standing.items()):
            actions += self._join(client, message)
        return actions + self._help_silent()

    def _join(self, client: int, message: Standing) -> list[Action]:
        started = Send(client, Started(tuple(sorted(self._starts.items()))))
        return [started, *self._help(client, self._follow(client), message)]

    def _follow(self, client: int) -> _Follower:
        return self._followers.setdefault(client, _Follower(holds_check=False))

    def _help(self, client: int, follower: _Follower, message: Standing) -> list[Action]:
        """Send a client what it lacks, as little as will do."""
        ledger, there = self._ledger, message.position
        if there.order > ledger.position.order or (
            there.order == ledger.position.order and there.chain != ledger.chain
        ):
            raise Refused(
                "the client is further than this coordinator, or in another course of the run",
                "the coordinator's folder may be an old copy: restore the newest one",
            )
        follower.helped += 1
        if follower.helped > _MOST_HELP:
            raise MessageError(f"client {client} says again and again where it stands in round {self.number}")
        follower.lagging, follower.unanswered = False, 0
        follower.sent = self._recent[-1][0].order if self._recent else follower.sent
        if there == ledger.position:
            follower.holds_check = message.holds_check
            if not message.behind:
                return [Send(client, Resume(*there.order, there.chain, b"")), *self._confirmed_for(client)]
        else:  # it has the check values of this round if it plays this round from its beginning
            follower.holds_check = ledger.at_start or ledger.hop > 0
        missed = [] if message.behind else self._missed(there)
        history = self._history(long=ledger.ended)
        if not missed or sum(len(published) for _, published in missed) > len(history):
            return self._resume(client, history)
        plays_on = message.holds_check or any(position.hop == 0 for position, _ in missed)
        follower.holds_check = follower.holds_check or plays_on
        hops: list[Action] = [Send(client, Opened(*position.order, published)) for position, published in missed]
        return [*hops[:-1], *self._earlier_for(client), hops[-1], *self._confirmed_for(client)]

    def _missed(self, there: Position) -> list[tuple[Position, bytes]]:
        """What was published since a client stood there; nothing if that is longer ago, or another course."""
        for place, (position, _) in enumerate(self._recent):
            if position == there:
                return self._recent[place:]
        return []

    def _history(self, *, long: bool) -> bytes:
        """With check C a client confirms the hop before the last one, and only then may it speak of the last one."""
        least = 2 if self._plan.settings.check == "C" else 0
        return encode_history(self._archive.history(self._ledger, long=long, least_hops=least))

    def _resume(self, client: int, history: bytes) -> list[Action]:
        position = self._ledger.position
        resume = Send(client, Resume(*position.order, position.chain, history))
        return [*self._earlier_for(client), resume, *self._confirmed_for(client)]

    def _help_silent(self) -> list[Action]:
        """If everybody is there, and too few have check values, no deadline needs to pass."""
        silent = {client for client, follower in self._followers.items() if not follower.holds_check}
        absent = self._attendance.num_left - len(self._followers)
        able = len(self._followers) - len(silent)
        return self._long_histories(silent) if absent <= 0 and able < self._session.answers_needed else []

    def _unheard(self, waiting: _Waiting) -> set[int]:
        """Who has not answered, or not confirmed the last hop: only what came counts, not what clients seem to hold.

        A client that is connected and silent may hold everything, and be the one for whom the others wait in vain.
        """
        unheard = self._followers.keys() - set(waiting.opening.answered)
        confirming = self._confirming
        if confirming is not None and confirming.released is None:
            unheard |= {client for client in self._followers if not confirming.has(client)}
        return unheard

    def _long_histories(self, clients: set[int]) -> list[Action]:
        """Let these compute the last round again: then they have every check value that an answer needs."""
        if self._ledger.at_start:
            return []
        actions, history = list[Action](), self._history(long=True)
        for client in sorted(clients):
            follower = self._followers[client]
            if follower.helped >= _MOST_HELP:
                continue
            follower.helped += 1
            follower.holds_check, follower.lagging, follower.unanswered = True, False, 0
            follower.sent = self._recent[-1][0].order
            actions += [log("last round again", client=client, round=self.number), *self._resume(client, history)]
        return actions

    # -- one hop after the other -----------------------------------------------------------------------------

    def _open(self, now: float) -> None:
        """Begin the next hop. Clients need not be asked for it."""
        self._waiting = _Waiting(HopOpening(self._session, self._ledger), now + self._timing.deadline)

    def _answered(self, client: int, message: HopAnswered, now: float) -> list[Action]:
        waiting, follower = self._waiting, self._followers.get(client)
        there, here = HopAnswer.position_of(message.answer), self._ledger.position
        if there.order > here.order:
            raise MessageError(f"an answer to hop {there.order} came, but {here.order} is the next one")
        if waiting is None or follower is None or there.order < here.order or client in self._attendance.dropped:
            self._counters.late += 1
            return self._is_late(client, follower, there) if waiting is not None and follower is not None else []
        if client in waiting.opening.answered or waiting.opened is not None:
            self._counters.late += 1  # it was told again where the run stands
            return []
        if there.chain != here.chain:
            new = client not in waiting.late_chains
            waiting.late_chains.add(client)
            return [log("another course", client=client, round=there.round_number, hop=there.hop)] if new else []
        try:
            answer = HopAnswer.decode_from(client, message.answer, self._session, self._ledger.current)
            opened = waiting.opening.add(answer)
        except MessageError:
            self._counters.invalid += 1
            raise
        follower.unanswered, follower.lagging = 0, False
        self._counters.answers += 1
        self._counters.last_answered[client] = there.round_number
        if opened is not None:
            waiting.opened = opened
            return self._publish_if_confirmed(now)
        nobody_left = self._attendance.has_everybody(set(waiting.opening.answered))
        return self._alarm(waiting) if waiting.opening.stuck and nobody_left else []

    def _is_late(self, client: int, follower: _Follower, there: Position) -> list[Action]:
        """A slow client is heard of at an earlier hop. If it has worked through what it was sent, it gets the rest."""
        sent_since = sum(there.order <= position.order <= follower.sent for position, _ in self._recent)
        follower.unanswered = min(follower.unanswered, sent_since)
        if not follower.lagging or there.order <= follower.sent:
            return []
        return self._help(client, follower, Standing.at(there, b"", holds_check=True, behind=False))

    def _publish_if_confirmed(self, now: float) -> list[Action]:
        """Publish a hop once the word of all on the hop before is here: who comes back later will need it.

        They have given it, else they would not have answered. A coordinator that was started again asks for it again.
        """
        waiting, confirming = self._waiting, self._confirming
        if waiting is None or waiting.opened is None or (confirming is not None and confirming.released is None):
            return []
        return self._publish(waiting.opened, now)

    def _publish(self, opened: OpenedHop, now: float) -> list[Action]:
        """Write down what the hop opens, and only then let anybody see it.

        A round is recorded before its last hop is stored: after a crash in between it is recorded once more.
        """
        ledger, waiting = self._ledger, self._waiting
        if waiting is None:
            raise RuntimeError("no hop is open")
        confirmed = None if self._confirming is None else self._confirming.released
        position, note, last = ledger.position, _note(ledger, confirmed), ledger.hop + 1 == len(ledger.hops)
        before, was_final = ledger.losses, ledger.final
        try:
            self._move_on(opened.published)
        except HeadroomAlarm as alarm:
            return self._alarm(waiting, str(alarm))
        actions: list[Action] = []
        if len(ledger.losses) > len(before):
            actions.append(RecordLoss(position.round_number, self._plan.real_loss(ledger.losses[-1])))
        if last and not was_final:
            record = RoundRecord(position.round_number, "stepped", opened.survivors, liars=opened.liars)
            actions.append(Record(record, len(waiting.opening.answered)))
            self._attendance.next_round()
        actions.append(StoreBroadcast(self._session.run, *position.order, opened.published, note))
        for liar in opened.liars:
            self._counters.liars += 1
            self._attendance.dropped[liar] = _LIED
            self._followers.pop(liar, None)
            name = self._roster.members[liar].name
            actions.append(log("liar", client=liar, name=name, round=position.round_number, hop=position.hop))
        message = Opened(*position.order, opened.published)
        for client in sorted(self._followers):
            actions += self._send_hop(client, message)
        self._earlier = confirmed
        self._begin_to_confirm()
        if ledger.ended:
            self._waiting = None
            return actions
        self._open(now)
        return actions + self._attendance.too_few(self._session.answers_needed, self.number)

    def _send_hop(self, client: int, message: Opened) -> list[Action]:
        """Send a follower what a hop published. One that has answered nothing for long is left until it does."""
        follower = self._followers[client]
        follower.helped = 0
        if message.hop == 0:
            follower.holds_check = True  # it plays this round from its beginning
        most = _AHEAD * len(self._plan.hops(message.round_number)) + 1
        if follower.lagging or follower.unanswered >= most:
            follower.lagging, follower.holds_check = True, False
            return []
        follower.unanswered += 1
        follower.sent = message.round_number, message.hop
        return [Send(client, message)]

    def _shortage(self, waiting: _Waiting, now: float) -> list[Action]:
        """Too few have answered in time. Nothing is asked for twice: who can answer has what it needs for it."""
        if waiting.opening.stuck and self._attendance.has_everybody(set(waiting.opening.answered)):
            return self._alarm(waiting)
        self._counters.shortages += 1
        waiting.until = now + self._timing.deadline
        line = log(
            "shortage",
            round=self.number,
            hop=self._ledger.hop,
            answered=list(waiting.opening.answered),
            needed=self._session.answers_needed,
            then="others may outvote a liar" if waiting.opening.stuck else "retry",
        )
        return [line, *self._long_histories(self._unheard(waiting))]

    def _alarm(self, waiting: _Waiting, reason: str = "") -> list[Action]:
        """Something was falsified, and nobody can say by whom: end the run for good."""
        answered, hop = list(waiting.opening.answered), self._ledger.hop
        reason = reason or f"the answers of clients {answered} to hop {hop} of round {self.number} do not agree"
        error: DresError = HeadroomAlarm(
            reason, "a client or this coordinator computes falsely: see all logs; begin a new run in a new folder"
        )
        kept = [] if self._keep_alarm is None else [self._keep_alarm(reason)]
        told = [Send(client, Alarm(reason)) for client in self._attendance.ready]
        return [*kept, *told, log("alarm", reason=reason, hint=error.hint), Finish(error)]

    # -- check C ---------------------------------------------------------------------------------------------

    def _begin_to_confirm(self) -> None:
        """A hop was published. With check C, clients tell each other what they think of it."""
        if self._plan.settings.check == "C" and not self._ledger.at_start:
            place = self._session, self._roster, self._ledger.position
            self._confirming = Confirming(*place, self._timing.grace)

    def _has_confirmed(self, client: int, message: Confirmed, now: float) -> list[Action]:
        confirming, follower = self._confirming, self._followers.get(client)
        if confirming is None or follower is None or message.position != confirming.position:
            self._counters.late += 1
            return [] if follower is None else self._is_late(client, follower, message.position)
        follower.unanswered, follower.lagging = 0, False
        asked = {c for c, other in self._followers.items() if other.holds_check and not other.lagging}
        if confirming.add(client, message, asked, now):
            return self._confirmations(confirming, now)
        return self._confirmed_for(client)

    def _confirmations(self, confirming: Confirming, now: float) -> list[Action]:
        """Send everybody what all have confirmed."""
        message = confirming.release()
        sent: list[Action] = [Send(client, message) for client in sorted(self._followers)]
        return sent + self._publish_if_confirmed(now)

    def _earlier_for(self, client: int) -> list[Action]:
        """For a client that comes back: what all had confirmed before the last hop. It goes before that hop."""
        return [] if self._earlier is None else [Send(client, self._earlier)]

    def _confirmed_for(self, client: int) -> list[Action]:
        """For a client that comes back: what the others have confirmed, if they have been told already."""
        released = None if self._confirming is None else self._confirming.released
        return [] if released is None else [Send(client, released)]
