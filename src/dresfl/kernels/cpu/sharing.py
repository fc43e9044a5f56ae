"""How threads share one call of a compiled kernel: they claim pieces of it until none is left.

The calling thread works too, and takes whatever the others have not claimed. So a call never waits for a thread that
has not begun; it waits at most for the piece that another thread is at. A thread that the machine does not let run
costs that wait, so after a long one the next calls go without help.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import lru_cache
from typing import final

import torch
from torch import Tensor

# Pieces for each thread: more of them balance better and cost more hand-overs (2 to 3 µs each).
_PIECES = 8

# A wait for another thread is too long beyond this share of the call, if it is not within the first number of seconds.
_SHORT_WAIT = 3e-4
_LONG_SHARE = 0.25
_CALLS_ALONE = 50


# How many threads share a call; 0: as many as torch has.
_threads: ContextVar[int] = ContextVar("threads", default=0)


@contextlib.contextmanager
def kernels_alone_share() -> Iterator[None]:
    """Torch works on one thread in this block; the compiled kernels keep the number that torch had.

    Torch splits every operation on 2^15 values or more, and its threads go on spinning after each. Between short
    operations they take the cores that the kernels' threads need: two threads were slower than one.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    token = _threads.set(_threads.get() or before)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _threads.reset(token)


@final
class _Helpers:
    """The threads beside the calling one, and for how many calls they are left out."""

    def __init__(self, count: int) -> None:
        self.pool = ThreadPoolExecutor(count, thread_name_prefix="dresfl")
        self.count = count
        self.calls_alone = 0


@lru_cache(maxsize=8)
def _helpers(count: int, process: int) -> _Helpers:
    """process: a forked child has none of its parent's threads."""
    return _Helpers(count)


def share(kernel: Callable[..., None], units: int, large: bool, numbers: tuple[float, ...], *tensors: Tensor) -> None:
    """kernel(first, last, *numbers, *addresses of tensors) over [0, units), on several threads if `large`."""
    arguments = (*numbers, *[tensor.data_ptr() for tensor in tensors])
    threads = min(_threads.get() or torch.get_num_threads(), units) if large else 1
    helpers = _helpers(threads - 1, os.getpid()) if threads > 1 else None
    if helpers is None or helpers.calls_alone > 0:
        if helpers is not None:
            helpers.calls_alone -= 1
        kernel(0, units, *arguments)
        return
    pieces = min(units, _PIECES * threads)
    claims = iter(range(pieces))  # one for all threads: the interpreter hands out each number once

    def work(claims: Iterator[int]) -> None:
        for piece in claims:
            kernel(units * piece // pieces, units * (piece + 1) // pieces, *arguments)

    start = time.perf_counter()
    others = [helpers.pool.submit(work, claims) for _ in range(helpers.count)]
    try:
        work(claims)
    finally:  # interrupted or not: nobody may be at work on these tensors any more
        done = time.perf_counter()
        for other in others:
            if not other.cancel():
                other.result()
    waited = time.perf_counter() - done
    if waited > max(_SHORT_WAIT, _LONG_SHARE * (done - start)):
        helpers.calls_alone = _CALLS_ALONE
