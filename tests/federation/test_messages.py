"""Messages: what one side writes the other reads, and nothing else."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import MessageError, Refused
from dresfl.federation import Introduction, Terms, largest_message, make_session, messages
from dresfl.federation.sealed_slices import most_sealed_bytes
from dresfl.protocol import Answer, Verdict, check_bytes
from dresfl.protocol.hidden.ledger import Position

from .setting import linear, squared
from .test_sum_messages import OPEN as OPEN_SUMS
from .test_sum_messages import WHOLE as WHOLE_SUMS

TERMS = Terms(b"n" * 32, b"r" * 16, b"o" * 16, (3, 5), (b"c" * 64, b"d" * 64))
FIXED = [  # every byte has its place
    messages.Ready(b"s" * 16, b"c" * 32),
    messages.Ack(1, 2**32 - 1),
    messages.Informed(2**32 - 1),
    messages.Request(2**16 - 1, 2**31),
    messages.Begin(b"g" * 64, TERMS),
    messages.Judged(Verdict((0, 4), (1, 2, 65535))),
    messages.Judged(Verdict()),
]
OPEN = [  # their last part may have any length
    messages.Hello(Introduction(7, b"c" * 64, b"n" * 32), b"h" * 16, b'{"seed":1}', b"instance"),
    messages.Holding(2, 0b1001),
    messages.Holding(2, 0),
    messages.Holding(1, 1 << 999),
    messages.Reject(1, 2, "it does not open"),
    messages.Declined(messages.ANY_ROUND, "a damaged store"),
    messages.Wait("2 of 5 clients are missing"),
    messages.Slice(3, 4, b"sealed"),
    messages.Relayed(3, 4, b"sealed"),
    messages.Answered(3, b"answer"),
    messages.Weights(b"task"),
    messages.Delta(4, 3, 1, b"d" * 32, b"z"),
    messages.Done(b"task"),
    messages.Checked((b"h" * 16, b"i" * 16), b"values"),
    messages.Check((b"c" * 32, b"d" * 32)),
]
ATTESTED = messages.Attested(b"g" * 64, messages.Checked((b"h" * 16,), b"values"))
HIDDEN = [  # of the hidden mode; those of sums have a file of their own
    ATTESTED,
    messages.HopAnswered(b"answer"),
    messages.Standing(5, 2, b"c" * 32, 3, b"g" * 64),
    messages.Confirmed(5, 2, b"c" * 32, b"g" * 64, b"sealed"),
    messages.Attestations((b"c" * 32, b"d" * 32), ((0, ATTESTED), (3, ATTESTED))),
    messages.Opened(5, 2, b"published"),
    messages.Resume(5, 2, b"c" * 32, b"history"),
    messages.Confirmations(Position(5, 2, b"c" * 32), ((0, b"g" * 64, b"seal"), (2, b"h" * 64, b"also"))),
    messages.Alarm("a value was falsified"),
    messages.Started(((0, b"g" * 64), (4, b"h" * 64))),
]
SUMS = (*WHOLE_SUMS, *OPEN_SUMS)
KINDS = [*messages.FROM_CLIENT, *messages.FROM_COORDINATOR]


def name(value):
    return type(value).__name__ if isinstance(value, messages.Message) else value.__name__


@pytest.mark.parametrize("message", FIXED + OPEN, ids=name)
def test_round_trip(message):
    decoded = messages.decode(message.encode(), (type(message),))
    assert type(decoded) is type(message)
    assert vars(decoded) == vars(message)
    assert decoded.encode() == message.encode()


@pytest.mark.parametrize("message", HIDDEN, ids=name)
def test_round_trip_of_the_hidden_mode(message):
    decoded = messages.decode(message.encode(), (type(message),))
    assert type(decoded) is type(message)
    assert decoded.encode() == message.encode()


def test_every_kind_has_an_example_and_a_number_of_its_own():
    assert {type(message) for message in (*FIXED, *OPEN, *HIDDEN, *SUMS)} == set(KINDS)
    assert len({kind.KIND for kind in KINDS}) == len(KINDS)


def test_only_weights_are_replaced_by_newer_ones():
    """Any other message says something that a later one does not."""
    assert [kind for kind in KINDS if kind.newest_only] == [messages.Weights]


@pytest.mark.parametrize("message", [*FIXED, *OPEN, *HIDDEN, *SUMS], ids=name)
def test_a_message_of_the_other_side_is_refused(message):
    other = messages.FROM_COORDINATOR if type(message) in messages.FROM_CLIENT else messages.FROM_CLIENT
    with pytest.raises(MessageError, match=f"kind {message.KIND} came"):
        messages.decode(message.encode(), other)


@pytest.mark.parametrize("number", [0, 15, 31, 43, 255])
def test_a_kind_that_does_not_exist_is_refused(number):
    for kinds in (messages.FROM_CLIENT, messages.FROM_COORDINATOR):
        with pytest.raises(MessageError, match=f"kind {number} came"):
            messages.decode(bytes([number]) + bytes(100), kinds)
    with pytest.raises(MessageError, match="empty"):
        messages.decode(b"", messages.FROM_CLIENT)


@pytest.mark.parametrize("message", FIXED, ids=name)
def test_what_has_a_fixed_length_has_no_other(message):
    data = message.encode()
    for cut in range(1, len(data)):
        with pytest.raises(MessageError):
            messages.decode(data[:cut], (type(message),))
    with pytest.raises(MessageError):
        messages.decode(data + b"\0", (type(message),))


@pytest.mark.parametrize(
    ("message", "head"),
    [
        (OPEN[0], 125),
        (OPEN[1], 2),
        (OPEN[4], 6),
        (OPEN[5], 4),
        (OPEN[7], 6),
        (OPEN[8], 6),
        (OPEN[9], 4),
        (OPEN[11], 41),
    ],
    ids=lambda value: name(value) if isinstance(value, messages.Message) else "",
)
def test_a_head_that_is_cut_is_refused(message, head):
    data = message.encode()
    for cut in range(1, 1 + head):
        with pytest.raises(MessageError):
            messages.decode(data[:cut], (type(message),))
    messages.decode(data[: 1 + head], (type(message),))


@pytest.mark.parametrize("kind", KINDS, ids=name)
@given(body=st.binary(max_size=300))
def test_foreign_bytes_are_read_or_refused(kind, body):
    try:
        message = messages.decode(bytes([kind.KIND]) + body, (kind,))
    except (MessageError, Refused):
        return
    assert type(message) is kind


@given(st.binary(max_size=2000))
def test_any_bytes_at_all(data):
    for kinds in (messages.FROM_CLIENT, messages.FROM_COORDINATOR):
        with contextlib.suppress(MessageError, Refused):
            messages.decode(data, kinds)


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**300))
def test_holdings_keep_every_bit(dealer, held):
    assert messages.decode(messages.Holding(dealer, held).encode(), (messages.Holding,)) == messages.Holding(
        dealer, held
    )


def test_another_version_is_named():
    data = bytearray(OPEN[0].encode())
    data[1] = 1
    with pytest.raises(MessageError, match="version 1 of the protocol, this coordinator version 5") as caught:
        messages.decode(bytes(data), (messages.Hello,))
    assert "same release" in caught.value.hint
    with pytest.raises(MessageError, match="version 9"):  # whatever else that version says
        messages.decode(bytes([1, 9]), (messages.Hello,))


def test_a_client_without_rows_is_a_helper():
    data = bytearray(OPEN[0].encode())
    data[2:6] = bytes(4)
    assert messages.decode(bytes(data), (messages.Hello,)).introduction.rows == 0


def test_limits():
    hello = OPEN[0].encode()[:126]
    messages.decode(hello + bytes(messages.AGREEMENT_BYTES), (messages.Hello,))
    with pytest.raises(MessageError, match="too long"):
        messages.decode(hello + bytes(messages.AGREEMENT_BYTES + 1), (messages.Hello,))
    holding = bytes([messages.Holding.KIND, 0, 0])
    messages.decode(holding + bytes(messages.HOLDING_BYTES), (messages.Holding,))
    with pytest.raises(MessageError, match="too long"):
        messages.decode(holding + bytes(messages.HOLDING_BYTES + 1), (messages.Holding,))
    for kind in (bytes([messages.Wait.KIND]), bytes([messages.Reject.KIND]) + bytes(6)):
        messages.decode(kind + b"x" * messages.TEXT_BYTES, (messages.Wait, messages.Reject))
        with pytest.raises(MessageError, match="too long"):
            messages.decode(kind + b"x" * (messages.TEXT_BYTES + 1), (messages.Wait, messages.Reject))


def test_own_texts_are_cut():
    for message in (messages.Wait("ü" * 5000), messages.Reject(0, 0, "ü" * 5000)):
        decoded = messages.decode(message.encode(), (type(message),))
        text = decoded.text if isinstance(decoded, messages.Wait) else decoded.reason
        assert 400 < len(text) <= messages.TEXT_BYTES
    assert messages.decode(bytes([16]) + b"\xff\xfe", (messages.Wait,)).text == "\ufffd\ufffd"


@pytest.mark.parametrize("setting", [linear, squared])
def test_no_message_is_larger_than_the_largest(setting):
    agreement, session = setting().agreement, setting().session
    most = largest_message(agreement)
    answer = messages.Answered(0, bytes(Answer.size(session.field, session.network.num_parameters)))
    terms = Terms(bytes(32), bytes(16), bytes(16), session.client_rows, (bytes(64),) * session.num_clients)
    for message in (
        answer,
        messages.Slice(0, 0, bytes(most_sealed_bytes(make_session(agreement, (999,) * session.num_clients, b"", b"")))),
        messages.Hello(Introduction(1, bytes(64)), bytes(16), bytes(messages.AGREEMENT_BYTES)),
        messages.Holding(0, 1 << (8 * messages.HOLDING_BYTES - 1)),
        messages.Begin(bytes(64), terms),
        messages.Reject(0, 0, "x" * 5000),
        messages.Checked((bytes(16),) * len(session.seed_sets.sets), bytes(session.num_clients * check_bytes(session))),
        messages.Check((bytes(32),) * session.num_clients),
    ):
        assert len(message.encode()) <= most
