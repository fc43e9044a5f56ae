"""One authenticated client that sends the worst it can: the coordinator keeps little of it, and spends little on it."""

import functools
import gc
import json
import tracemalloc

import pytest

from dresfl.federation import Coordinator, CoordinatorSettings, Introduction
from dresfl.federation.agreement import MOST_SLICES
from dresfl.federation.messages import (
    AGREEMENT_BYTES,
    HOLDING_BYTES,
    TEXT_BYTES,
    Ack,
    Answered,
    Declined,
    Hello,
    Holding,
    Informed,
    Ready,
    Reject,
    Slice,
)
from dresfl.protocol import num_slices, slice_rows

from .setting import linear

MESSAGES = 1000
HOSTILE = 2


class Federation:
    """Five clients, one of which has as many rows as there may be."""

    def __init__(self, hostile_rows=None):
        self.setting = setting = linear(2)
        self.machine = Coordinator(
            CoordinatorSettings(), setting.agreement, setting.coordinator, setting.roster, setting.server
        )
        self.machine.start(0.0)
        self.rows = [len(inputs) for inputs, _ in setting.rows]
        if hostile_rows is not None:
            self.rows[HOSTILE] = hostile_rows
        for client in range(5):
            self.join(client)
        self.session = self.machine.training.session

    def hello(self, client):
        return Hello(
            Introduction(self.rows[client], bytes([client]) * 64, b"n" * 32), bytes(16), self.setting.agreement.encode()
        )

    def join(self, client):
        self.machine.connected_to(client, 0.0)
        self.machine.received(client, self.hello(client).encode(), 0.0)

    def hold(self, client, held):
        for dealer in range(5):
            everything = (1 << num_slices(self.session, dealer)) - 1
            bits = everything if dealer == client else held(dealer, everything)
            self.machine.received(client, Holding(dealer, bits).encode(), 0.0)

    def sends(self, messages):
        """What the hostile client's messages cost: bytes kept, and bytes at most. It comes back when it is refused."""
        encoded = [message if isinstance(message, bytes) else message.encode() for message in messages]
        gc.collect()
        tracemalloc.start()
        for data in encoded:
            if HOSTILE not in self.machine.connected:
                self.join(HOSTILE)
            self.machine.received(HOSTILE, data, 0.0)
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return kept, peak


@functools.cache
def most_rows():
    """As many as a client may say that it has."""
    return MOST_SLICES * slice_rows(Federation().session)


def nested(depth):
    return b'{"layers":' + b"[" * depth + b"]" * depth + b"}"


# As long as may be, and different from the coordinator's in every way.
OTHER_AGREEMENT = json.dumps({f"key {i}": "x" * 50 for i in range(900)}).encode()[:AGREEMENT_BYTES]


WORST = {
    "Hello of another agreement": lambda f, i: Hello(Introduction(1, bytes(64)), bytes(16), OTHER_AGREEMENT),
    "Hello of brackets": lambda f, i: Hello(Introduction(1, bytes(64)), bytes(16), nested(32000)),
    "Holding of nothing": lambda f, i: Holding(i % 5, 0),
    "Holding of everything": lambda f, i: Holding(i % 5, (1 << (8 * HOLDING_BYTES)) - 1),
    "Holding of odd slices": lambda f, i: Holding(HOSTILE, int.from_bytes(b"\x55" * HOLDING_BYTES, "little")),
    "Ready": lambda f, i: Ready(f.session.sharing_id, bytes(32)),
    "Slice": lambda f, i: Slice(i % 5, i, bytes(2**16)),
    "Ack": lambda f, i: Ack(i % 5, i),
    "Reject": lambda f, i: Reject(i % 5, i, "x" * TEXT_BYTES),
    "Answered": lambda f, i: Answered(0, bytes(2**16)),
    "Answered late": lambda f, i: Answered(10**6 + i, bytes(2**16)),
    "Informed": lambda f, i: Informed(i),
    "Declined": lambda f, i: Declined(i, "x" * TEXT_BYTES),
    "nothing": lambda f, i: b"",
    "an unknown kind": lambda f, i: bytes([200]) + bytes(2**16),
}


@pytest.mark.timeout(60)  # with the relay of 0.1 some of them took minutes
@pytest.mark.parametrize("kind", WORST)
def test_a_thousand_hostile_messages(kind):
    """They add less than 50 MB."""
    federation = Federation(hostile_rows=most_rows())
    messages = [WORST[kind](federation, number) for number in range(MESSAGES)]
    kept, peak = federation.sends(messages)
    assert kept < 5e6
    assert peak < 50e6
    assert not federation.machine.ended


def test_what_half_a_million_slices_cost_the_coordinator():
    """A client that claims as many rows as there may be: its slices are bits for everybody who lacks them."""
    federation = Federation(hostile_rows=most_rows())
    gc.collect()
    tracemalloc.start()
    for client in (0, HOSTILE):
        federation.hold(client, lambda dealer, everything: 0)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 10e6
