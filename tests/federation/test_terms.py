"""Terms: settled once, written down, and checked by each participant for itself."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import CheckpointError, MessageError, Refused
from dresfl.federation import NO_NONCE, Introduction, Terms, sharing_nonce
from five_clients import AGREEMENT, NONCE, ROWS

INDEX = 2


def introductions(held=NO_NONCE):
    return [Introduction(rows, bytes([i]) * 32, held) for i, rows in enumerate(ROWS)]


def test_a_new_sharing_has_a_nonce_of_everybody():
    terms = Terms.settle(introductions())
    assert terms.fresh
    assert terms.rows == ROWS
    assert terms.nonce == sharing_nonce(terms.own_bytes, terms.contributions)
    again = Terms.settle(introductions())
    assert (again.nonce, again.run_nonce) != (terms.nonce, terms.run_nonce)
    assert terms.session(AGREEMENT).sharing_id != again.session(AGREEMENT).sharing_id


def test_a_sharing_that_everybody_holds_is_used_again():
    first, second = Terms.settle(introductions(NONCE)), Terms.settle(introductions(NONCE))
    assert first.nonce == second.nonce == NONCE
    assert not first.fresh
    assert first.session(AGREEMENT).sharing_id == second.session(AGREEMENT).sharing_id
    assert first.session(AGREEMENT).session_id != second.session(AGREEMENT).session_id


@pytest.mark.parametrize("other", [NO_NONCE, b"m" * 32])
def test_a_sharing_that_one_client_lacks_is_not(other):
    clients = introductions(NONCE)
    clients[3] = replace(clients[3], held_nonce=other)
    assert Terms.settle(clients).fresh


def test_a_client_that_comes_back():
    terms = Terms.settle(introductions())
    own = introductions()[INDEX]
    terms.check_client(INDEX, own)
    terms.check_client(INDEX, replace(own, contribution=own.contribution[:16] + b"x" * 16))  # of another process
    with pytest.raises(Refused, match="has 9 rows, but 4 when the shares were made"):
        terms.check_client(INDEX, replace(own, rows=9))
    with pytest.raises(Refused, match="secret or rows are not those") as caught:
        terms.check_client(INDEX, replace(own, contribution=b"x" * 32))
    assert "new folder" in caught.value.hint


def test_a_clients_own_check():
    """Its own part, its own row count if it knows it, the agreement's number of clients, a sharing it has a part in."""
    terms = Terms.settle(introductions())
    terms.check_for(AGREEMENT, INDEX, ROWS[INDEX], own=True, held_nonces=())
    terms.check_for(AGREEMENT, INDEX, None, own=True, held_nonces=())
    with pytest.raises(Refused, match=f"{ROWS[INDEX]} rows, but it has 9"):
        terms.check_for(AGREEMENT, INDEX, 9, own=True, held_nonces=())
    with pytest.raises(Refused, match="did not join"):
        terms.check_for(AGREEMENT, INDEX, ROWS[INDEX], own=False, held_nonces=())
    with pytest.raises(Refused, match="of 4 clients"):
        Terms.settle(introductions()[:4]).check_for(AGREEMENT, INDEX, ROWS[INDEX], own=True, held_nonces=())
    old = replace(terms, nonce=NONCE)
    with pytest.raises(Refused, match="did not join"):
        old.check_for(AGREEMENT, INDEX, ROWS[INDEX], own=True, held_nonces=[b"m" * 32])
    old.check_for(AGREEMENT, INDEX, ROWS[INDEX], own=True, held_nonces=[b"m" * 32, NONCE])


def test_nobody_comes_without_rows():
    with pytest.raises(Refused, match="no rows"):
        Introduction(0, bytes(32))


def test_bytes_come_back():
    terms = Terms.settle(introductions())
    assert Terms.decode(terms.encode()) == terms
    assert Terms.from_json(terms.to_json(AGREEMENT), AGREEMENT) == terms
    for data in (b"", terms.encode()[:-1], terms.encode() + b"\0", terms.encode()[:-36], terms.encode() + bytes(36)):
        with pytest.raises(MessageError, match="terms of"):
            Terms.decode(data)


@given(st.binary(max_size=300))
def test_foreign_bytes_are_read_or_refused(data):
    with contextlib.suppress(MessageError):
        assert Terms.decode(data).encode() == data


def damaged():
    fields = json.loads(Terms.settle(introductions()).to_json(AGREEMENT))
    yield b""
    yield b"\xff"
    yield b"[" * 100_000
    yield b"[]"
    for key in fields:
        yield json.dumps({name: value for name, value in fields.items() if name != key}).encode()
        yield json.dumps({**fields, key: None}).encode()
    for key in ("nonce", "run_nonce", "own_bytes"):
        yield json.dumps({**fields, key: fields[key][:-2]}).encode()
        yield json.dumps({**fields, key: "x" + fields[key][1:]}).encode()
    yield json.dumps({**fields, "format": "dresfl terms 1"}).encode()
    yield json.dumps({**fields, "rows": fields["rows"][1:]}).encode()
    yield json.dumps({**fields, "rows": [-1, *fields["rows"][1:]]}).encode()
    yield json.dumps({**fields, "contributions": [value[2:] for value in fields["contributions"]]}).encode()


def test_damaged_files_are_named():
    for data in damaged():
        with pytest.raises(CheckpointError, match="terms cannot be used") as caught:
            Terms.from_json(data, AGREEMENT)
        assert "another folder" in caught.value.hint
