"""Parts of a stream that run side by side."""

import asyncio

import pytest

from dresfl.runtimes.grpc_runtime.streams import first_of


def test_the_first_to_end_decides() -> None:
    stopped = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)
            raise ValueError("said while being stopped, and of no interest")

    async def fails() -> None:
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        asyncio.run(first_of(waits(), fails()))
    assert stopped


def test_who_is_stopped_while_stopping_others_stops() -> None:
    """SIGTERM may come at any moment: also when a connection has just ended, and its other parts are still ending."""

    async def run() -> None:
        ending, may_end = asyncio.Event(), asyncio.Event()

        async def ends_slowly() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await may_end.wait()

        async def ends() -> None:
            pass

        async def outer() -> None:
            await first_of(ends_slowly(), ends())
            raise AssertionError("it went on")

        task = asyncio.create_task(outer())
        await ending.wait()
        task.cancel()
        await asyncio.wait({task}, timeout=30)
        may_end.set()
        assert task.cancelled()

    asyncio.run(run())
