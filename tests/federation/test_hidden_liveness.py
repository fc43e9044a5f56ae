"""Hidden rounds go on as long as enough clients live, whoever is silent, lies, or comes back when."""

from typing import Any

import pytest

from dresfl.errors import MessageError
from dresfl.federation import hidden_rounds, hidden_work
from dresfl.federation.confirming import sign_confirmed
from dresfl.federation.messages import Confirmations, Confirmed, HopAnswered, Opened, Resume

from .hops import Hops, nothing_is_lost
from .setting import hidden

ALL = range(5)


def begun(until: tuple[int, int] = (0, 0), **settings: Any) -> Hops:
    """Five clients, of whom four must answer, play until the run stands there."""
    hops = Hops(hidden(5, **settings))
    hops.connect(*ALL)
    hops.play(until)
    return hops


@pytest.mark.parametrize("check", ["A", "C"])
def test_an_undisturbed_run_ends(check: str) -> None:
    hops = begun((10**6, 0), check=check)
    hops.wait(20)
    assert hops.rounds.done
    assert hops.error is None


def test_a_false_check_value_and_a_late_one_hold_up_nobody_for_long() -> None:
    """Client 4 lies, and client 3 is late: the first four values confirm nothing. The fifth does."""
    hops, late = begun((0, 1), check="C"), list[Confirmed]()

    def lies_or_is_late(client: int, message: Any) -> bool:
        if not isinstance(message, Confirmed) or client < 3:
            return False
        if client == 3:
            late.append(message)
            return True
        lie = sign_confirmed(hops.setting.clients[4], hops.session.run, message.position, bytes(len(message.sealed)))
        hops.do(hops.rounds.received(4, lie, hops.now))
        return True

    hops.lost = lies_or_is_late
    hops.play()
    hops.wait()
    assert hops.at == (0, 1)
    assert hops.rounds._confirming is not None
    assert hops.rounds._confirming.released is not None
    hops.lost = nothing_is_lost
    hops.do(hops.rounds.received(3, late[0], hops.now))
    hops.play((0, 2))
    assert hops.at > (0, 1)


def test_a_check_value_that_comes_again_is_not_sent_to_all_again() -> None:
    hops, told = begun((0, 1), check="C"), list[tuple[int, int]]()

    def counted(client: int, message: Any) -> bool:
        if isinstance(message, Confirmations):
            told.append((client, len(message.values)))
        return False

    hops.unread = counted
    hops.lost = lambda client, message: isinstance(message, HopAnswered) and client < 2
    hops.play()
    assert told == [(client, 5) for client in ALL]
    confirmed = hops.works[0]._confirmation()[0]
    hops.do(hops.rounds.received(0, confirmed, hops.now))
    assert told[5:] == [(0, 5)]


def test_answers_that_do_not_agree_wait_for_those_who_are_away() -> None:
    """Client 3 lies while client 4 is away. When client 4 is back, the four others outvote it."""
    hops = begun((0, 1))
    hops.gone(4)

    def lies(client: int, message: Any) -> bool:
        if client != 3 or not isinstance(message, HopAnswered):
            return False
        answer = bytearray(message.answer)
        answer[-3:] = b"\0\0\0" if any(answer[-3:]) else b"\1\0\0"
        hops.do(hops.rounds.received(3, HopAnswered(bytes(answer)), hops.now))
        return True

    hops.lost = lies
    hops.play()
    hops.wait(3)
    assert hops.at == (0, 1)
    assert hops.error is None
    assert hops.logged("shortage")[-1].fields["then"] == "others may outvote a liar"
    hops.connect(4)
    hops.play((0, 2))
    assert hops.at > (0, 1)
    assert hops.logged("liar")


