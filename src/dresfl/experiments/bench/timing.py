"""How calls are timed against each other on a machine that other work may share, and how their growth is fitted."""

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar, final

import torch

Call = Callable[[], object]
Key = TypeVar("Key")


@final
@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median of its turns, the best of them, and how many there were."""

    median: float
    best: float
    runs: int

    def per(self, units: int) -> "Timing":
        """The same for one of the `units` things that a call did."""
        return Timing(self.median / units, self.best / units, self.runs)


def interleaved(
    calls: Mapping[Key, Call],
    seconds: float,
    *,
    device: str = "cpu",
    least: int = 3,
    turn: float = 2e-3,
    cold: Collection[Key] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Key, Timing]:
    """Time calls in turns, A, B, A, B, …, for about `seconds`: what slows the machine for a while slows all alike.

    Each call gets at least `least` turns, however long they take; a call shorter than `turn` seconds is repeated within
    its turn. Each call except those in `cold` is run once before, untimed. clock: `time.process_time` counts only what
    this process did, for one thread on a machine with much other work.
    """
    repeats = dict.fromkeys(calls, 1)
    for key, call in calls.items():
        if key not in cold:
            call()  # compiles, fills caches
            repeats[key] = max(1, math.ceil(turn / max(1e-9, _seconds(call, 1, device, clock))))
    found: dict[Key, list[float]] = {key: [] for key in calls}
    end = time.perf_counter() + seconds
    turns = 0
    while turns < least or time.perf_counter() < end:
        for key, call in calls.items():
            found[key].append(_seconds(call, repeats[key], device, clock))
        turns += 1
    return {key: Timing(statistics.median(times), min(times), turns) for key, times in found.items()}


def _seconds(call: Call, repeats: int, device: str, clock: Callable[[], float]) -> float:
    """Seconds of one call, from `repeats` of them; on a GPU, until it has finished."""
    _wait(device)
    start = clock()
    for _ in range(repeats):
        call()
    _wait(device)
    return (clock() - start) / repeats


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def growth_exponent(points: Mapping[str, float]) -> float:
    """e of the fit seconds ~ size^e: the least-squares slope of log(seconds) over log(size).

    >>> round(growth_exponent({"1": 3.0, "2": 12.0, "4": 48.0}), 9)
    2.0
    """
    sizes = [math.log(int(size)) for size in points]
    return statistics.linear_regression(sizes, [math.log(seconds) for seconds in points.values()]).slope
