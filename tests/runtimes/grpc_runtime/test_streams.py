"""Bundles of messages, and parts of a stream that run side by side."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import MessageError
from dresfl.federation.messages import Ack, Holding, Message, Ready, Slice
from dresfl.runtimes.grpc_runtime.streams import BUNDLE_BYTES, BUNDLE_MESSAGES, bundle, first_of, unbundle

MESSAGES: list[Message] = [
    Ready(bytes(16), bytes(32)),
    Ack(1, 2),
    Holding(3, 0),
    Slice(1, 2, b""),
    Slice(1, 2, bytes(1000)),
]


@given(messages=st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=20))
def test_a_bundle_holds_its_messages_in_order(messages: list[Message]) -> None:
    found = unbundle(bundle(messages))
    assert [bytes(data) for data in found] == [message.encode() for message in messages]
    assert [len(message.encode()) for message in messages] == list(map(len, found))


@given(data=st.binary(max_size=40))
def test_a_bundle_that_fits_is_taken_and_any_other_refused(data: bytes) -> None:
    try:
        found = unbundle(data)
    except MessageError:
        return
    assert b"".join(len(message).to_bytes(4, "little") + message for message in found) == data
    assert all(found)


@pytest.mark.parametrize(
    "data", [b"", bytes(3), bytes(4), b"\1\0\0\0", b"\1\0\0\0xx", b"\2\0\0\0x", b"\xff\xff\xff\xff" + bytes(99)]
)
def test_lengths_that_do_not_fit(data: bytes) -> None:
    with pytest.raises(MessageError):
        unbundle(data)


def test_a_bundle_has_only_so_many_messages() -> None:
    """A megabyte of messages of one byte would be 44 MB of what refers to them."""
    one = b"\1\0\0\0x"
    assert len(unbundle(one * BUNDLE_MESSAGES)) == BUNDLE_MESSAGES
    with pytest.raises(MessageError, match="more than"):
        unbundle(one * (BUNDLE_MESSAGES + 1))
    long = bundle([Slice(1, 2, bytes(2 * BUNDLE_BYTES))])
    assert len(unbundle(one + long)) == 2
    with pytest.raises(MessageError, match="goes on after"):
        unbundle(long + one)


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
