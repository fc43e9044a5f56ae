"""The oldest connections of strangers make room; clients and other sockets are left alone."""

import os
import socket
from collections.abc import Iterator

import pytest

from dresfl.runtimes.grpc_runtime.strangers import Strangers, peer_address

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


class Port:
    """A port with connections, both ends in this process."""

    def __init__(self, host: str) -> None:
        self.listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port = self.listener.getsockname()[1]
        self.now = 0.0
        self.strangers = Strangers(self.port, 3, lambda: self.now)
        self.callers: list[socket.socket] = []
        self.accepted: list[socket.socket] = []

    def connect(self, count: int) -> None:
        for _ in range(count):
            self.callers.append(socket.create_connection(self.listener.getsockname()[:2], timeout=30))
            self.accepted.append(self.listener.accept()[0])

    def ended(self) -> list[int]:
        """Which connections have ended, seen from the caller."""
        found = []
        for number, caller in enumerate(self.callers):
            caller.setblocking(False)
            try:
                if caller.recv(1) == b"":
                    found.append(number)
            except BlockingIOError:
                pass
        return found

    def address(self, number: int) -> tuple[str, int]:
        host, port = self.callers[number].getsockname()[:2]
        return host, port


@pytest.fixture(params=["127.0.0.1", "::1"])
def port(request: pytest.FixtureRequest) -> Iterator[Port]:
    try:
        made = Port(request.param)
    except OSError:
        pytest.skip("no such network here")
    yield made
    for end in (made.listener, *made.callers, *made.accepted):
        end.close()


def test_the_oldest_make_room(port: Port) -> None:
    port.connect(3)
    assert port.strangers.make_room([]) == 0
    port.now = 10.0
    assert port.strangers.make_room([]) == 0  # three are not too many
    port.connect(2)
    assert port.strangers.many()
    assert port.strangers.make_room([]) == 2
    assert port.ended() == [0, 1]


def test_clients_stay(port: Port) -> None:
    port.connect(6)
    known = [port.address(0), port.address(1), port.address(4)]
    port.strangers.make_room(known)
    port.now = 10.0
    port.connect(2)
    assert port.strangers.make_room(known) == 2
    assert port.ended() == [2, 3]


def test_nobody_is_closed_at_once(port: Port) -> None:
    """Also a client is a stranger, for a moment."""
    port.connect(10)
    assert port.strangers.make_room([]) == 0
    port.now = 0.4
    assert port.strangers.make_room([]) == 0
    port.now = 0.6
    assert port.strangers.make_room([]) == 7


def test_other_sockets_are_left_alone(port: Port) -> None:
    """Another port's, the listening one itself, and the callers' own ends."""
    other = Port("127.0.0.1")
    other.connect(6)
    for port.now in (0.0, 10.0):
        assert port.strangers.make_room([]) == 0
    assert other.ended() == []
    port.connect(1)
    assert port.ended() == []
    for end in (other.listener, *other.callers, *other.accepted):
        end.close()


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:5000", ("192.0.2.1", 5000)),
        ("ipv6:%5B2001:db8::1%5D:5000", ("2001:db8::1", 5000)),
        ("ipv6:%5B::ffff:192.0.2.1%5D:5000", ("192.0.2.1", 5000)),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", ("fe80::1", 5000)),
        ("unix:/tmp/socket", None),
        ("", None),
    ],
)
def test_names_of_peers(peer: str, address: tuple[str, int] | None) -> None:
    assert peer_address(peer) == address
