"""A client's side of the sum at the end of a run. Whatever goes wrong with it, the client has its model and leaves."""

from typing import final

from dresfl.errors import MessageError
from dresfl.protocol import Task

from .actions import Action, AddDealt, DealCounts, SendToCoordinator, SignDealers, Work, log
from .messages import Counted, DealersOf, Message, Release, SetSigned, TotalsOf
from .messages.sums import Added

SumStep = DealCounts | SignDealers | AddDealt


@final
class Summing:
    """Shares in, signatures and sums out. It knows nothing of them: the workplace does."""

    def __init__(self) -> None:
        self.active = False
        self.totals: TotalsOf | None = None  # as the coordinator says

    def begin(self, final_task: Task, opened: bytes) -> Work:
        """This client has the final weights, and counts."""
        self.active = True
        return DealCounts(final_task, opened)

    def received(self, message: Message) -> list[Action]:
        """A message has come after the end. What is not of the sum does not matter any more."""
        match message:
            case DealersOf():
                return [SignDealers(message)]
            case Release():
                return [AddDealt(message)]
            case TotalsOf():
                self.active, self.totals = False, message
                if not message.dealers:
                    return [log("no totals")]
                correct, rows = message.values[:2]
                return [log("totals", correct=correct, rows=rows, clients=list(message.dealers))]
        return []

    def worked(self, work: SumStep, result: object) -> list[Action]:
        """What came of a step: a message, or an error that ends the sum for this client."""
        if isinstance(result, Counted | SetSigned | Added):
            return [SendToCoordinator(result)]
        reason = str(result)
        if isinstance(work, SignDealers | AddDealt) and isinstance(result, MessageError):
            return [log("sum refused", reason=reason, hint=result.hint)]  # another proposal may come
        self.active = False
        return [log("no totals", reason=reason)]
