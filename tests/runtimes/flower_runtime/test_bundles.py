"""Bundles: what is encoded decodes, and what is not as it should be is refused before anything of it is used."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import DresError, IdentityError, MessageError
from dresfl.federation import Introduction, Terms
from dresfl.runtimes.flower_runtime.bundles import Reply, Request
from dresfl.sealing import Identity, Roster

COORDINATOR, CLIENTS = Identity.create("coordinator"), [Identity.create(f"site-{i}") for i in range(3)]
ROSTER = Roster.create(COORDINATOR, COORDINATOR.card, [client.card for client in CLIENTS])
TERMS = Terms.settle([Introduction(4 + i, bytes([i]) * 64) for i in range(3)])

message_lists = st.lists(st.binary(max_size=50), max_size=5).map(tuple)


@given(message_lists, st.booleans())
def test_request(messages: tuple[bytes, ...], with_terms: bool) -> None:
    request = Request(messages, TERMS if with_terms else None)
    assert Request.decode(request.encode(COORDINATOR, ROSTER), ROSTER) == request


def test_two_requests_differ() -> None:
    """So that a reply fits one of them."""
    assert Request().encode(COORDINATOR, ROSTER) != Request().encode(COORDINATOR, ROSTER)


@pytest.mark.parametrize("request_", [Request(), Request((b"message", b""), TERMS)])
def test_any_changed_bit_of_a_request_is_refused(request_: Request) -> None:
    data = request_.encode(COORDINATOR, ROSTER)
    for place in range(len(data)):
        with pytest.raises((MessageError, IdentityError)):
            Request.decode(_flipped(data, place), ROSTER)


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]


@given(st.data(), message_lists)
def test_a_cut_request_is_refused(draw: st.DataObject, messages: tuple[bytes, ...]) -> None:
    data = Request(messages, TERMS).encode(COORDINATOR, ROSTER)
    with pytest.raises((MessageError, IdentityError)):
        Request.decode(data[: draw.draw(st.integers(0, len(data) - 1))], ROSTER)


def test_request_of_another_than_the_coordinator() -> None:
    with pytest.raises(IdentityError, match="not signed by coordinator"):
        Request.decode(Request().encode(CLIENTS[0], ROSTER), ROSTER)


def test_request_for_another_roster() -> None:
    other = Roster.create(COORDINATOR, COORDINATOR.card, [client.card for client in CLIENTS[:2]])
    with pytest.raises(IdentityError):
        Request.decode(Request().encode(COORDINATOR, other), ROSTER)


def _signed(bundle: bytes) -> bytes:
    return bundle + COORDINATOR.sign("flower request", bytes.fromhex(ROSTER.digest) + bundle)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (struct.pack("<I", 10) + b"short", "10 bytes of terms follow, but has 5"),
        (struct.pack("<I", 3) + b"abc", "terms of 3 bytes"),
        (struct.pack("<II", 0, 9) + b"short", "within a message of 9 bytes"),
        (struct.pack("<I", 0) + b"abc", "within the length of a message"),
    ],
)
def test_signed_nonsense(rest: bytes, reason: str) -> None:
    """The coordinator's signature does not make a bundle well-formed."""
    with pytest.raises(MessageError, match=reason):
        Request.decode(_signed(b"\x02" + bytes(16) + rest), ROSTER)


def test_another_version_is_refused_by_name() -> None:
    with pytest.raises(MessageError, match="a request of version 1 came, this release uses version 2"):
        Request.decode(b"\x01" + Request().encode(COORDINATOR, ROSTER)[1:], ROSTER)
    with pytest.raises(MessageError, match="a reply of version 1 came, this release uses version 2"):
        Reply.decode(b"\x01" + bytes(100), ROSTER, b"request", 1000)


@given(message_lists, st.integers(0, 2))
def test_reply(messages: tuple[bytes, ...], client: int) -> None:
    reply = Reply(client, messages)
    assert Reply.decode(reply.encode(CLIENTS[client], ROSTER, b"request"), ROSTER, b"request", 1000) == reply


@given(st.text(max_size=2000))
def test_refusal(text: str) -> None:
    data = Reply(1, refusal=text).encode(CLIENTS[1], ROSTER, b"request")
    found = Reply.decode(data, ROSTER, b"request", 2000)
    assert found.messages == ()
    assert found.refusal is not None
    assert len(found.refusal) <= 1000
    if len(text.encode("utf-8", "replace")) <= 1000 and "�" not in found.refusal:
        assert found.refusal == text.encode("utf-8", "replace").decode()


def test_any_changed_bit_of_a_reply_is_refused() -> None:
    data = Reply(1, (b"message",)).encode(CLIENTS[1], ROSTER, b"request")
    for place in range(len(data)):
        with pytest.raises((MessageError, IdentityError)):
            Reply.decode(_flipped(data, place), ROSTER, b"request", 1000)


def test_a_reply_is_neither_refused_nor_not() -> None:
    bundle = struct.pack("<BHB", 2, 1, 2)
    bound = bytes.fromhex(ROSTER.digest) + hashlib.sha256(b"request").digest()
    with pytest.raises(MessageError, match="neither"):
        Reply.decode(bundle + CLIENTS[1].sign("flower reply", bound + bundle), ROSTER, b"request", 1000)


def test_reply_fits_one_request_and_one_client() -> None:
    data = Reply(1, (b"message",)).encode(CLIENTS[1], ROSTER, b"request")
    with pytest.raises(IdentityError):
        Reply.decode(data, ROSTER, b"another request", 1000)
    with pytest.raises(IdentityError, match="not signed by site-2"):
        Reply.decode(Reply(2).encode(CLIENTS[1], ROSTER, b"request"), ROSTER, b"request", 1000)
    with pytest.raises(MessageError, match="does not exist"):
        Reply.decode(Reply(3).encode(CLIENTS[1], ROSTER, b"request"), ROSTER, b"request", 1000)


def test_reply_too_large() -> None:
    data = Reply(1, (bytes(1000),)).encode(CLIENTS[1], ROSTER, b"request")
    with pytest.raises(MessageError, match="are the most"):
        Reply.decode(data, ROSTER, b"request", 1000)


@given(st.binary(max_size=200), st.booleans())
def test_noise_is_refused(data: bytes, versioned: bool) -> None:
    data = (b"\x02" if versioned else b"") + data
    with pytest.raises(DresError):
        Request.decode(data, ROSTER)
    with pytest.raises(DresError):
        Reply.decode(data, ROSTER, b"request", 1000)