@pytest.mark.parametrize("check", ["A", "C"])
def test_a_silent_client_does_not_keep_the_others_from_being_helped(check: str) -> None:
    """Client 4 hangs at the start of round 1, when client 0 is started again and has no check value."""
    hops = begun((1, 0), check=check)
    hops.lost = lambda client, message: client == 4
    hops.connect(0, again=True)
    hops.play()
    hops.wait(30)
    assert hops.rounds.done


def test_a_client_that_never_answers_is_not_sent_histories_for_ever() -> None:
    hops = begun((1, 0))
    hops.gone(3)
    hops.lost = lambda client, message: client == 4
    hops.play()
    hops.wait(20)
    assert len([line for line in hops.logged("last round again") if line.fields["client"] == 4]) <= 8


def test_returns_are_counted_between_two_answered_hops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that loses its connection now and then in a long run can always come back; at one hop it cannot."""
    monkeypatch.setattr(hidden_work, "_MOST_RETURNS", 2)
    hops = begun((0, 1))
    hops.gone(4)  # so that all others are needed
    counted = 0

    def resumed(client: int, message: Any) -> bool:
        nonlocal counted
        counted += client == 0 and isinstance(message, Resume) and bool(len(message.history))
        return False

    hops.unread = resumed
    while hops.at < (2, 1):
        place, hop = hops.at
        kept, hops.works[0]._client = hops.works[0], None
        hops.connect(0)
        assert hops.works[0] is kept
        hops.play((place, hop + 1))
        if hops.at == (place, hop):
            hops.do(hops.rounds.tick(hops.rounds.wake_at or 0.0))
            hops.play((place, hop + 1))
    assert counted > 2
    message = Resume(*hops.at, hops.rounds._ledger.chain, hops.rounds._history(long=True))
    for _ in range(3):  # the first is answered, at a hop that was not answered before
        hops.works[0].resume(message)
    with pytest.raises(MessageError, match="told 2 times"):
        hops.works[0].resume(message)


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize("crash", [False, True])
def test_check_c_goes_on_with_a_client_that_has_just_come_back(place: tuple[int, int], crash: bool) -> None:
    """Client 3 dies after its answer, before it has told its check value, when client 4 was away: four of five live."""
    hops = begun(place, check="C")
    hops.gone(4)
    after = (place[0], place[1] + 1)
    hops.play(after)
    assert hops.at >= after
    hops.gone(3)
    if crash:
        hops.start_coordinator()
        hops.connect(0, 1, 2, again=True)
    hops.connect(4, again=True)
    hops.play()
    hops.wait(40)
    assert hops.rounds.done
    assert hops.error is None


@pytest.mark.parametrize("crash", [(), (4,), (0, 1, 2, 4)])
def test_check_c_confirms_the_model_with_a_client_that_has_just_come_back(crash: tuple[int, ...]) -> None:
    """Likewise at the end: nobody takes a model that was not confirmed, and the rounds are over."""
    hops = begun((3, 0), check="C")
    hops.gone(4)
    hops.play((4, 0))
    assert hops.rounds.done
    hops.gone(3)
    if len(crash) > 1:
        hops.play()  # all have taken it, and nobody has confirmed it
        hops.start_coordinator()
    living = (0, 1, 2, 4)
    for client in living:
        if client in crash or client == 4:
            hops.connect(client, again=client in crash)
    hops.play()
    hops.wait(3)
    for client in living:
        assert hops.works[client].client.confirmed
        assert hops.works[client].client.model is not None


def test_a_coordinator_that_crashed_asks_what_was_confirmed_before_it_publishes() -> None:
    """Else a client that comes back after the next hop could never speak of it."""
    hops = begun((1, 0), check="C")
    hops.unread = lambda client, message: isinstance(message, Opened)
    hops.play()
    hops.start_coordinator()
    hops.unread = nothing_is_lost
    hops.connect(*ALL, again=True)
    hops.play()
    hops.wait(10)
    assert hops.rounds.done
    assert all(hidden_rounds._confirmed_in(hop.note) for hop in hops.stored[1:])
