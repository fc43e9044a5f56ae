"""Valid inputs with a few changes, as hypothesis draws them, and the words that a search may put into an input."""

import re
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

# What stands where something else is expected: in JSON, in TOML, and in files of bytes.
STRANGE_VALUES = [
    b"-1",
    b"0",
    b"1e400",
    b"-0.0",
    b"NaN",
    b"null",
    b"true",
    b'""',
    b"[]",
    b"{}",
    b"[[[[]]]]",
    b'{"a":1}',
    b"{a = 1}",
    b'"\\u0000"',
    b'"\\ud800"',
    b'"~nobody/x"',
    b"9" * 30,
    b"0x" + b"f" * 5000,
    b"9" * 5000,
    b"1979-05-27",
]
STRANGE_NUMBERS = [
    (value % 256**size).to_bytes(size, order)
    for size in (1, 2, 4, 8)
    for value in (0, 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), -1)
    for order in ("little", "big")
]
_VALUE = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?\d[\w.+-]*|true|false|null|\[[^][]*\]|\{[^{}]*\}')


def _flipped(data: bytes, place: int, choose: Callable[[int], int], other: bytes) -> bytes:
    return data[:place] + bytes([choose(256)]) + data[place + 1 :]


def _cut(data: bytes, place: int, choose: Callable[[int], int], other: bytes) -> bytes:
    return data[:place]


def _left_out(data: bytes, place: int, choose: Callable[[int], int], other: bytes) -> bytes:
    return data[:place] + data[place + 1 + choose(16) :]


def _doubled(data: bytes, place: int, choose: Callable[[int], int], other: bytes) -> bytes:
    return data[:place] + data[place : place + 1 + choose(64)] + data[place:]


def _spliced(data: bytes, place: int, choose: Callable[[int], int], other: bytes) -> bytes:
    return data[:place] + other[choose(len(other) + 1) :]


def _overwritten(data: bytes, place: int, choose: Callable[[int], int], other: bytes) -> bytes:
    number = STRANGE_NUMBERS[choose(len(STRANGE_NUMBERS))]
    return data[:place] + number + data[place + len(number) :]


def _another_value(data: bytes, place: int, choose: Callable[[int], int], other: bytes) -> bytes:
    """One value of a text is replaced by a strange one."""
    values = list(_VALUE.finditer(data))
    if not values:
        return data
    value, strange = values[choose(len(values))], STRANGE_VALUES[choose(len(STRANGE_VALUES))]
    return data[: value.start()] + strange + data[value.end() :]


_CHANGES = (_flipped, _cut, _left_out, _doubled, _spliced, _overwritten, _another_value, _another_value)


@st.composite
def mutated(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """A sample with one to four changes."""
    data = draw(st.sampled_from(list(samples)))
    for change in draw(st.lists(st.sampled_from(_CHANGES), min_size=1, max_size=4)):
        place, other = draw(st.integers(0, len(data))), draw(st.sampled_from(list(samples)))
        data = change(data, place, lambda count: draw(st.integers(0, count - 1)), other)
    return data
