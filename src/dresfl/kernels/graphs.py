"""CUDA graphs: a sequence of GPU operations recorded once and replayed without the host."""

from collections.abc import Callable

import torch


def capture_graph(work: Callable[[], None], *, warm_ups: int, before_each: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Record `work` as a graph. It is first played `warm_ups` times, each time after `before_each`.

    Libraries set themselves up on their first calls, which capture would forbid. The warm-ups change the tensors that
    `work` writes to: the caller sets them again before the first replay.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_ups):
            before_each()
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU meanwhile
        work()
    return graph
