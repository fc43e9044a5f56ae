"""The relay's book: everything that is lacking gets there, within bounds, whoever comes and goes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import MessageError
from dresfl.federation import Agreement, make_session, parcel_bytes
from dresfl.model import Dense
from dresfl.protocol import Session, num_slices
from dresfl.runtimes.flower_runtime import relay as module
from dresfl.runtimes.flower_runtime.relay import Relay


def large_session() -> Session:
    """Rows so wide that each client deals a few slices."""
    agreement = Agreement((Dense(2),), (40_000,), num_clients=4, rounds=1)
    return make_session(agreement, (9, 4, 20, 1), b"nonce", b"run")


SESSION = large_session()


def test_there_is_something_to_relay() -> None:
    assert num_slices(SESSION, 2) >= 2


@given(st.integers(0, 2**32))
def test_everything_gets_there(seed: int) -> None:
    """Random order, dealers that fall silent, receivers that lose a message: in the end nobody lacks anything."""
    generator = random.Random(seed)
    relay = Relay(SESSION, memory=1)
    clients = range(SESSION.num_clients)
    has: list[set[tuple[int, int]]] = [set() for _ in clients]
    everything = [{(d, n) for d in clients if d != r for n in range(num_slices(SESSION, d))} for r in clients]
    for receiver in clients:
        relay.lacks_everything(receiver)
    for _ in range(1000):
        client = generator.choice(clients)
        if places := relay.ask(client):
            sizes = [parcel_bytes(SESSION, client, number) for _, number in places]
            assert sum(sizes) <= module.MESSAGE_BYTES or len(sizes) == 1
            if generator.random() < 0.8:
                relay.dealt(
                    client, [(receiver, n, bytes(size)) for (receiver, n), size in zip(places, sizes, strict=True)]
                )
            relay.unask(client)
        if parcels := relay.due(client):
            assert sum(len(sealed) for *_, sealed in parcels) <= module.MESSAGE_BYTES or len(parcels) == 1
            if generator.random() < 0.8:
                has[client] |= {(dealer, number) for dealer, number, _ in parcels}
                relay.declare(client, everything[client] - has[client])
        held = [sum(map(len, waiting.values())) for waiting in relay._waiting]
        assert max(held) <= module.MESSAGE_BYTES
        if all(relay.ready(receiver) for receiver in clients):
            break
    assert has == everything


def test_unasked_and_misshapen_slices_are_refused() -> None:
    relay = Relay(SESSION, 2**28)
    relay.lacks_everything(1)
    with pytest.raises(MessageError, match="unasked"):
        relay.dealt(0, [(1, 0, b"")])
    assert (1, 0) in relay.ask(0)
    with pytest.raises(MessageError, match="bytes came"):
        relay.dealt(0, [(1, 0, b"too short")])


def test_what_does_not_exist_is_not_lacking() -> None:
    with pytest.raises(MessageError, match="does not exist"):
        Relay(SESSION, 2**28).declare(1, [(0, 10_000)])


def test_given_up_after_some_rejections() -> None:
    relay = Relay(SESSION, 2**28)
    relay.declare(1, [(0, 0)])
    asked = 0
    while places := relay.ask(0):
        asked += 1
        relay.dealt(0, [(1, 0, bytes(parcel_bytes(SESSION, 0, 0)))])
        assert places == [(1, 0)]
        assert relay.due(1)
        relay.rejected(1, 0, 0)
    assert asked == 4
    assert not relay.ready(1)
