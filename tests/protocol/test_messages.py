"""Messages survive their bytes; anything else is refused with MessageError and nothing else."""

import struct

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dresfl.coding import CodeParameters
from dresfl.errors import MessageError
from dresfl.field import PackedResidues, choose_moduli
from dresfl.model import Dense, Network
from dresfl.protocol import Answer, Session, Share, Task

NETWORK = Network((Dense(2),), (3,), 2, 4)


def session_with(limit):
    clients = (4, 1, 3, 5)
    needed = Session(NETWORK, CodeParameters(4, batch_size=2), clients, seed=3).needed_bits
    return Session(
        NETWORK,
        CodeParameters(4, batch_size=2),
        clients,
        seed=3,
        moduli=choose_moduli(needed, more_than=6, limit=limit),
    )


# one, two and three bytes a residue
SESSIONS = [session_with(limit) for limit in (256, 2**16, 2**24)]
sessions = st.sampled_from(SESSIONS)
HEADER = 18


def residues(draw, session, *shape):
    columns = [
        draw(
            st.lists(
                st.integers(-(p // 2), p // 2), min_size=torch.Size(shape).numel(), max_size=torch.Size(shape).numel()
            )
        )
        for p in session.field.moduli
    ]
    return torch.tensor(columns, dtype=torch.float64).view(-1, *shape)


@st.composite
def messages(draw):
    session = draw(sessions)
    kind = draw(st.sampled_from([Share, Task, Answer]))
    if kind is Share:
        dealer, receiver = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        first = draw(st.integers(0, session.coded_rows(dealer) - 1))
        rows = draw(st.integers(1, session.coded_rows(dealer) - first))
        return session, Share(dealer, receiver, first, residues(draw, session, rows, session.row_width))
    round_number = draw(st.integers(0, 2**32 - 1))
    size = session.network.num_parameters
    if kind is Answer:
        return session, Answer(round_number, draw(st.integers(0, 3)), residues(draw, session, size))
    word = st.integers(-(2**31) + 1, 2**31 - 1)
    return session, Task(round_number, torch.tensor(draw(st.lists(word, min_size=size, max_size=size))))


def fields(message):
    parts = {name: v.unpack() if isinstance(v, PackedResidues) else v for name, v in vars(message).items()}
    return {name: v.tolist() if isinstance(v, torch.Tensor) else v for name, v in parts.items()}


@given(messages())
def test_decode_undoes_encode(drawn):
    session, message = drawn
    data = message.encode(session)
    assert fields(type(message).decode(data, session)) == fields(message)
    assert type(message).decode(data, session).encode(session) == data


@given(messages())
def test_the_header_is_version_kind_session(drawn):
    session, message = drawn
    data = message.encode(session)
    assert data[:2] == bytes([2, {Share: 1, Task: 2, Answer: 3}[type(message)]])
    assert data[2:18] == (session.sharing_id if isinstance(message, Share) else session.session_id)


@given(messages())
def test_every_truncation_is_refused(drawn):
    session, message = drawn
    data = message.encode(session)
    for length in range(len(data)):
        with pytest.raises(MessageError):
            type(message).decode(data[:length], session)


@given(messages(), st.binary(min_size=1, max_size=9))
def test_trailing_bytes_are_refused(drawn, more):
    session, message = drawn
    with pytest.raises(MessageError):
        type(message).decode(message.encode(session) + more, session)


@given(messages(), st.integers(0, HEADER - 1), st.integers(1, 255))
def test_any_change_of_the_header_is_refused(drawn, place, flip):
    session, message = drawn
    data = bytearray(message.encode(session))
    data[place] ^= flip
    with pytest.raises(MessageError):
        type(message).decode(bytes(data), session)


@given(messages(), st.sampled_from([Share, Task, Answer]))
def test_another_kind_is_refused(drawn, kind):
    session, message = drawn
    if kind is not type(message):
        with pytest.raises(MessageError, match="kind"):
            kind.decode(message.encode(session) + bytes(12), session)


@given(messages(), sessions)
def test_another_session_is_refused(drawn, other):
    session, message = drawn
    if other is not session:
        with pytest.raises(MessageError, match=r"another (session|sharing)"):
            type(message).decode(message.encode(session), other)


@given(messages(), st.data())
def test_a_residue_not_below_its_modulus_is_refused(drawn, data):
    session, message = drawn
    if isinstance(message, Task):
        return
    field = session.field
    encoded = bytearray(message.encode(session))
    body = len(encoded) - message.residues.numel() * field.residue_bytes
    place = data.draw(st.integers(0, message.residues.numel() - 1))
    p = field.moduli[place // (message.residues.numel() // len(field.moduli))]
    word = data.draw(st.integers(p, 256**field.residue_bytes - 1))
    at = body + place * field.residue_bytes
    encoded[at : at + field.residue_bytes] = word.to_bytes(field.residue_bytes, "little")
    with pytest.raises(MessageError, match="not below its modulus"):
        type(message).decode(bytes(encoded), session)
    encoded[at : at + field.residue_bytes] = (p - 1).to_bytes(field.residue_bytes, "little")
    assert type(message).decode(bytes(encoded), session).residues.unpack().flatten()[place] == -1


@pytest.mark.parametrize(
    ("dealer", "receiver", "first", "rows"),
    [
        (4, 0, 0, 1),
        (65535, 0, 0, 1),
        (0, 4, 0, 1),
        (0, 0, 0, 0),
        (0, 0, 4, 1),
        (0, 0, 3, 2),
        (1, 0, 1, 1),
        (0, 0, 2**32 - 1, 1),
        (0, 0, 2**32 - 1, 2**32 - 1),
    ],
)
@pytest.mark.parametrize("session", SESSIONS)
def test_clients_and_rows_that_do_not_exist_are_refused(session, dealer, receiver, first, rows):
    good = Share(0, 0, 0, session.field.embed(torch.zeros(4, 5))).encode(session)
    head, tail = good[:HEADER], bytes(min(rows, 8) * 5 * len(session.field.moduli) * session.field.residue_bytes)
    with pytest.raises(MessageError, match=r"(do|does) not exist"):
        Share.decode(head + struct.pack("<HHII", dealer, receiver, first, rows) + tail, session)


@pytest.mark.parametrize("client", [4, 65535])
def test_an_answer_of_a_client_that_does_not_exist_is_refused(client):
    session = SESSIONS[0]
    data = Answer(0, client, session.field.embed(torch.zeros(8))).encode(session)
    with pytest.raises(MessageError, match="does not exist among 4"):
        Answer.decode(data, session)


@given(sessions, st.sampled_from([Share, Task, Answer]), st.binary(max_size=200), st.booleans())
@example(SESSIONS[0], Share, b"", False)
def test_random_bytes_raise_nothing_but_message_errors(session, kind, noise, with_header):
    identity = session.sharing_id if kind is Share else session.session_id
    data = (bytes([1, kind.KIND]) + identity if with_header else b"") + noise
    try:
        decoded = kind.decode(data, session)
    except MessageError:
        return
    assert with_header
    assert decoded.encode(session) == data


@pytest.mark.parametrize("weight", [2**31, -(2**31), 2**40, -(2**62), -(2**63)])
def test_a_weight_beyond_32_bits_is_not_sent(weight):
    weights = torch.zeros(8, dtype=torch.int64)
    weights[3] = weight
    with pytest.raises(MessageError, match="32 bits") as caught:
        Task(0, weights).encode(SESSIONS[0])
    assert "learning rate" in caught.value.hint


def test_the_weight_that_is_never_sent_is_not_taken():
    session = SESSIONS[0]
    data = Task(0, torch.zeros(8, dtype=torch.int64)).encode(session)
    with pytest.raises(MessageError):
        Task.decode(data[:-4] + struct.pack("<i", -(2**31)), session)


def test_answer_size_is_its_length():
    for session in SESSIONS:
        data = Answer(5, 1, session.field.embed(torch.arange(8))).encode(session)
        assert Answer.size(session.field, 8) == len(data)


def test_a_share_prints_no_residues():
    share = Share(2, 1, 0, SESSIONS[2].field.embed(torch.full((3, 5), 777)))
    for text in (repr(share), str(share), f"{share}"):
        assert text == "Share(dealer=2, receiver=1, first_row=0, <redacted>)"
