"""Terms: settled once, written down, and checked by each participant for itself."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import CheckpointError, DataError, MessageError, Refused
from dresfl.federation import NO_NONCE, Introduction, Terms, sharing_nonce
from dresfl.federation.terms import _digest
from dresfl.protocol import Verdict, coin_commitment
from five_clients import AGREEMENT, NONCE, ROWS

from .setting import hidden

INDEX = 2


def introductions(held=NO_NONCE):
    return [Introduction(rows, bytes([i]) * 64, held) for i, rows in enumerate(ROWS)]


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
    terms.check_client(INDEX, replace(own, contribution=own.contribution[:16] + b"x" * 48))  # of another process
    with pytest.raises(Refused, match="has 9 rows, but 4 when the shares were made"):
        terms.check_client(INDEX, replace(own, rows=9))
    with pytest.raises(Refused, match="secret or rows are not those") as caught:
        terms.check_client(INDEX, replace(own, contribution=b"x" * 64))
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


def test_a_client_may_come_without_rows_but_not_with_fewer():
    assert Introduction(0, bytes(64)).rows == 0
    with pytest.raises(Refused, match="-1 rows"):
        Introduction(-1, bytes(64))


def test_terms_of_helpers_come_back():
    few = [replace(client, rows=0) if number else client for number, client in enumerate(introductions())]
    terms = Terms.settle(few)
    assert Terms.decode(terms.encode()) == terms
    assert Terms.from_json(terms.to_json(AGREEMENT), AGREEMENT) == terms
    nobody = Terms.settle([replace(client, rows=0) for client in few])
    with pytest.raises(DataError, match="no client has rows"):
        nobody.session(AGREEMENT)


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


def changed():
    """Terms that differ in one key; and the same with a digest that is right, so that the key itself is looked at."""
    fields = json.loads(Terms.settle(introductions()).to_json(AGREEMENT))
    del fields["sha256"]
    others = [{name: value for name, value in fields.items() if name != key} for key in fields]
    others += [{**fields, key: value} for key in fields for value in (None, 3, "x", [None], {})]
    others = [other for other in others if other != fields]  # there are no coins and no verdict yet
    for key in ("nonce", "run_nonce", "own_bytes"):
        others += [{**fields, key: fields[key][:-2]}, {**fields, key: "x" + fields[key][1:]}]
    for key in ("nonce", "run_nonce"):  # of another session; the session does not depend on `own_bytes`
        others += [{**fields, key: ("1" if fields[key][0] == "0" else "0") + fields[key][1:]}]
    others += [{**fields, "format": f"dresfl terms {number}"} for number in (1, 2, 3, 5)]
    wrong = (-1, 0, 2**70, float("inf"), 1e300, 2.5, True, "7")
    others += [{**fields, "rows": [rows, *fields["rows"][1:]]} for rows in wrong]
    others += [{**fields, "rows": fields["rows"][1:]}, {**fields, "rows": [2**32 - 1] * len(ROWS)}]
    others += [{**fields, "contributions": [value[2:] for value in fields["contributions"]]}]
    return [(other, digest) for other in others for digest in (_digest(fields), _digest(other))]


def damaged():
    yield from (b"", b"\xff", b"[" * 100_000, b"[]", b"3", b'{"rows": 1' + b"0" * 5000 + b"}")
    for fields, digest in changed():
        yield json.dumps({**fields, "sha256": digest}).encode()
    whole = Terms.settle(introductions()).to_json(AGREEMENT)
    for place in range(0, 8 * len(whole), 7):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)
    yield from (whole[:length] for length in range(0, len(whole) - 1, 13))


def test_damaged_files_are_named():
    for data in damaged():
        with pytest.raises(CheckpointError, match="terms cannot be used") as caught:
            Terms.from_json(data, AGREEMENT)
        assert "another folder" in caught.value.hint


def test_terms_of_another_agreement_are_refused():
    data = Terms.settle(introductions()).to_json(AGREEMENT)
    with pytest.raises(CheckpointError, match="of another agreement"):
        Terms.from_json(data, replace(AGREEMENT, rounds=51))


def test_coins_that_were_committed_to_name_a_fresh_hidden_run():
    agreement, rows = hidden(5).agreement, (4,) * 5
    coins = tuple(bytes([i + 1]) * 32 for i in range(5))
    given = [Introduction(count, bytes(32) + coin_commitment(coin)) for count, coin in zip(rows, coins, strict=True)]
    terms = Terms.settle(given)
    judged = replace(terms, coins=coins, verdict=Verdict())
    without = replace(judged, coins=(*coins[:4], bytes(32)))  # client 4 was away
    assert len({t.session(agreement).run for t in (judged, without)}) == 2
    used_again = replace(judged, nonce=NONCE)
    assert used_again.session(agreement).run == replace(used_again, coins=None).session(agreement).run
