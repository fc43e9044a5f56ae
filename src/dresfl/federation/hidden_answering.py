"""A client's side of the hidden rounds: one message after the other becomes work, in the order in which they came.

What hops have published while the client was busy is taken together: only the newest hop is worth an answer.
"""

from dataclasses import dataclass
from typing import final

from dresfl.errors import HeadroomAlarm, MessageError
from dresfl.protocol import Session, Task

from .actions import (
    Action,
    ConfirmHop,
    Disconnect,
    EndRun,
    GiveUp,
    ResumeRun,
    SendToCoordinator,
    Stand,
    StartRun,
    TakeHops,
    Work,
)
from .answering import Answering
from .messages import Alarm, Confirmations, HopAnswered, Message, Opened, Resume, Started


@final
@dataclass(frozen=True, eq=False)
class HopResult:
    """What came of work on a hop: what is to be sent, and whether the run has ended, with a model or without."""

    messages: tuple[Message, ...] = ()
    ended: bool = False
    final: Task | None = None
    opened: bytes = b""  # SHA-256 of what opened the model


@final
class HiddenAnswering(Answering):
    """Hops in, answers out. It knows nothing of them: the workplace does."""

    def __init__(self) -> None:
        self.rounds_answered = 0
        self._answered_round = -1
        self.reset()

    def reset(self) -> None:
        self.came_far = False
        self._answered = False  # on this connection
        self._stood = False
        self._busy = False
        self._waiting: list[Work] = []

    def begin(self) -> list[Action]:
        """This client may take part: say where it stands, once on each connection."""
        if self._stood:
            return []
        self._stood = True
        self._waiting.append(Stand())
        return self._next()

    def received(self, message: Message, session: Session) -> list[Action]:
        match message:
            case Opened():
                self.came_far = self.came_far or self._answered
                last = self._waiting[-1] if self._waiting else None
                if isinstance(last, TakeHops):
                    self._waiting[-1] = TakeHops((*last.opened, message))
                else:
                    self._waiting.append(TakeHops((message,)))
            case Started():
                self._waiting.append(StartRun(message))
            case Resume():
                self._waiting.append(ResumeRun(message))
            case Confirmations():
                self._waiting.append(ConfirmHop(message))
            case Alarm():
                hint = "nothing more is sent in this run; see the coordinator's log"
                return [GiveUp(HeadroomAlarm(f"the coordinator has ended the run: {message.reason}", hint))]
            case _:
                raise MessageError(f"{type(message).__name__} may not come here")
        return self._next()

    def worked(self, work: Work, result: object) -> list[Action]:
        self._busy = False
        if not isinstance(result, HopResult):
            return [Disconnect(str(result))]
        actions: list[Action] = []
        for message in result.messages:
            if isinstance(message, HopAnswered):
                self._note_answer(message)
            actions.append(SendToCoordinator(message))
        if result.ended:
            return [*actions, EndRun(result.final, result.opened)]
        return actions + self._next()

    def _note_answer(self, message: HopAnswered) -> None:
        self._answered = True
        number = int.from_bytes(message.answer[:4], "little")
        if number > self._answered_round:
            self._answered_round = number
            self.rounds_answered += 1

    def _next(self) -> list[Action]:
        if self._busy or not self._waiting:
            return []
        self._busy = True
        return [self._waiting.pop(0)]
