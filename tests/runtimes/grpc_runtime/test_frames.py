"""Frames: what one side writes the other reads, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import MessageError
from dresfl.federation import Terms
from dresfl.runtimes.grpc_runtime import frames

EXAMPLES = [
    frames.Hello(b"a" * 32, 7, b"c" * 32, b"n" * 32, b"h" * 16),
    frames.Ready(b"s" * 16),
    frames.Begin(b"g" * 64, Terms(b"n" * 32, b"r" * 16, b"o" * 16, (3, 5), (b"c" * 32, b"d" * 32))),
    frames.Wait("2 of 5 clients are missing"),
    frames.Open(b"s" * 16),
    frames.Request(3, 2**31),
    frames.Holding(2, frozenset({0, 9, 64})),
    frames.Holding(2, frozenset()),
    frames.Ack(1, 2),
    frames.Reject(1, 2, "it does not open"),
]
OPAQUE = [frames.Reply(3, b"x"), frames.Weights(b"x"), frames.Delta(4, 3, 1, b"d" * 32, b"z"), frames.Done(b"x")]
OPAQUE += [frames.Slice(3, 4, b"sealed")]
KINDS = sorted({type(frame) for frame in EXAMPLES + OPAQUE}, key=lambda kind: kind.KIND)


@pytest.mark.parametrize("frame", EXAMPLES, ids=lambda frame: type(frame).__name__)
def test_round_trip(frame: frames.Hello) -> None:
    assert frames.decode(frame.encode(), type(frame)) == frame


@pytest.mark.parametrize("frame", OPAQUE, ids=lambda frame: type(frame).__name__)
def test_round_trip_of_payloads(frame: frames.Slice) -> None:
    assert vars(frames.decode(frame.encode(), type(frame))) == vars(frame)


def test_kinds_differ() -> None:
    assert len({kind.KIND for kind in KINDS}) == len(KINDS) == 14


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(body=st.binary(max_size=300))
def test_foreign_bytes_are_read_or_refused(kind: type[frames.Hello], body: bytes) -> None:
    try:
        frame = frames.decode(bytes([kind.KIND]) + body, kind)
    except MessageError:
        return
    assert isinstance(frame, kind)


@pytest.mark.parametrize("frame", EXAMPLES, ids=lambda frame: type(frame).__name__)
def test_cut_or_lengthened(frame: frames.Hello) -> None:
    """Frames of fixed size have that size."""
    if isinstance(frame, (frames.Wait, frames.Holding, frames.Reject)):
        pytest.skip("of any length")
    for data in (frame.encode()[:-1], frame.encode() + b"\0"):
        with pytest.raises(MessageError):
            frames.decode(data, type(frame))


def test_texts_are_cut() -> None:
    frame = frames.decode(frames.Wait("ü" * 5000).encode(), frames.Wait)
    assert len(frame.text) <= frames.TEXT_BYTES
