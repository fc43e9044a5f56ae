"""What the coordinator is told, counts, and knows of its run and of each connection."""

from dataclasses import dataclass, field
from typing import final

from dresfl.errors import MessageError, UsageError
from dresfl.protocol import Session

from .checking import Checking
from .messages import NO_INSTANCE, Hello
from .opening import RoundTiming
from .relay import Relay, Windows
from .rounds import Rounds
from .terms import Terms


@final
@dataclass(frozen=True)
class CoordinatorSettings:
    """How long the coordinator waits, and what it allows itself."""

    timing: RoundTiming = field(default_factory=RoundTiming)
    linger: float = 30.0  # seconds to wait at the end for clients that have not heard of it
    windows: Windows = field(default_factory=Windows)

    def __post_init__(self) -> None:
        if self.linger < 0 or min(self.windows.asked_bytes, self.windows.sent_bytes, self.windows.stored_bytes) < 1:
            raise UsageError("linger must not be negative, and the relay's bytes must be positive")


@final
@dataclass
class Counters:
    """What happened so far, for the log and the metrics."""

    answers: int = 0
    late: int = 0
    invalid: int = 0
    shortages: int = 0
    liars: int = 0  # answers that were found to be false
    refusals: int = 0
    last_answered: dict[int, int] = field(default_factory=dict)  # client -> round


@final
@dataclass
class ConnectionState:
    """What the coordinator knows of one connection of a client."""

    hello_until: float
    replaced: bytes = NO_INSTANCE  # the client's process that was connected when this connection came
    hello: Hello | None = None
    begun: bool = False
    joined: bool = False  # it has accepted the terms: only now is it asked for slices, or sent any
    ready: bool = False


@final
@dataclass(frozen=True)
class Running:
    """What there is once the terms are settled. Either the dealers are to be checked, or there are rounds."""

    terms: Terms
    session: Session
    relay: Relay
    checking: Checking | None
    made_rounds: Rounds | None

    @property
    def rounds(self) -> Rounds:
        if self.made_rounds is None:
            raise MessageError("the dealers have not been checked yet")
        return self.made_rounds
