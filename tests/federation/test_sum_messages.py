"""The messages of a sum: what one side writes the other reads, and nothing else."""

import pytest

from dresfl.errors import MessageError
from dresfl.federation import messages

WHOLE = [  # every byte has its place
    messages.Counted(
        b"s" * 16,
        ((0, b"sealed"), (2, b"")),
    ),
    messages.Counted(b"s" * 16, ()),
    messages.SetSigned(b"s" * 16, b"g" * 64, (0, 3, 65535)),
    messages.DealersOf(b"s" * 16, (0, 1), ((0, b"x" * 9), (1, b"y"))),
    messages.Release(b"s" * 16, (0, 1, 2), ((1, b"g" * 64), (4, b"h" * 64)), ((0, b"x"), (7, b"y"))),
    messages.TotalsOf(b"s" * 16, (), ()),
]
OPEN = [  # their last part may have other lengths
    messages.Added(b"s" * 16, b"residues"),
    messages.TotalsOf(b"s" * 16, (0, 1, 2), (-1, 2**62)),
]


def name(value):
    return type(value).__name__


@pytest.mark.parametrize("message", WHOLE + OPEN, ids=name)
def test_round_trip(message):
    kinds = messages.FROM_CLIENT if type(message) in messages.FROM_CLIENT else messages.FROM_COORDINATOR
    decoded = messages.decode(message.encode(), kinds)
    assert type(decoded) is type(message)
    assert decoded.encode() == message.encode()


@pytest.mark.parametrize("message", WHOLE, ids=name)
def test_what_has_its_length_has_no_other(message):
    data = message.encode()
    for cut in range(1, len(data)):
        with pytest.raises(MessageError):
            messages.decode(data[:cut], (type(message),))
    with pytest.raises(MessageError):
        messages.decode(data + b"\0", (type(message),))


@pytest.mark.parametrize(
    "message",
    [
        messages.Counted(b"s" * 16, ((2, b"a"), (1, b"b"))),
        messages.Counted(b"s" * 16, ((1, b"a"), (1, b"b"))),
        messages.SetSigned(b"s" * 16, b"g" * 64, (3, 1)),
        messages.DealersOf(b"s" * 16, (1, 1), ()),
        messages.Release(b"s" * 16, (0, 1), ((4, b"g" * 64), (1, b"h" * 64)), ()),
        messages.Release(b"s" * 16, (0, 1), (), ((4, b""), (1, b""))),
        messages.TotalsOf(b"s" * 16, (2, 1), ()),
    ],
    ids=name,
)
def test_lists_of_clients_ascend(message):
    with pytest.raises(MessageError, match="order"):
        messages.decode(message.encode(), (type(message),))
