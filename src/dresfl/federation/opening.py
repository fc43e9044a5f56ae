"""The opening: every client gives the value of one polynomial at its own point; enough of the values decode it.

A round of training is one opening, that of the gradient. Here is what an opening needs of time: who has answered, until
when the others may, and what happens if too few do. It has no clock: times come in as numbers of seconds.
"""

from dataclasses import dataclass, field
from typing import Literal, final

from dresfl.errors import UsageError
from dresfl.protocol import RoundRecord


@final
@dataclass(frozen=True)
class RoundTiming:
    """How long an opening waits, and what it does when too few clients answer."""

    grace: float = 0.0  # seconds for slower clients after enough have answered
    deadline: float = 120.0  # seconds until too few answers are called a shortage
    on_shortage: Literal["retry", "skip"] = "retry"

    def __post_init__(self) -> None:
        if self.grace < 0 or not self.deadline > 0:
            raise UsageError("grace must not be negative, and deadline must be positive")
        if self.on_shortage not in ("retry", "skip"):
            raise UsageError(f"on_shortage = {self.on_shortage!r} is not known", "use retry or skip")


@final
@dataclass
class Opening:
    """One opening: its number, the time by which enough clients must have answered, and who has."""

    number: int
    until: float
    answered: set[int] = field(default_factory=set)
    record: RoundRecord | None = None  # how it ended; then `until` is the end of the grace for slower clients

    def takes(self, client: int, number: int) -> bool:
        """Whether an answer to the opening of this number still counts; else it is late, or the client's second."""
        return number == self.number and client not in self.answered

    def close(self, record: RoundRecord, until: float) -> None:
        """Enough clients have answered, or it was given up. Until then answers are counted, and dropped."""
        self.record, self.until = record, until
