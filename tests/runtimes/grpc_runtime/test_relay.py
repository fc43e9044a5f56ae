"""Who lacks which slice, and the coordinator's disk between dealer and receiver."""

import asyncio
import random
from pathlib import Path

import pytest
from dresfl.runtimes.grpc_runtime.relay import Relay
from dresfl.runtimes.grpc_runtime.spool import Spool

from dresfl.coding import CodeParameters
from dresfl.errors import MessageError
from dresfl.model import mlp
from dresfl.protocol import Session, num_slices


def make_relay(folder: Path, rows: int = 4000, spool_bytes: int = 2**40) -> tuple[Relay, Session]:
    """Four dealers with several slices each."""
    session = Session(mlp((400, 3), input_bits=4, weight_bits=10), CodeParameters(4, batch_size=8), (rows,) * 4, 0)
    return Relay(session, Spool(folder / "spool", session.sharing_id), spool_bytes), session


def declare_all(relay: Relay, receiver: int, clients: int, session: Session) -> None:
    for dealer in range(clients):
        held = frozenset(range(num_slices(session, dealer))) if dealer == receiver else frozenset()
        relay.declare(receiver, dealer, held)


def test_everything_reaches_everybody_in_any_order(tmp_path: Path) -> None:
    """Dealers and receivers come, go and stall at random: each slice arrives, whole and at its own place."""

    async def run() -> None:
        clients = 4
        relay, session = make_relay(tmp_path)
        count = num_slices(session, 0)
        assert count >= 3
        generator = random.Random(5)
        held: list[set[tuple[int, int]]] = [set() for _ in range(clients)]
        asked: list[list[tuple[int, int]]] = [[] for _ in range(clients)]
        sent: list[list[tuple[int, int]]] = [[] for _ in range(clients)]
        for receiver in range(clients):
            declare_all(relay, receiver, clients, session)
        wanted = {(dealer, number) for dealer in range(clients) for number in range(count)}
        for _ in range(20_000):
            who, deed = generator.randrange(clients), generator.randrange(12)
            if deed == 0:
                relay.dealer_came(who)
                asked[who].clear()
            elif deed == 1:
                relay.receiver_came(who)
                sent[who].clear()
                for dealer in range(clients):
                    own = {n for d, n in held[who] if d == dealer} if dealer != who else set(range(count))
                    relay.declare(who, dealer, frozenset(own))
            elif deed < 5 and (place := relay.next_for_dealer(who)):
                asked[who].append(place)
            elif deed < 8 and asked[who]:
                receiver, number = asked[who].pop(0)
                sealed = f"{who} {receiver} {number}".encode()
                relay.expect(who, receiver, number, len(sealed))
                relay.store(who, receiver, number, sealed)
                relay.stored(who, receiver, number, len(sealed))
            elif deed < 10 and (place := relay.next_for_receiver(who)):
                sent[who].append(place)
            elif sent[who]:
                dealer, number = sent[who].pop(0)
                assert relay.load(who, dealer, number) == f"{dealer} {who} {number}".encode()
                if generator.randrange(20) == 0:
                    relay.lost(who, dealer, number)
                    continue
                held[who].add((dealer, number))
                relay.acknowledge(who, dealer, number)
            if all(held[i] >= {place for place in wanted if place[0] != i} for i in range(clients)):
                break
        else:
            pytest.fail("not everything arrived")
        assert relay.spooled_bytes == 0

    asyncio.run(run())


def test_a_receiver_that_is_away_does_not_fill_the_spool(tmp_path: Path) -> None:
    """Receiver 3 takes nothing: its quota fills, the others get theirs."""

    async def run() -> None:
        relay, session = make_relay(tmp_path, rows=60_000, spool_bytes=1)
        for receiver in range(4):
            declare_all(relay, receiver, 4, session)
        waiting = [0] * 4
        for _ in range(4 * 4 * num_slices(session, 0)):
            for dealer in range(4):
                if place := relay.next_for_dealer(dealer):
                    receiver, number = place
                    relay.store(dealer, receiver, number, b"x")
                    relay.stored(dealer, receiver, number, 1)
                    waiting[receiver] += 1
            for receiver in range(3):
                while place := relay.next_for_receiver(receiver):
                    relay.acknowledge(receiver, *place)
        assert waiting[:3] == [3 * num_slices(session, 0)] * 3
        assert waiting[3] == 16
        assert num_slices(session, 0) > 16

    asyncio.run(run())


def test_what_was_not_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        relay, session = make_relay(tmp_path)
        declare_all(relay, 1, 4, session)
        assert relay.next_for_dealer(0) == (1, 0)
        for dealer, receiver, number, size in ((0, 2, 0, 1), (0, 1, 5, 1), (2, 1, 0, 1), (0, 1, 0, 2**21)):
            with pytest.raises(MessageError):
                relay.expect(dealer, receiver, number, size)
        with pytest.raises(MessageError):
            relay.declare(1, 9, frozenset())
        with pytest.raises(MessageError):
            relay.declare(1, 0, frozenset({10_000}))
        with pytest.raises(MessageError):
            relay.reject(1, 0, 0)

    asyncio.run(run())


def test_the_spool_survives_and_forgets_other_sharings(tmp_path: Path) -> None:
    spool = Spool(tmp_path, b"a" * 16)
    spool.put(1, 0, 3, b"sealed")
    assert Spool(tmp_path, b"a" * 16).waiting(1) == [(0, 3)]
    assert Spool(tmp_path, b"b" * 16).waiting(1) == []
    again = Spool(tmp_path, b"a" * 16)
    assert again.get(1, 0, 3) is None


def test_an_older_stream_that_ends_late(tmp_path: Path) -> None:
    """A client came back before its first streams had ended: their end changes nothing for the new ones."""

    async def run() -> None:
        relay, session = make_relay(tmp_path)
        old_receiver, old_dealer = relay.receiver_came(1), relay.dealer_came(0)
        declare_all(relay, 1, 4, session)
        assert relay.next_for_dealer(0) == (1, 0)
        relay.receiver_came(1)
        declare_all(relay, 1, 4, session)
        relay.dealer_came(0)
        assert relay.next_for_dealer(0) == (1, 0)
        relay.dealer_left(0, old_dealer)
        relay.receiver_left(1, old_receiver)
        relay.expect(0, 1, 0, 1)
        relay.store(0, 1, 0, b"x")
        relay.stored(0, 1, 0, 1)
        assert relay.next_for_receiver(1) == (0, 0)

    asyncio.run(run())
