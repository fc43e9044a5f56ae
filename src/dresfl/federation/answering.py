"""A client's side of the rounds: what it does with a message that belongs to them, and with what comes of the work.

`Site` hands an `Answering` what concerns it. `OpenAnswering` is that of the open mode.
"""

from abc import ABC, abstractmethod
from typing import final

from dresfl.errors import MessageError
from dresfl.protocol import Session, Task

from .actions import Action, AnswerTask, SendToCoordinator, Work, log
from .agreement import Agreement
from .messages import Answered, Declined, Message, Weights


class Answering(ABC):
    """What of a client belongs to the rounds of one mode. It lasts as long as the client's process."""

    rounds_answered: int
    came_far: bool  # whether this connection was of use: something came after an answer

    @abstractmethod
    def reset(self) -> None:
        """Forget what belongs to one connection."""

    @abstractmethod
    def received(self, message: Message, session: Session) -> list[Action]:
        """A message of the coordinator that belongs to the rounds; MessageError if it does not, or is not valid."""

    @abstractmethod
    def worked(self, work: Work, result: object) -> list[Action]:
        """What came of work that this has asked for: neither an error of the disk nor one that ends the client."""


@final
class OpenAnswering(Answering):
    """The open mode: the newest task counts, and one that was not begun is forgotten for it."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self.rounds_answered = 0
        self.reset()

    def reset(self) -> None:
        self.came_far = False
        self._answering: int | None = None
        self._answered_round: int | None = None  # the last one on this connection
        self._newest: Task | None = None  # waits to be answered
        self._newest_round = -1

    def received(self, message: Message, session: Session) -> list[Action]:
        if not isinstance(message, Weights):
            raise MessageError(f"{type(message).__name__} may not come here")
        task = Task.decode(message.task, session)
        self._agreement.check_round(task.round_number)
        if self._answered_round is not None and task.round_number > self._answered_round:
            self.came_far = True
        self._newest, self._newest_round = task, task.round_number
        return [] if self._answering is not None else self._next_task()

    def worked(self, work: Work, result: object) -> list[Action]:
        if not isinstance(work, AnswerTask):
            raise RuntimeError(f"{work} is not of the open mode")
        actions: list[Action] = []
        if isinstance(result, MessageError):
            number, reason = work.task.round_number, str(result)
            actions.append(log("task refused", round=number, reason=reason, hint=result.hint))
            actions.append(SendToCoordinator(Declined(number, reason)))
        elif isinstance(result, bytes) and work.task.round_number >= self._newest_round:  # else it would be late
            self.rounds_answered += 1
            self._answered_round = work.task.round_number
            actions.append(SendToCoordinator(Answered(work.task.round_number, result)))
        return actions + self._next_task()

    def _next_task(self) -> list[Action]:
        task, self._newest = self._newest, None
        if task is None:
            self._answering = None
            return []
        self._answering = task.round_number
        return [AnswerTask(task)]
