"""How the time of each stage grows with the number of clients, shards, colluders, the width and the batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, final

from dresfl.protocol import Session

from . import stages
from .stages import Setting
from .timing import Call, growth_exponent, interleaved

STAGES: dict[str, Callable[[Session], tuple[Call, int]]] = {
    "encode": lambda session: (stages.deal(session), 1),
    "gradient": lambda session: (stages.gradient(session), 1),
    "decode": lambda session: (stages.decode(session), 1),
    "round": stages.rounds,
}
"""What is timed of each stage, and how many times a call does it."""

_SIZES = {
    "clients": ("num_clients",),
    "shards": ("num_shards",),
    "colluders": ("max_colluders",),
    "shards and colluders": ("num_shards", "max_colluders"),
    "batch": ("batch_size",),
}


@final
@dataclass(frozen=True)
class Sweep:
    """One size that varies, all else fixed at `base`."""

    name: Literal["clients", "shards", "colluders", "shards and colluders", "width", "batch"]
    sizes: tuple[int, ...]
    base: Setting

    def at(self, size: int) -> Setting:
        """The setting at one size."""
        if self.name in _SIZES:
            return replace(self.base, code=replace(self.base.code, **dict.fromkeys(_SIZES[self.name], size)))
        first, *hidden, last = self.base.layers
        return replace(self.base, layers=(first, *[size] * len(hidden), last))


def measure_growth(sweep: Sweep, device: str, seconds: float) -> dict[str, Any]:
    """Each stage's fitted exponent, and under `points` the seconds at every size; `seconds` is spent on each stage.

    The stages: one batch's shares for all N clients, block by block; one client's gradient; decode and lift of R
    answers; a round. All sizes of a stage are timed in turns.
    """
    points: dict[str, dict[str, float]] = {}
    for stage, make in STAGES.items():
        calls = {str(size): make(sweep.at(size).session(device)) for size in sweep.sizes}
        timings = interleaved({size: call for size, (call, _) in calls.items()}, seconds, device=device)
        points[stage] = {size: timings[size].median / units for size, (_, units) in calls.items()}
    return {**{stage: growth_exponent(found) for stage, found in points.items()}, "points": points}
