"""Letters: what is encoded decodes, and what is not as it should be is refused before anything of it is used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import DresError, IdentityError, MessageError, Refused
from dresfl.federation import Introduction, Terms
from dresfl.runtimes.flower_runtime.letters import (
    Kind,
    Reply,
    Request,
    decode_hello,
    decode_kept,
    decode_parcels,
    decode_places,
    encode_hello,
    encode_kept,
    encode_parcels,
    encode_places,
)
from dresfl.sealing import Identity, Roster

SERVER, SITES = Identity.create("coordinator"), [Identity.create(f"site-{i}") for i in range(3)]
ROSTER = Roster.create(SERVER, SERVER.card, [site.card for site in SITES])
TERMS = Terms.settle([Introduction(4 + i, bytes([i]) * 32) for i in range(3)])

numbers = st.integers(0, 2**16 - 1)
slices = st.integers(0, 2**32 - 1)


@given(st.sampled_from(Kind), st.booleans(), st.binary(max_size=100))
def test_request(kind: Kind, with_terms: bool, body: bytes) -> None:
    request = Request(kind, TERMS if with_terms else None, body)
    assert Request.decode(request.encode(SERVER, ROSTER), ROSTER) == request


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_changed_bit_of_a_request_is_refused(place: int, bit: int) -> None:
    data = bytearray(Request(Kind.KEEP, TERMS, b"body").encode(SERVER, ROSTER))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(DresError):
        Request.decode(bytes(data), ROSTER)


def test_request_of_another_than_the_coordinator() -> None:
    with pytest.raises(IdentityError, match="not signed by coordinator"):
        Request.decode(Request(Kind.HELLO, None, b"").encode(SITES[0], ROSTER), ROSTER)


def test_request_for_another_roster() -> None:
    other = Roster.create(SERVER, SERVER.card, [site.card for site in SITES[:2]])
    with pytest.raises(IdentityError):
        Request.decode(Request(Kind.HELLO, None, b"").encode(SERVER, other), ROSTER)


def test_request_without_terms_where_they_are_needed() -> None:
    with pytest.raises(MessageError, match="without the terms"):
        _ = Request(Kind.DEAL, None, b"").agreed_terms


@given(st.sampled_from(Kind), st.integers(0, 2), st.binary(max_size=100), st.booleans())
def test_reply(kind: Kind, client: int, body: bytes, refused: bool) -> None:
    reply = Reply(kind, client, body, refused)
    assert Reply.decode(reply.encode(SITES[client], ROSTER, b"request"), ROSTER, b"request", 1000) == reply


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_changed_bit_of_a_reply_is_refused(place: int, bit: int) -> None:
    data = bytearray(Reply(Kind.ANSWER, 1, b"body").encode(SITES[1], ROSTER, b"request"))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(DresError):
        Reply.decode(bytes(data), ROSTER, b"request", 1000)


def test_reply_fits_one_request_and_one_client() -> None:
    data = Reply(Kind.ANSWER, 1, b"body").encode(SITES[1], ROSTER, b"request")
    with pytest.raises(IdentityError):
        Reply.decode(data, ROSTER, b"another request", 1000)
    with pytest.raises(IdentityError, match="not signed by site-2"):
        Reply.decode(Reply(Kind.ANSWER, 2, b"body").encode(SITES[1], ROSTER, b"request"), ROSTER, b"request", 1000)
    with pytest.raises(MessageError, match="does not exist"):
        Reply.decode(Reply(Kind.ANSWER, 3, b"body").encode(SITES[1], ROSTER, b"request"), ROSTER, b"request", 1000)


def test_reply_too_large() -> None:
    data = Reply(Kind.ANSWER, 1, bytes(1000)).encode(SITES[1], ROSTER, b"request")
    with pytest.raises(MessageError, match="are the most"):
        Reply.decode(data, ROSTER, b"request", 1000)


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(DresError):
        Request.decode(data, ROSTER)
    with pytest.raises(DresError):
        Reply.decode(data, ROSTER, b"request", 1000)


@given(st.lists(st.tuples(numbers, slices)), st.lists(st.tuples(numbers, slices, st.text(max_size=50))))
def test_kept(missing: list[tuple[int, int]], rejected: list[tuple[int, int, str]]) -> None:
    assert decode_kept(encode_kept(missing, rejected)) == (missing, rejected)


@given(st.lists(st.tuples(numbers, slices, st.binary(max_size=50))))
def test_parcels(parcels: list[tuple[int, int, bytes]]) -> None:
    assert decode_parcels(encode_parcels(parcels)) == parcels


@given(st.lists(st.tuples(numbers, slices, st.binary(max_size=20)), min_size=1), st.data())
def test_parcels_cut_short(parcels: list[tuple[int, int, bytes]], data: st.DataObject) -> None:
    """A cut list is refused, or is the list of the whole slices before the cut."""
    whole = encode_parcels(parcels)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        found = decode_parcels(cut)
    except MessageError:
        return
    assert found == parcels[: len(found)]
    assert encode_parcels(found) == cut


@given(st.binary(max_size=60))
def test_bodies_of_noise(body: bytes) -> None:
    for decode in (decode_hello, decode_kept, decode_parcels, decode_places):
        try:
            decode(body)
        except (MessageError, Refused):
            continue


def test_hello() -> None:
    client = Introduction(7, bytes(range(32)), bytes(32))
    assert decode_hello(encode_hello(client)) == client
    with pytest.raises(Refused, match="no rows"):
        decode_hello(bytes(68))


@given(st.lists(st.integers(1, 2**32 - 1), min_size=1, max_size=5))
def test_terms(rows: list[int]) -> None:
    terms = Terms.settle([Introduction(count, bytes(32)) for count in rows])
    assert Terms.decode(terms.encode()) == terms
    assert terms.fresh
    with pytest.raises(MessageError):
        Terms.decode(terms.encode()[:-1])


def test_places() -> None:
    assert decode_places(encode_places([(1, 2)])) == [(1, 2)]
    with pytest.raises(MessageError):
        decode_places(b"12345")
