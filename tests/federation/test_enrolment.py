"""Who has said Hello, the terms that follow, and the signature under them."""

from dataclasses import replace
from itertools import pairwise

import pytest

from dresfl.errors import DresError, IdentityError, Refused
from dresfl.federation import Agreement, Introduction, Terms, make_session
from dresfl.federation import agreement as agreement_module
from dresfl.federation.enrolment import Enrolment, check_begin, signed_begin
from dresfl.federation.messages import HOLDING_BYTES, Hello
from dresfl.model import Dense
from dresfl.protocol import slice_rows, slices

from .setting import linear, squared

THREE = Agreement((Dense(2),), (3,), num_clients=3, rounds=1)


def hello(rows, agreement=THREE, client=0):
    return Hello(Introduction(rows, bytes([client]) * 64), bytes(16), agreement.encode())


def test_the_last_hello_settles_the_terms():
    enrolment = Enrolment(THREE, None)
    assert enrolment.missing() == [0, 1, 2]
    assert enrolment.hello(0, hello(5)) is None
    assert enrolment.hello(2, hello(7)) is None
    assert enrolment.missing() == [1]
    terms = enrolment.hello(1, hello(6))
    assert terms == enrolment.terms
    assert terms.rows == (5, 6, 7)
    assert terms.fresh
    assert enrolment.missing() == []


def test_who_leaves_takes_its_hello_with_it():
    enrolment = Enrolment(THREE, None)
    enrolment.hello(0, hello(5))
    enrolment.hello(1, hello(6))
    enrolment.leave(0)
    enrolment.leave(2)
    assert enrolment.missing() == [0, 2]
    assert enrolment.hello(2, hello(7)) is None
    assert enrolment.hello(0, hello(4)).rows == (4, 6, 7)


def test_terms_stay_whoever_leaves():
    enrolment = Enrolment(THREE, None)
    for client in range(3):
        enrolment.hello(client, hello(5, client=client))
    terms = enrolment.terms
    enrolment.leave(1)
    assert enrolment.missing() == []
    assert enrolment.hello(1, hello(5, client=1)) is None
    assert enrolment.terms is terms
    with pytest.raises(Refused, match="has 6 rows"):
        enrolment.hello(1, hello(6, client=1))
    with pytest.raises(Refused, match="secret or rows"):
        enrolment.hello(1, hello(5, client=2))


def test_another_agreement_is_refused_by_its_differences():
    enrolment = Enrolment(THREE, None)
    with pytest.raises(Refused, match="rounds: 1 here, 2 there") as caught:
        enrolment.hello(0, hello(5, replace(THREE, rounds=2)))
    assert "agreement.toml" in caught.value.hint
    with pytest.raises(Refused, match="cannot be read"):
        enrolment.hello(0, replace(hello(5), agreement=b"{"))
    assert enrolment.missing() == [0, 1, 2]


def test_a_client_with_too_many_rows_is_refused(monkeypatch):
    """Nothing of it is kept, and the terms are settled once it has come with fewer."""
    monkeypatch.setattr(slices, "SLICE_BYTES", 2**20)
    enrolment = Enrolment(THREE, None)
    most = (2**31 - 1) // 3
    enrolment.hello(0, hello(4))
    enrolment.hello(2, hello(4))
    for rows in (2**32 - 1, most + 1):
        with pytest.raises(Refused, match=f"{most} at most") as caught:
            enrolment.hello(1, hello(rows))
        assert caught.value.hint
        assert enrolment.missing() == [1]
        assert enrolment.terms is None
    assert enrolment.hello(1, hello(5)).rows == (4, 5, 4)


def test_rows_of_more_slices_than_a_holding_lists_are_refused():
    most = 8 * HOLDING_BYTES * slice_rows(make_session(THREE, (1, 1, 1), b"", b""))
    assert most < (2**31 - 1) // 3
    Enrolment(THREE, None).hello(0, hello(most))
    with pytest.raises(Refused, match=f"{most} at most"):
        Enrolment(THREE, None).hello(0, hello(most + 1))


def test_unusable_terms_are_never_settled(monkeypatch):
    monkeypatch.setattr(agreement_module, "most_client_rows", lambda parameters: 2**32)
    monkeypatch.setattr(agreement_module, "MOST_SLICES", 2**40)
    enrolment = Enrolment(THREE, None)
    enrolment.hello(0, hello(5))
    enrolment.hello(2, hello(5))
    with pytest.raises(DresError):
        enrolment.hello(1, hello(2**32 - 1))
    assert enrolment.terms is None


def test_the_terms_of_an_earlier_start():
    terms = Terms.settle([Introduction(5, bytes([client]) * 64) for client in range(3)])
    enrolment = Enrolment(THREE, terms)
    assert enrolment.missing() == []
    assert enrolment.hello(0, hello(5)) is None
    with pytest.raises(Refused):
        enrolment.hello(1, hello(5))


def test_a_signature_is_for_one_client_one_challenge_and_these_terms():
    setting = linear()
    roster, challenge = setting.roster, b"c" * 16
    terms = Terms.settle([Introduction(5, bytes([client]) * 64) for client in range(5)])
    begin = signed_begin(setting.coordinator, roster, 3, challenge, terms)
    check_begin(roster.server, roster, 3, challenge, begin)
    with pytest.raises(IdentityError, match="not signed"):
        check_begin(roster.server, roster, 2, challenge, begin)
    with pytest.raises(IdentityError, match="not signed"):
        check_begin(roster.server, roster, 3, b"d" * 16, begin)
    with pytest.raises(IdentityError, match="not signed"):
        check_begin(roster.server, roster, 3, challenge, replace(begin, terms=replace(terms, run_nonce=bytes(16))))
    with pytest.raises(IdentityError, match="not signed"):
        check_begin(roster.server, squared().roster, 3, challenge, begin)
    by_a_client = signed_begin(setting.clients[0], roster, 3, challenge, terms)
    with pytest.raises(IdentityError, match="not signed"):
        check_begin(roster.server, roster, 3, challenge, by_a_client)


# -- a client that runs twice ----------------------------------------------------------------------------------


def test_an_older_process_may_not_take_its_place_back():
    """A restarted client gets in at once. Its older process is refused only while the newer one is connected."""
    enrolment, old, new = Enrolment(THREE, None), b"process1", b"process2"
    enrolment.hello(0, replace(hello(5), instance=old))
    enrolment.hello(0, replace(hello(5), instance=new), other=old)
    with pytest.raises(Refused, match="client 0 runs twice") as caught:
        enrolment.hello(0, replace(hello(5), instance=old), other=new)
    assert "of its own" in caught.value.hint
    enrolment.hello(0, replace(hello(5), instance=new), other=new)  # the same process, with a new connection
    enrolment.hello(0, replace(hello(5), instance=old))  # the newer one has gone
    enrolment.hello(1, replace(hello(5), instance=old))  # of another client


def test_displaced_processes_are_remembered_up_to_a_limit():
    enrolment, processes = Enrolment(THREE, None), [bytes([i]) * 8 for i in range(1, 101)]
    for older, newer in pairwise(processes):
        enrolment.hello(0, replace(hello(5), instance=newer), other=older)
    assert sum(map(len, enrolment._displaced.values())) < 20
