"""The coordinator as a state machine: events and times go in, actions come out. No I/O, no clock, no threads.

For the run:

    enrolling --every client's Hello--> sharing --Ready--> checking --Checked--> training
    training --all rounds played--> closing --> ended
        (started again with its terms: sharing, or with a verdict: training, at the round of its checkpoint)

For one client:

    absent --connected--> greeting --Hello--> enrolled --terms: Begin--> begun
    begun --first Holding--> joined --Ready--> ready --Done--> informed

enrolment.py settles the terms, relay.py moves slices, checking.py judges the dealers, rounds.py says what follows;
open_rounds.py and hidden_rounds.py do it. A runtime calls one method for each event, with the time in seconds of any
steady clock, and carries out the returned actions in order. Whatever is wrong with one client's message ends that
client's connection and disturbs nobody else.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import final

from torch import Tensor

from dresfl.errors import DresError, HeadroomAlarm, IdentityError, MessageError, Refused, TooFewAnswers, UsageError
from dresfl.protocol import Session, Totals, Training, Verdict, checkers_needed, final_sum
from dresfl.sealing import Identity, Roster

from .actions import Action, Close, Finish, Send, StoreBroadcast, StoreTerms, log
from .agreement import Agreement
from .attesting import check_attested
from .checking import Checking
from .coordinator_state import ConnectionState, CoordinatorSettings, Counters, Running
from .enrolment import Enrolment, signed_begin
from .hidden_rounds import HiddenRounds
from .messages import (
    ANY_ROUND,
    FROM_CLIENT,
    NO_INSTANCE,
    Ack,
    Added,
    Attestations,
    Attested,
    Check,
    Checked,
    Counted,
    Declined,
    Hello,
    Holding,
    Informed,
    Judged,
    Message,
    Ready,
    Reject,
    SetSigned,
    Slice,
    Wait,
    decode,
)
from .open_rounds import OpenRounds
from .relay import Relay
from .rounds import Attendance, Rounds, give_up
from .sums import SumOpening
from .terms import HiddenTerms, Terms

HELLO_SECONDS = 30.0  # from a connection to its Hello
_DEVIATES = "it was not there when the dealers were checked, or holds other shares or seeds than were dealt"
_LONG_WAIT = 10  # deadlines, for clients without whom a check would leave nobody to spare
_REMIND_SECONDS = 15.0  # between two log lines about what is waited for


@final
class Coordinator:
    """Enrols clients, relays their sealed shares, plays the rounds, and makes the final weights known."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        agreement: Agreement,
        identity: Identity,
        roster: Roster,
        make_training: Callable[[Session], Training],
        terms: Terms | None = None,
        stored_slices: Callable[[Session], Iterable[tuple[int, int, int]]] = lambda session: (),
        stored_hops: Callable[[bytes], Iterable[StoreBroadcast]] = lambda run: (),
    ) -> None:
        """make_training: the training of a session, where its last checkpoint left it; in the open mode alone.

        terms: of an earlier start. stored_slices: receiver, dealer and number of the slices of a session that the disk
        still has. stored_hops: likewise, what the hops of a hidden run have published, by its digest, in order.
        """
        agreement.check_consent()
        agreement.check_masks()
        if agreement.mode == "hidden" and settings.timing.on_shortage == "skip":
            raise UsageError("a hidden round cannot be skipped", 'set on_shortage = "retry"')
        if identity.member != roster.server:
            raise UsageError(f"{identity.name} is not the coordinator of this roster", "check [keys]")
        if len(roster.members) != agreement.num_clients:
            raise UsageError(
                f"the roster lists {len(roster.members)} clients, the agreement has {agreement.num_clients}"
            )
        self._settings, self._agreement, self._identity, self._roster = settings, agreement, identity, roster
        self._make_training, self._stored_slices, self._stored_hops = make_training, stored_slices, stored_hops
        self._clients: dict[int, ConnectionState] = {}
        self._informed: set[int] = set()
        self._attendance = Attendance(roster, lambda: self.ready)
        self._enrolment = Enrolment(agreement, terms)
        self._running: Running | None = None
        self._attested: dict[int, bytes] = {}  # what clients signed of the dealers, in the hidden mode
        self._closing_until: float | None = None
        self._sum: SumOpening | None = None  # what clients count at the end of a hidden run
        self._parted: set[int] = set()  # clients that were told that all is said
        self._moved_at = 0.0  # when the sharing last made progress
        self._check_until = 0.0
        self._check_begun = 0.0
        self._check_later = 0.0  # not before, since it would leave nobody to spare
        self._reminder = 0.0
        self.ended = False
        self.counters = Counters()

    # -- what others may look at -----------------------------------------------------------------------------

    @property
    def connected(self) -> list[int]:
        """The clients that are connected and enrolled."""
        return sorted(client for client, state in tuple(self._clients.items()) if state.hello is not None)

    @property
    def ready(self) -> list[int]:
        """The clients that are connected and hold every share."""
        return sorted(client for client, state in tuple(self._clients.items()) if state.ready)

    @property
    def dropped(self) -> dict[int, str]:
        """The clients whose answers are not wanted any more in this run, and why."""
        return dict(self._attendance.dropped)

    @property
    def training(self) -> Training | None:
        """The training of the open mode, once the dealers are checked."""
        rounds = self._rounds
        return rounds.training if isinstance(rounds, OpenRounds) else None

    @property
    def session(self) -> Session | None:
        """The session, once the terms are settled."""
        return None if self._running is None else self._running.session

    @property
    def rounds(self) -> Rounds | None:
        """The rounds of either mode, once the dealers are checked."""
        return self._rounds

    @property
    def model(self) -> Tensor | None:
        """(P,) int64: the model of a hidden run, once it is opened, if it is opened to the coordinator."""
        return self._rounds.model if isinstance(self._rounds, HiddenRounds) else None

    @property
    def totals(self) -> Totals | None:
        """What clients counted on their own rows with the final model of a hidden run, if enough of them did."""
        return None if self._sum is None else self._sum.totals

    @property
    def _rounds(self) -> Rounds | None:
        return None if self._running is None else self._running.made_rounds

    @property
    def relay(self) -> Relay | None:
        """The relay, once the terms are settled."""
        return None if self._running is None else self._running.relay

    @property
    def wake_at(self) -> float | None:
        """When `tick` has to be called at the latest, if nothing happens before; None: not at all."""
        if self.ended:
            return None
        times = [state.hello_until for state in self._clients.values() if state.hello is None]
        opening_until = None if self._rounds is None else self._rounds.wake_at
        if opening_until is not None:
            times.append(opening_until)
        elif self._closing_until is not None:
            counting = None if self._sum is None else self._sum.wake_at
            times.append(self._closing_until if counting is None else counting)
        else:
            times += [self._reminder, *self._check_times()]
        return min(times, default=None)

    # -- events ----------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """The runtime is ready. If there are terms of an earlier start, the run goes on from there."""
        self._reminder = now + _REMIND_SECONDS
        terms = self._enrolment.terms
        if terms is None:
            return []
        if terms.hidden.alarm:  # what was falsified once is not tried again
            alarm = HeadroomAlarm(f"this run has ended with an alarm: {terms.hidden.alarm}", "begin a new one")
            return self._of_rounds(give_up(alarm), now)
        return self._settle(terms, now)

    def connected_to(self, client: int, now: float) -> list[Action]:
        """A client whose identity is known has connected. A connection that it had before does not count any more."""
        older = self._clients.get(client)
        actions = self.disconnected(client, now) if older is not None else []
        replaced = older.hello.instance if older is not None and older.hello is not None else NO_INSTANCE
        self._clients[client] = ConnectionState(hello_until=now + HELLO_SECONDS, replaced=replaced)
        return actions

    def disconnected(self, client: int, now: float) -> list[Action]:
        """A client's connection has ended."""
        state = self._clients.pop(client, None)
        if state is None or state.hello is None:
            return []
        self._enrolment.leave(client)
        left: list[Action] = [log("left", client=client)]
        if self._running is None:
            return left
        self._running.relay.client_left(client)
        if self._rounds is not None:
            left += self._rounds.left(client, now)
        if self._sum is not None:
            self._sum.left(client)
        return [*left, *self._running.relay.due()]

    def received(self, client: int, data: bytes | memoryview, now: float) -> list[Action]:
        """A client's message has come."""
        state = self._clients.get(client)
        if state is None or self.ended:
            return []
        try:
            return self._take(client, state, data, now)
        except (MessageError, Refused, IdentityError) as error:
            return self._refuse(client, error, now)

    def slice_lost(self, receiver: int, dealer: int, number: int) -> list[Action]:
        """The disk no longer has a slice that was to be sent."""
        if self._running is None:
            return []
        return [*self._running.relay.lost(receiver, dealer, number), *self._running.relay.due()]

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if self.ended:
            return []
        actions: list[Action] = []
        late = [c for c, state in self._clients.items() if state.hello is None and now >= state.hello_until]
        for client in late:
            actions += self._refuse(client, MessageError("no Hello came in time"), now)
        rounds = self._rounds
        if rounds is not None and rounds.wake_at is not None:
            actions += self._of_rounds(rounds.tick(now), now) if now >= rounds.wake_at else []
        elif self._closing_until is not None:
            if self._sum is not None and not self._sum.done:
                actions += self._of_sum(self._sum.tick(now))
            if not self.ended and now >= self._closing_until and (self._sum is None or self._sum.done):
                actions += self._end()
        else:
            if any(now >= time for time in self._check_times()):
                actions += self._check_without_the_others(self._settled, now)
            if now >= self._reminder and not self.ended:
                actions += self._remind(now)
        return actions

    def _refuse(self, client: int, error: DresError, now: float) -> list[Action]:
        self.counters.refusals += 1
        name = self._roster.members[client].name
        refused = log("refused", client=client, name=name, reason=str(error), hint=error.hint)
        return [refused, Close(client, error), *self.disconnected(client, now)]

    # -- messages --------------------------------------------------------------------------------------------

    def _take(self, client: int, state: ConnectionState, data: bytes | memoryview, now: float) -> list[Action]:
        if state.hello is None:
            try:
                message = decode(data, (Hello,))
            except MessageError as error:  # no release of this version sends such a one: trying again is of no use
                raise Refused(str(error), error.hint) from error
        else:
            message = decode(data, FROM_CLIENT[1:])
        if isinstance(message, Hello):
            return self._hello(client, state, message, now)
        if self._running is None or not state.begun:
            raise MessageError(f"a message of kind {data[0]} came before the terms")
        return self._take_of_member(client, state, message, self._running, now)

    def _take_of_member(
        self, client: int, state: ConnectionState, message: Message, running: Running, now: float
    ) -> list[Action]:
        relay = running.relay
        if isinstance(message, Holding | Slice | Ack | Ready | Reject):
            self._moved_at, self._check_later = now, 0.0
        match message:
            case Holding():
                return self._holds(client, state, message, running)
            case Slice():
                return [*relay.dealt(client, message.peer, message.number, message.sealed), *relay.due()]
            case Ack():
                return [*relay.acknowledge(client, message.peer, message.number), *relay.due()]
            case Reject():
                return self._rejected(client, message, relay)
            case Ready():
                return self._became_ready(client, state, message, running, now)
            case Informed():
                return self._was_informed(client, message, running)
            case Declined():
                return self._has_declined(client, message, running, now)
            case Checked() | Attested():
                return self._has_checked(client, message, running, now)
            case Counted() | SetSigned() | Added():
                if self._sum is None:
                    raise MessageError("no sum is taken")
                return self._of_sum(self._sum.received(client, message, now))
        if running.made_rounds is None:
            self.counters.late += 1  # of an earlier connection
            return []
        return self._of_rounds(running.rounds.received(client, message, now), now)

    def _hello(self, client: int, state: ConnectionState, hello: Hello, now: float) -> list[Action]:
        settled = self._enrolment.hello(client, hello, state.replaced)
        state.hello = hello
        actions: list[Action] = [log("joined", client=client, name=self._roster.members[client].name)]
        if settled is not None:
            sharing = "fresh" if settled.fresh else "reused"
            actions.append(log("terms settled", sharing=sharing, rows=sum(settled.rows)))
            return [*actions, StoreTerms(settled), *self._settle(settled, now)]
        if self._running is not None:
            return [*actions, *self._begin(client, state, self._running)]
        missing = len(self._enrolment.missing())
        return [*actions, Send(client, Wait(f"{missing} of {self._agreement.num_clients} clients are missing"))]

    def _settle(self, terms: Terms, now: float) -> list[Action]:
        """Make the session that the terms give, and begin with everybody who is there."""
        session = terms.session(self._agreement)
        relay = Relay(session, self._settings.windows, self._stored_slices(session))
        verdict, self._moved_at = terms.checked, now
        self._check_begun, self._check_until = now, now + self._settings.timing.deadline
        if verdict is None:
            self._running = running = Running(terms, session, relay, Checking(terms, session), None)
        else:
            self._running = running = self._checked(terms, session, relay, verdict)
        actions: list[Action] = []
        if running.made_rounds is not None:
            actions = self._of_rounds([] if running.rounds.done else self._too_few(running), now)
        for client, state in self._clients.items():
            if state.hello is not None:
                actions += self._begin(client, state, running)
        return actions

    def _checked(self, terms: Terms, session: Session, relay: Relay, verdict: Verdict) -> Running:
        """What there is once the dealers are checked. Who deviates is not asked."""
        attendance, timing = self._attendance, self._settings.timing
        attendance.dropped.update(dict.fromkeys(verdict.deviating, _DEVIATES))
        with_all = timing, attendance, self._roster, self.counters
        if session.hidden is None:
            return Running(terms, session, relay, None, OpenRounds(session, self._make_training(session), *with_all))
        stored, starts = self._stored_hops(session.run), terms.hidden.starts
        hidden = HiddenRounds(session, *with_all, stored, starts, self._keep_starts, self._keep_alarm)
        return Running(terms, session, relay, None, hidden)

    def _keep_starts(self, starts: tuple[tuple[int, bytes], ...]) -> Action:
        return self._amend(replace(self._settled.terms.hidden, starts=starts))

    def _keep_alarm(self, reason: str) -> Action:
        return self._amend(replace(self._settled.terms.hidden, alarm=reason))

    def _amend(self, hidden: HiddenTerms) -> Action:
        """Put on the disk what there is to know of a hidden run."""
        terms = replace(self._settled.terms, hidden=hidden)
        self._running, self._enrolment.terms = replace(self._settled, terms=terms), terms
        return StoreTerms(terms)

    def _begin(self, client: int, state: ConnectionState, running: Running) -> list[Action]:
        if state.hello is None:
            raise RuntimeError("a client that has not said Hello does not begin")
        state.begun = True
        begin = signed_begin(self._identity, self._roster, client, state.hello.challenge, running.terms)
        return [Send(client, begin)]

    def _holds(self, client: int, state: ConnectionState, message: Holding, running: Running) -> list[Action]:
        """A client says what it holds. Its first such message says that it has joined, and hears what comes now."""
        relay, done = running.relay, list[Action]()
        if not state.joined:
            state.joined = True
            self._attendance.came_back(client)
            relay.client_came(client)
            done = self._done(client, running) if self._closing_until is not None else []
        return [*done, *relay.declare(client, message.dealer, message.held), *relay.due()]

    def _rejected(self, client: int, message: Reject, relay: Relay) -> list[Action]:
        dropped, again = relay.reject(client, message.peer, message.number)
        line = log(
            "slice rejected",
            dealer=message.peer,
            receiver=client,
            slice=message.number,
            reason=message.reason,
            then="asked for again" if again else "given up",
        )
        return [line, *dropped, *relay.due()]

    def _became_ready(
        self, client: int, state: ConnectionState, message: Ready, running: Running, now: float
    ) -> list[Action]:
        if message.sharing_id != running.session.sharing_id:
            raise MessageError("a Ready for another sharing came")
        if state.ready:
            raise MessageError("a second Ready came")
        if running.checking is not None:
            running.checking.ready(client, message.coin)
        state.ready = True
        actions: list[Action] = [log("ready", client=client, ready=len(self.ready))]
        if running.checking is not None:
            return actions + self._ask_to_check(client, running, running.checking, now)
        actions += self._verdict_for(client, running)
        if self._closing_until is not None:
            return actions
        return actions + self._of_rounds(running.rounds.ready(client, now), now)

    # -- the check of the dealers ----------------------------------------------------------------------------

    def _check_times(self) -> list[float]:
        """When the check begins, or ends, without those who are not there."""
        running = self._running
        if running is None or running.checking is None or len(self.ready) < checkers_needed(running.session):
            return []
        begun = running.checking.coins is not None
        at = self._check_until if begun else self._moved_at + self._settings.timing.deadline
        return [max(at, self._check_later)]

    def _ask_to_check(self, client: int, running: Running, checking: Checking, now: float) -> list[Action]:
        """When everybody is ready, everybody checks. Who comes back after that is asked again."""
        if checking.coins is not None:
            return [Send(client, Check(checking.coins))] if client in checking.participants else []
        everybody = range(self._agreement.num_clients)
        return [] if checking.missing() else self._begin_check(everybody, running, checking, now)

    def _begin_check(self, clients: Collection[int], running: Running, checking: Checking, now: float) -> list[Action]:
        """Fix the coins of these clients, for good, and send them to those who are here."""
        coins = checking.begin(clients)
        terms = replace(running.terms, coins=coins)
        self._running, self._enrolment.terms = replace(running, terms=terms), terms
        self._check_begun, self._check_until = now, now + self._settings.timing.deadline
        return [StoreTerms(terms), *(Send(client, Check(coins)) for client in self.ready)]

    def _check_without_the_others(self, running: Running, now: float) -> list[Action]:
        """The sharing has stood still for `deadline` seconds, or some have not answered the check for so long.

        Who is not checked is lost for the whole run. If that leaves just as many as are needed, the first death would
        end it: so the check then waits ten times as long. Nothing has begun, and nothing is lost by waiting.
        """
        checking, needed = running.checking, running.session.answers_needed
        if checking is None:
            return []
        if checking.coins is None:
            absent = [client for client in range(self._agreement.num_clients) if client not in self.ready]
            left = self._agreement.num_clients - len(absent)
            if left <= needed and now < self._moved_at + _LONG_WAIT * self._settings.timing.deadline:
                return self._check_waits(absent, self._moved_at)
            line = log("checking without", clients=absent)
            return [line, *self._begin_check(self.ready, running, checking, now)]
        absent = checking.missing()
        self._check_until = now + self._settings.timing.deadline
        if len(checking.participants) - len(absent) < checkers_needed(running.session):
            return []
        try:
            verdict = checking.verdict()
        except TooFewAnswers:
            return []  # with one more there may be enough
        if self._agreement.num_clients - len(verdict.deviating) < needed:
            return []  # with one more there may be enough
        spare = self._agreement.num_clients - len(verdict.deviating) - needed
        if spare < 1 and now < self._check_begun + _LONG_WAIT * self._settings.timing.deadline:
            return self._check_waits(absent, self._check_begun)
        return [log("checking without", clients=absent), *self._judge(verdict, running, checking, now)]

    def _check_waits(self, absent: Collection[int], since: float) -> list[Action]:
        """Wait longer for those without whom nobody would be left to spare."""
        wait = _LONG_WAIT * self._settings.timing.deadline
        self._check_later = since + wait
        return [log("checking waits", clients=list(absent), seconds=wait)]

    def _has_checked(self, client: int, message: Checked | Attested, running: Running, now: float) -> list[Action]:
        checking, session = running.checking, running.session
        if checking is None:
            return []  # it was asked a second time, after a reconnection, and the verdict is there
        if isinstance(message, Attested) != (session.hidden is not None):
            raise MessageError(f"{type(message).__name__} came in the other mode")
        checked = message.checked if isinstance(message, Attested) else message
        if isinstance(message, Attested):
            check_attested(self._roster.members[client], session, client, checking.coins or (), message)
        checking.checked(client, checked.hashes, checked.values)
        if isinstance(message, Attested):
            self._attested[client] = b"".join(message.body())
        if checking.missing():
            return []
        try:
            return self._judge(checking.verdict(), running, checking, now)
        except TooFewAnswers as error:
            return self._of_rounds(give_up(error), now)

    def _judge(self, verdict: Verdict, running: Running, checking: Checking, now: float) -> list[Action]:
        """Make the verdict known, once it is on the disk, and begin the rounds."""
        actions: list[Action] = []
        for dealer, holder in checking.different_seeds:
            actions.append(log("seeds differ", dealer=dealer, holder=holder, name=self._roster.members[dealer].name))
        excluded, deviating = list(verdict.excluded), list(verdict.deviating)
        actions.append(log("dealers checked", excluded=excluded, deviating=deviating))
        if len(excluded) == self._agreement.num_clients:
            none_left = TooFewAnswers(
                "the shares of no dealer lie on polynomials, or too many clients say so",
                "see the logs of all clients, and share again in a new folder",
            )
            return self._of_rounds([*actions, *give_up(none_left)], now)
        hidden = replace(running.terms.hidden, attested=tuple(sorted(self._attested.items())))
        terms = replace(running.terms, verdict=verdict, hidden=hidden)
        session = terms.session(self._agreement)
        self._running = running = self._checked(terms, session, running.relay, verdict)
        self._enrolment.terms = terms
        actions.append(StoreTerms(terms))
        for ready in self.ready:
            actions += self._verdict_for(ready, running)
        if self._attendance.num_left < session.answers_needed and checking.different_seeds:
            dealers = sorted({self._roster.members[dealer].name for dealer, _ in checking.different_seeds})
            names = ", ".join(dealers)
            differ = TooFewAnswers(
                f"the seeds that {names} dealt are not the same at all their holders: too few can blind alike",
                "mend these clients or leave them out of the roster, and share again in a new folder",
            )
            return self._of_rounds([*actions, *give_up(differ)], now)
        return self._of_rounds([*actions, *(self._too_few(running) or running.rounds.begin(now))], now)

    def _verdict_for(self, client: int, running: Running) -> list[Action]:
        """What came of the check. Clients of a sharing that is used again know it; in the hidden mode all judge."""
        terms = running.terms
        if terms.verdict is None:
            return []
        if running.session.hidden is None:
            return [Send(client, Judged(terms.verdict))]
        attested = tuple((c, Attested.from_body(memoryview(body))) for c, body in terms.hidden.attested)
        return [Send(client, Attestations(terms.coins or (), attested))]

    # -- rounds ----------------------------------------------------------------------------------------------

    def _of_rounds(self, actions: list[Action], now: float) -> list[Action]:
        """Actions after which the run may be over, or all rounds: then everybody is told so."""
        if any(isinstance(action, Finish) for action in actions):
            self.ended = True
            return actions
        over = self._rounds is not None and self._rounds.done and self._closing_until is None
        return [*actions, *self._close(now)] if over else actions

    def _has_declined(self, client: int, message: Declined, running: Running, now: float) -> list[Action]:
        """A client will not answer. Once too few are left, asking again would change nothing: the run ends."""
        current = running.made_rounds is not None and running.rounds.current(message.round_number)
        if self._closing_until is not None or not (current or message.round_number == ANY_ROUND):
            return []
        self._attendance.decline(client, message)
        number = 0 if running.made_rounds is None else running.rounds.number
        line = log("declined", client=client, round=number, reason=message.reason)
        return self._of_rounds([line, *self._too_few(running)], now)

    def _too_few(self, running: Running) -> list[Action]:
        number = 0 if running.made_rounds is None else running.rounds.number
        return self._attendance.too_few(running.session.answers_needed, number)

    # -- the end ---------------------------------------------------------------------------------------------

    def _close(self, now: float) -> list[Action]:
        """Send every client the final weights; wait a while for those who are away."""
        self._closing_until = now + self._settings.linger
        plan = final_sum(self._settled.session, self._settled.rounds.opened)
        if plan is not None:
            self._sum = SumOpening(plan, self._roster, self._settings.timing.deadline)
            self._sum.begin(now)
        joined = [client for client, state in self._clients.items() if state.joined]
        return [action for client in joined for action in self._done(client, self._settled)]

    def _done(self, client: int, running: Running) -> list[Action]:
        """The end, for one client. One that is not ready has not heard yet what came of the check."""
        heard = self._clients[client].ready
        final = [Send(client, message) for message in running.rounds.final(client)]
        return [*([] if heard else self._verdict_for(client, running)), *final]

    def _was_informed(self, client: int, message: Informed, running: Running) -> list[Action]:
        if self._closing_until is None or message.rounds != running.rounds.rounds:
            raise MessageError("a client says that it has the final weights, which there are not yet")
        self._informed.add(client)
        return self._part()

    def _of_sum(self, actions: list[Action]) -> list[Action]:
        """What clients hear of the sum. When it is over, those who have the model are let go."""
        totals = self.totals
        if self._sum is None or not self._sum.done or self._parted:
            return actions
        if totals is not None:
            correct, rows = totals.values[:2]
            actions.append(log("totals", correct=correct, rows=rows, clients=list(totals.dealers)))
        return [*actions, *self._part()]

    def _part(self) -> list[Action]:
        """Let go of clients that have the model, once there is nothing more for them to hear."""
        if self._sum is not None and not self._sum.done:
            return []
        now_free = sorted(self._informed - self._parted)
        self._parted.update(now_free)
        everybody = len(self._informed) == self._agreement.num_clients
        return [*(Close(client) for client in now_free if client in self._clients), *(self._end() if everybody else ())]

    def _end(self) -> list[Action]:
        self.ended = True
        absent = [client for client in range(self._agreement.num_clients) if client not in self._informed]
        return [*([log("ended without", clients=absent)] if absent else ()), Finish()]

    # -- words -----------------------------------------------------------------------------------------------

    @property
    def _settled(self) -> Running:
        if self._running is None:
            raise RuntimeError("the terms are not settled")
        return self._running

    def _remind(self, now: float) -> list[Action]:
        self._reminder = now + _REMIND_SECONDS
        if self._running is None:
            return [log("waiting", missing=self._enrolment.missing())]
        checking, needed = self._running.checking, self._running.session.answers_needed
        if checking is not None and checking.coins is not None:
            return [log("checking", missing=checking.missing())]
        return [log("sharing", ready=self.ready, needed=self._agreement.num_clients if checking else needed)]
