"""What follows the check of the dealers, in either mode: openings, one after the other, until there is a model.

`Coordinator` hands a `Rounds` the events that concern it and carries out what it returns. open_rounds.py plays the open
mode, hidden_rounds.py the hidden mode. `Attendance` is what both sides of this interface know of the clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

from dresfl.errors import DresError, MessageError, TooFewAnswers
from dresfl.sealing import Roster

from .actions import Action, Finish, log
from .messages import ANY_ROUND, Declined, Message

_REASON_LETTERS = 100  # of what a client says, in an error


@final
class Attendance:
    """Which clients can be asked: now, since they are ready, or later, since nothing speaks against them."""

    def __init__(self, roster: Roster, ready: Callable[[], list[int]]) -> None:
        """ready: the clients that are connected and hold every share."""
        self._members, self._ready = roster.members, ready
        self.dropped: dict[int, str] = {}  # the clients whose answers are not wanted any more in this run, and why
        self._declined: dict[int, Declined] = {}

    @property
    def ready(self) -> list[int]:
        return self._ready()

    @property
    def asked(self) -> list[int]:
        """The clients that can be asked now."""
        return [client for client in self.ready if client not in self.dropped]

    @property
    def num_left(self) -> int:
        """How many clients can still be asked, now or when they come back."""
        return len(self._members) - len({*self.dropped, *self._declined})

    def has_declined(self, client: int) -> bool:
        """Whether a client will not answer what it is asked now."""
        return client in self._declined

    def has_everybody(self, answered: set[int]) -> bool:
        """Whether all clients whose answers are wanted are among these."""
        return len({*answered, *self.dropped}) == len(self._members)

    def decline(self, client: int, message: Declined) -> None:
        if self._declined.get(client) == message:
            raise MessageError("the same Declined came a second time")
        self._declined[client] = message

    def came_back(self, client: int) -> None:
        """It may answer."""
        self._declined.pop(client, None)

    def next_round(self) -> None:
        """Who declined the last round may answer the next one."""
        self._declined = {c: message for c, message in self._declined.items() if message.round_number == ANY_ROUND}

    def too_few(self, needed: int, round_number: int) -> list[Action]:
        """End the run if those who decline and those who were dropped leave too few clients for any round."""
        if self.num_left >= needed:
            return []
        reasons = {**self.dropped, **{c: message.reason for c, message in self._declined.items()}}
        lost = sorted(reasons.items())
        names = ", ".join(self._members[c].name for c, _ in lost)
        said = "; ".join(f"{self._members[c].name}: {reason[:_REASON_LETTERS]}" for c, reason in lost)
        return give_up(
            TooFewAnswers(
                f"{len(lost)} clients will not answer round {round_number}, so {self.num_left} are left, but {needed} "
                f"are needed. They are {names} ({said})",
                "see the logs of these clients; restore their folders, or the coordinator's, and start again",
            )
        )


def give_up(error: DresError) -> list[Action]:
    """End the run with an error."""
    return [log("ended", reason=str(error), hint=error.hint), Finish(error)]


class Rounds(ABC):
    """The coordinator's side of all rounds. It may return a Finish with an error: then the run is over."""

    @property
    @abstractmethod
    def number(self) -> int:
        """The current round."""

    @property
    @abstractmethod
    def rounds(self) -> int:
        """How many there are: an end comes after so many."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether all of them are over: from then on `final` is asked for, and nothing else."""

    @property
    def opened(self) -> bytes:
        """SHA-256 of what opened the model, by which a sum at the end names it; zeros where nothing did."""
        return bytes(32)

    @property
    @abstractmethod
    def wake_at(self) -> float | None:
        """When `tick` has to be called at the latest; None: no opening waits for anything."""

    @abstractmethod
    def ready(self, client: int, now: float) -> list[Action]:
        """A client has become ready. When enough are, the first round begins."""

    @abstractmethod
    def left(self, client: int, now: float) -> list[Action]:
        """A client's connection has ended."""

    @abstractmethod
    def begin(self, now: float) -> list[Action]:
        """The dealers have been checked. If enough clients are ready, the first round begins."""

    @abstractmethod
    def received(self, client: int, message: Message, now: float) -> list[Action]:
        """A message of a client that belongs to the rounds of this mode; MessageError if it does not."""

    @abstractmethod
    def current(self, round_number: int) -> bool:
        """Whether it is this round that clients are asked for now."""

    @abstractmethod
    def tick(self, now: float) -> list[Action]:
        """It is `wake_at`, or later."""

    @abstractmethod
    def final(self, client: int) -> list[Message]:
        """What tells a client that all rounds are over, with the model; nothing if it knows by itself."""
