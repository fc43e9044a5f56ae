"""How the time of each stage grows with the number of clients, shards, colluders, the width and the batch."""

from dataclasses import dataclass, replace
from typing import Any, Literal, final

from . import stages
from .stages import Setting
from .timing import Call, Timing, growth_exponent, interleaved

STAGES = ("encode", "gradient", "decode", "round")

_SIZES = {"clients": "num_clients", "shards": "num_shards", "colluders": "max_colluders", "batch": "batch_size"}


@final
@dataclass(frozen=True)
class Sweep:
    """One size that varies, all else fixed at `base`."""

    name: Literal["clients", "shards", "colluders", "width", "batch"]
    sizes: tuple[int, ...]
    base: Setting

    def at(self, size: int) -> Setting:
        """The setting at one size."""
        if self.name in _SIZES:
            return replace(self.base, code=replace(self.base.code, **{_SIZES[self.name]: size}))
        first, *hidden, last = self.base.layers
        return replace(self.base, layers=(first, *[size] * len(hidden), last))


def measure_growth(sweep: Sweep, device: str, seconds: float) -> dict[str, Any]:
    """Each stage's fitted exponent, and under `points` the seconds at every size; `seconds` is spent on each stage.

    The stages: one batch's shares for all N clients, block by block; one client's gradient; decode and lift of R
    answers; a round.
    """
    exponents: dict[str, Any] = {}
    points: dict[str, dict[str, float]] = {}
    for stage in STAGES:
        timings = _stage(stage, sweep, device, seconds)
        exponents[stage] = growth_exponent({size: timing.median for size, timing in timings.items()})
        points[stage] = {str(size): timing.median for size, timing in timings.items()}
    return exponents | {"points": points}


def _stage(stage: str, sweep: Sweep, device: str, seconds: float) -> dict[int, Timing]:
    """All sizes of one stage, in turns."""
    calls: dict[int, Call] = {}
    units = dict.fromkeys(sweep.sizes, 1)
    for size in sweep.sizes:
        session = sweep.at(size).session(device)
        if stage == "round":
            calls[size], units[size] = stages.rounds(session)
        else:
            calls[size] = {"encode": stages.deal, "gradient": stages.gradient, "decode": stages.decode}[stage](session)
    timings = interleaved(calls, seconds, device=device)
    return {size: timing.per(units[size]) for size, timing in timings.items()}
