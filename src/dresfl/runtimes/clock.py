"""The wall clock, which people set and certificates go by, looked at now and then.

Rounds, deadlines and pauses go by the steady clock and do not notice when somebody sets the other one. But certificates
end by the wall clock, and log lines have its time. So a jump is logged, and so is the end of the own certificate.
"""

import time
from collections.abc import Callable
from typing import final

from .log import Log

LOOK_SECONDS = 5.0  # between two looks
_JUMP_SECONDS = 1.0  # less is a clock that is being corrected little by little
_WARNING_DAYS = 30.0
_DAY = 86400.0


@final
class ClockWatch:
    """Compares the wall clock with the steady one, and with the end of the own certificate."""

    def __init__(
        self,
        log: Log,
        valid_until: float,
        then: str,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """valid_until: the end of the own certificate, in seconds since 1970. then: what follows from it, in words."""
        self._log, self._valid_until, self._then = log, valid_until, then
        self._wall, self._steady = wall, steady
        self._ahead = wall() - steady()
        self._said: tuple[str, int] | None = None

    def look(self) -> None:
        """Log what has changed since the last look."""
        ahead = self._wall() - self._steady()
        jump, self._ahead = ahead - self._ahead, ahead
        if abs(jump) >= _JUMP_SECONDS:
            why = "the clock was set, or the machine slept; rounds go by another clock"
            self._log("clock jumped", seconds=round(jump, 3), reason=why)
        days = (self._valid_until - self._wall()) / _DAY
        said = None if days > _WARNING_DAYS else ("expired", 0) if days <= 0 else ("expires", int(days))
        if said not in (None, self._said):
            if days <= 0:
                self._log("certificate expired", then=self._then, hint="renew it with the same key, and start again")
            else:
                self._log(
                    "certificate expires", days=round(days, 1), hint="renew it with the same key (dresfl ca sign)"
                )
        self._said = said
