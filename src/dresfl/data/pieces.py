"""Work on many rows, piece by piece, over torch's threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

# Values in a piece: few enough for a processor's caches, enough to be worth a thread's start.
_PIECE = 2**19


def map_rows(work: Callable[[slice], None], num_rows: int, row_width: int) -> None:
    """Call `work` with slices that together are all rows, from as many threads as torch uses.

    One thread does each piece from beginning to end. torch's own way puts all threads on each operation, and they wait
    for each other after every one. On a machine with other work that takes several times as long.
    """
    step = max(1, _PIECE // row_width)
    pieces = [slice(start, start + step) for start in range(0, num_rows, step)]
    threads = torch.get_num_threads()
    if threads == 1 or len(pieces) == 1:
        for piece in pieces:
            work(piece)
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            for _ in pool.map(work, pieces):
                pass
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
