"""The relay's book: everything that is lacking gets there, within its bounds, whoever comes and goes."""

import random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import MessageError
from dresfl.federation import Windows, sealed_bytes
from dresfl.federation.actions import DropSlice, Send, SendSlice, StoreSlice
from dresfl.federation.messages import Request
from dresfl.federation.relay import Relay
from dresfl.protocol import num_slices, slices
from five_clients import ROWS, SLICE_BYTES, all_slices, session_of

SESSION = session_of()
CLIENTS = range(len(ROWS))
with patch.object(slices, "SLICE_BYTES", SLICE_BYTES):  # as in every test here
    SLICES = [num_slices(SESSION, dealer) for dealer in CLIENTS]
    SIZE = sealed_bytes(SESSION, 0, 0)


def every(dealer):
    return (1 << SLICES[dealer]) - 1


def arrive(relay, client, held=()):
    """A client joins, and says what it holds besides its own."""
    relay.client_came(client)
    actions = []
    for dealer in CLIENTS:
        bits = sum(1 << number for owner, number in held if owner == dealer)
        actions += relay.declare(client, dealer, every(dealer) if dealer == client else bits)
    return actions


def sealed(dealer, number):
    return bytes(sealed_bytes(SESSION, dealer, number))


def asked(actions):
    """Dealer, receiver and number of every request."""
    return [
        (action.client, action.message.peer, action.message.number)
        for action in actions
        if isinstance(action, Send) and isinstance(action.message, Request)
    ]


def test_a_slice_on_its_way():
    relay = Relay(SESSION, Windows())
    arrive(relay, 0)
    assert relay.due() == []  # nobody else is there to deal
    arrive(relay, 1, [place for place in all_slices(SESSION) if place != (0, 2)])
    assert asked(relay.due()) == [(0, 1, 2), *((1, 0, number) for number in range(SLICES[1]))]
    assert relay.due() == []
    assert relay.dealt(0, 1, 2, sealed(0, 2)) == [StoreSlice(1, 0, 2, sealed(0, 2))]
    assert relay.stored_bytes == relay.relayed_bytes == sealed_bytes(SESSION, 0, 2)
    assert relay.due() == [SendSlice(1, 0, 2)]
    assert relay.due() == []
    assert relay.acknowledge(1, 0, 2) == [DropSlice(1, 0, 2)]
    assert relay.stored_bytes == 0
    assert relay.due() == []


@pytest.mark.parametrize("windows", [Windows(), Windows(1, 1, 1), Windows(2 * SIZE, 3 * SIZE, 1)], ids=str)
@given(seed=st.integers(0, 2**32))
def test_everything_gets_there_in_any_order(windows, seed):
    """Clients come, go and stall; slices are lost and rejected: in the end nobody lacks anything, nothing is left."""
    generator = random.Random(seed)
    relay = Relay(SESSION, windows)
    held = [{place for place in all_slices(SESSION) if place[0] == client} for client in CLIENTS]
    requests: list[tuple[int, int, int]] = []
    sent: list[SendSlice] = []
    stored: set[tuple[int, int, int]] = set()

    def carry_out(actions):
        for action in actions:
            match action:
                case StoreSlice():
                    stored.add((action.receiver, action.dealer, action.number))
                case DropSlice():
                    stored.remove((action.receiver, action.dealer, action.number))
                case SendSlice():
                    assert (action.receiver, action.dealer, action.number) in stored
                    sent.append(action)
                case Send():
                    requests.append((action.client, action.message.peer, action.message.number))

    def restart(client):
        requests[:] = [request for request in requests if request[0] != client]
        sent[:] = [action for action in sent if action.receiver != client]
        relay.client_left(client)
        carry_out(arrive(relay, client, held[client]))

    for client in CLIENTS:
        restart(client)
    for step in range(4000):
        carry_out(relay.due())
        check_bounds(relay, windows)
        luck = generator.random()
        if luck < 0.02 and step < 2000:
            restart(generator.choice(CLIENTS))
        elif luck < 0.5 and requests:
            dealer, receiver, number = requests.pop(generator.randrange(len(requests)))
            carry_out(relay.dealt(dealer, receiver, number, sealed(dealer, number)))
        elif sent:
            action = sent.pop(generator.randrange(len(sent)))
            receiver, place = action.receiver, (action.dealer, action.number)
            trouble = generator.random() if step < 2000 else 1.0
            if trouble < 0.05:
                carry_out(relay.lost(receiver, *place))
            elif trouble < 0.06:
                carry_out(relay.reject(receiver, *place)[0])
            else:
                held[receiver].add(place)
                carry_out(relay.acknowledge(receiver, *place))
        if all(len(places) == sum(SLICES) for places in held) and not requests and not sent:
            break
    assert all(places == set(all_slices(SESSION)) for places in held)
    assert relay.stored_bytes == 0
    assert not stored
    assert relay._taken == [0] * len(ROWS)


