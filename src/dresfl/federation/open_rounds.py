"""The rounds of the open mode, at the coordinator: each is one opening, that of the gradient.

(none) --enough are ready--> open --enough answers--> decoded --grace over, or everybody--> the next, or done
                              ^  |
                              +--+ too few within the deadline: asked again, or the round is skipped
"""

from collections.abc import Iterable
from typing import final

from dresfl.errors import MessageError
from dresfl.protocol import Answer, RoundRecord, Session, Task, Training
from dresfl.sealing import Roster

from .actions import Action, Record, Send, log
from .coordinator_state import Counters
from .messages import Answered, Done, Message, Weights
from .opening import Opening, RoundTiming
from .rounds import Attendance, Rounds

_LIED = "its answer was false"


@final
class OpenRounds(Rounds):
    """Weights out, answers in, a step for each round."""

    def __init__(
        self,
        session: Session,
        training: Training,
        timing: RoundTiming,
        attendance: Attendance,
        roster: Roster,
        counters: Counters,
    ) -> None:
        """training: where its last checkpoint left it."""
        self._session, self.training, self._timing = session, training, timing
        self._attendance, self._roster, self._counters = attendance, roster, counters
        self._opening: Opening | None = None
        attendance.dropped.update(dict.fromkeys(training.lies, _LIED))

    # -- what others may look at -----------------------------------------------------------------------------

    @property
    def number(self) -> int:
        return self.training.round_number

    @property
    def rounds(self) -> int:
        return self.training.rounds

    @property
    def done(self) -> bool:
        return self._opening is None and self.training.done

    @property
    def wake_at(self) -> float | None:
        return None if self._opening is None else self._opening.until

    def current(self, round_number: int) -> bool:
        return self._opening is not None and self._opening.number == round_number

    # -- events ----------------------------------------------------------------------------------------------

    def begin(self, now: float) -> list[Action]:
        """Begin as soon as enough clients can answer."""
        if len(self._attendance.asked) < self._session.answers_needed:
            return []
        line = log("rounds", first=self.number, rounds=self.rounds, ready=self._attendance.ready)
        return [line, *self._open(now)]

    def ready(self, client: int, now: float) -> list[Action]:
        if self._opening is None:
            return self.begin(now)
        wanted = self._opening.record is None and client in self._attendance.asked
        return self._weights([client]) if wanted else []

    def left(self, client: int, now: float) -> list[Action]:
        return []

    def received(self, client: int, message: Message, now: float) -> list[Action]:
        if not isinstance(message, Answered):
            raise MessageError(f"{type(message).__name__} does not belong to the open mode")
        opening = self._opening
        if opening is None or not opening.takes(client, message.round_number) or client in self._attendance.dropped:
            self._counters.late += 1  # or the second of a client that was sent its round again, or not wanted
            return []
        if opening.record is not None:  # a slower client within the grace
            opening.answered.add(client)
            return self._next_round(now) if self._attendance.has_everybody(opening.answered) else []
        try:
            answer = Answer.decode_from(client, message.answer, self._session)
            if answer.round_number != message.round_number:
                raise MessageError(f"an answer to round {answer.round_number} came as one to {message.round_number}")
            record = self.training.receive(answer)
        except MessageError:
            self._counters.invalid += 1
            raise
        opening.answered.add(client)
        self._counters.answers += 1
        self._counters.last_answered[client] = message.round_number
        return [] if record is None else self._decoded(opening, record, now)

    def tick(self, now: float) -> list[Action]:
        opening = self._opening
        if opening is None or now < opening.until:
            return []
        return self._next_round(now) if opening.record is not None else self._shortage(opening, now)

    def final(self, client: int) -> list[Message]:
        return [Done(Task(self.rounds, self.training.weights.cpu()).encode(self._session))]

    # -- one opening after the other -------------------------------------------------------------------------

    def _open(self, now: float) -> list[Action]:
        """Begin the next round: send its weights to everybody who can answer."""
        self._opening = Opening(self.number, now + self._timing.deadline)
        return self._weights(self._attendance.asked)

    def _weights(self, clients: Iterable[int]) -> list[Action]:
        message = Weights(self.training.task().encode(self._session))
        return [Send(client, message) for client in clients]

    def _decoded(self, opening: Opening, record: RoundRecord, now: float) -> list[Action]:
        """A round is decoded. Slower clients have their grace: they are counted, and not left behind."""
        self._attendance.dropped.update(dict.fromkeys(record.liars, _LIED))
        opening.close(record, now + self._timing.grace)
        at_once = self._attendance.has_everybody(opening.answered) or not self._timing.grace
        return self._next_round(now) if at_once else []

    def _shortage(self, opening: Opening, now: float) -> list[Action]:
        timing, attendance = self._timing, self._attendance
        self._counters.shortages += 1
        line = log(
            "shortage",
            round=opening.number,
            answered=sorted(opening.answered),
            needed=self._session.answers_needed,
            then=timing.on_shortage,
        )
        if timing.on_shortage == "skip":
            opening.close(self.training.skip(), now)
            return [line, *self._next_round(now)]
        opening.until = now + timing.deadline
        missing = [c for c in attendance.asked if c not in opening.answered and not attendance.has_declined(c)]
        return [line, *self._weights(missing)]

    def _next_round(self, now: float) -> list[Action]:
        """Write down how the round ended, and only then let anybody see what follows from it."""
        opening = self._opening
        if opening is None or opening.record is None:
            raise RuntimeError("no round has ended")
        self._opening = None
        self._attendance.next_round()
        actions: list[Action] = [Record(opening.record, len(opening.answered))]
        if opening.record.outcome == "refused":
            actions.append(log("round refused", round=opening.number, reason=opening.record.reason))
        for client in opening.record.liars:
            self._counters.liars += 1
            actions.append(log("liar", client=client, name=self._roster.members[client].name, round=opening.number))
        if self.training.done:
            return actions
        return actions + (self._attendance.too_few(self._session.answers_needed, self.number) or self._open(now))
