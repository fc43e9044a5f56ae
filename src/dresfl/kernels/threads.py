"""How many threads torch uses, for a while."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set torch's thread count, and restore it however the block ends. 0 leaves it alone.

    >>> before = torch.get_num_threads()
    >>> with torch_threads(1):
    ...     inside = torch.get_num_threads()
    >>> (inside, torch.get_num_threads()) == (1, before)
    True
    """
    before = torch.get_num_threads()
    try:
        if count:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