def check_bounds(relay, windows):
    part = max(windows.sent_bytes, windows.stored_bytes // len(ROWS))
    for client in CLIENTS:
        outstanding = [sealed_bytes(SESSION, client, number) for _, number in relay._asked[client]]
        assert sum(outstanding) <= windows.asked_bytes or len(outstanding) == 1
        under_way = [sealed_bytes(SESSION, *place) for place, sent in relay._waiting[client].items() if sent]
        assert sum(under_way) <= windows.sent_bytes or len(under_way) == 1
        for_it = [sealed_bytes(SESSION, *place) for place in relay._waiting[client]]
        for_it += [sealed_bytes(SESSION, d, n) for d in CLIENTS for r, n in relay._asked[d] if r == client]
        assert relay._taken[client] == sum(for_it)
        assert sum(for_it) <= part or len(for_it) == 1


def test_a_receiver_that_is_away_does_not_fill_the_disk_for_the_others():
    relay = Relay(SESSION, Windows(2**30, 1, 1))
    arrive(relay, 4)
    relay.client_left(4)
    for client in range(4):
        arrive(relay, client, all_slices(SESSION) if client else [])
    requests, arrived = asked(relay.due()), []
    while requests:
        dealer, receiver, number = requests.pop(0)
        relay.dealt(dealer, receiver, number, sealed(dealer, number))
        for action in relay.due():
            if isinstance(action, SendSlice):
                arrived.append((action.receiver, action.dealer, action.number))
                requests += asked(relay.acknowledge(*arrived[-1]) + relay.due())
            else:
                requests += asked([action])
    wanted = {(0, dealer, number) for dealer in (1, 2, 3) for number in range(SLICES[dealer])}
    assert set(arrived) == wanted
    assert len(relay._waiting[4]) == 1  # its part, and no more


def test_room_that_a_leaving_dealer_gives_back_is_used():
    relay = Relay(SESSION, Windows(1, 1, 1))
    arrive(relay, 1, all_slices(SESSION))
    arrive(relay, 2, all_slices(SESSION))
    arrive(relay, 0)
    assert [request[:2] for request in asked(relay.due())] == [(1, 0)]
    relay.client_left(1)
    assert [request[:2] for request in asked(relay.due())] == [(2, 0)]


def test_low_numbers_come_first_for_all_receivers():
    relay = Relay(SESSION, Windows())
    for client in CLIENTS:
        arrive(relay, client, [] if client else all_slices(SESSION))
    numbers = [number for dealer, _, number in asked(relay.due()) if dealer == 0]
    assert numbers == sorted(numbers)
    assert len(numbers) == 4 * SLICES[0]


def test_what_an_earlier_start_left_is_delivered():
    left = [(1, 0, 0), (1, 0, 2), (1, 9, 0), (9, 0, 0), (1, 0, 99)]
    relay = Relay(SESSION, Windows(), left)
    assert arrive(relay, 1, [(0, 2)]) == [DropSlice(1, 0, 2)]
    assert relay.due() == [SendSlice(1, 0, 0)]


def test_nothing_is_delivered_before_everything_is_declared():
    relay = Relay(SESSION, Windows(), [(1, 0, 0)])
    relay.client_came(1)
    for dealer in CLIENTS:
        assert relay.due() == []
        relay.declare(1, dealer, every(dealer) if dealer == 1 else 0)
    assert relay.due() == [SendSlice(1, 0, 0)]


def test_what_is_not_as_it_should_be_is_refused():
    relay = Relay(SESSION, Windows())
    arrive(relay, 0)
    arrive(relay, 1)
    assert (0, 1, 0) in asked(relay.due())
    for dealer, receiver, number in ((0, 2, 0), (0, 1, 50), (2, 1, 0), (0, 60_000, 0)):
        with pytest.raises(MessageError, match="unasked"):
            relay.dealt(dealer, receiver, number, sealed(0, 0))
    for wrong in (b"", sealed(0, 0)[:-1], sealed(0, 0) + b"\0"):
        with pytest.raises(MessageError, match="bytes came"):
            relay.dealt(0, 1, 0, wrong)
    relay.dealt(0, 1, 0, sealed(0, 0))
    with pytest.raises(MessageError, match="unasked"):  # it came already
        relay.dealt(0, 1, 0, sealed(0, 0))
    for dealer in (5, 60_000):
        with pytest.raises(MessageError, match="does not exist"):
            relay.declare(1, dealer, 0)
    with pytest.raises(MessageError, match="does not have"):
        relay.declare(1, 0, 1 << SLICES[0])
    with pytest.raises(MessageError, match="of its own"):
        relay.declare(1, 1, every(1) >> 1)


@pytest.mark.parametrize("speak", [Relay.acknowledge, Relay.reject])
def test_nobody_speaks_of_a_slice_that_it_was_not_sent(speak):
    """Else another slice would be dropped, which then nobody would ask for again."""
    relay = Relay(SESSION, Windows())
    arrive(relay, 0)
    arrive(relay, 1)
    relay.due()
    relay.dealt(0, 1, 0, sealed(0, 0))
    for place in ((0, 0), (0, 1), (2, 0), (60_000, 0)):  # not sent yet, asked for, lacking, impossible
        with pytest.raises(MessageError, match="not sent"):
            speak(relay, 1, *place)
    relay.due()
    speak(relay, 1, 0, 0)
    with pytest.raises(MessageError, match="not sent"):
        speak(relay, 1, 0, 0)


def rejections(relay, most=20):
    """How often a slice is asked for whose receiver never likes it."""
    count = 0
    while (0, 1, 0) in asked(relay.due()) and count < most:
        count += 1
        relay.dealt(0, 1, 0, sealed(0, 0))
        assert SendSlice(1, 0, 0) in relay.due()
        _, again = relay.reject(1, 0, 0)
    assert not again
    return count


def test_a_slice_is_given_up_after_some_rejections_until_one_of_the_two_comes_back():
    relay = Relay(SESSION, Windows())
    almost = [place for place in all_slices(SESSION) if place != (0, 0)]
    arrive(relay, 0, all_slices(SESSION))
    arrive(relay, 1, almost)
    assert rejections(relay) == 4
    arrive(relay, 1, almost)
    assert rejections(relay) == 4


def test_a_slice_that_nobody_waits_for_is_not_lost():
    """Its receiver came back, and has it."""
    relay = Relay(SESSION, Windows(), [(1, 0, 0)])
    arrive(relay, 0, all_slices(SESSION))
    arrive(relay, 1, all_slices(SESSION))
    assert relay.lost(1, 0, 0) == []
    assert relay.due() == []
