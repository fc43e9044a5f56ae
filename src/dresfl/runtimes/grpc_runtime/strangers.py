"""Strangers: connections of nobody in the roster so far. If there are many, the oldest are closed to make room.

gRPC closes a connection above its limit as soon as it is accepted. So whoever holds all places would keep every client
out until the time for handshakes is over, and could do it again. But a client needs its place for a moment only: once
its stream is open it is no stranger. So it is the oldest strangers who go, well below gRPC's limit.

gRPC has no call for that. On Linux a process finds its own sockets in /proc/self/fd; elsewhere only the limit and the
time for handshakes hold.
"""

import asyncio
import contextlib
import ipaddress
import math
import os
import socket
import stat
import time
from collections.abc import Callable, Iterable
from typing import final
from urllib.parse import unquote

from dresfl.runtimes.log import Log

_LOOK_SECONDS = 0.25  # between two looks
_SECONDS_BETWEEN_LINES = 10.0  # of the log
_YOUNG_SECONDS = 0.5  # nobody is closed sooner
_SOCKETS = "/proc/self/fd"

Address = tuple[str, int]


def peer_address(peer: str) -> Address | None:
    """Host and port in gRPC's name for a peer; None if it has no port.

    >>> peer_address("ipv4:127.0.0.1:40112") == ("127.0.0.1", 40112)
    True
    >>> peer_address("ipv6:%5B::1%5D:40112") == ("::1", 40112)
    True
    """
    host, colon, port = unquote(peer).partition(":")[2].rpartition(":")
    return _address(host.strip("[]"), int(port)) if colon and port.isdecimal() else None


def _address(host: str, port: int) -> Address:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host, port
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found), port


@final
class Strangers:
    """Closes the oldest strangers at one port, when there are more of them than there should be."""

    def __init__(self, port: int, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._port, self.most, self._clock = port, most, clock
        try:  # it stays open: a look must be possible when there is no descriptor left
            self._folder = os.open(_SOCKETS, os.O_RDONLY)
        except OSError:  # another system
            self._folder = -1
        self._seen: dict[
            int, tuple[float, Address | None]
        ] = {}  # inode -> since when, and whose; None: not of this port

    def many(self) -> bool:
        """Whether there may be too many: a quick look."""
        return self._folder >= 0 and len(os.listdir(self._folder)) > self.most

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def make_room(self, known: Iterable[Address]) -> int:
        """Close the oldest connections, if they are too many, except those of `known` peers; return how many."""
        now, clients = self._clock(), set(known)
        strangers, sockets = [], {}
        for number, inode in _open_sockets(self._folder):
            if inode not in self._seen:
                self._seen[inode] = (now, _peer(number, inode, self._port))
            sockets[inode] = self._seen[inode]
            since, peer = self._seen[inode]
            if peer is not None and peer not in clients:
                strangers.append((since, number, inode))
        self._seen = sockets
        oldest = sorted(strangers)[: max(0, len(strangers) - self.most)]
        return sum(_shut(number, inode) for since, number, inode in oldest if now - since >= _YOUNG_SECONDS)


async def keep_room(strangers: Strangers, peers: Callable[[], Iterable[str]], log: Log) -> None:
    """Close strangers whenever there are too many, for ever. peers: gRPC's names for those who are none."""
    closed, said = 0, -math.inf
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if strangers.many():
            known = [address for address in map(peer_address, peers()) if address is not None]
            closed += await asyncio.to_thread(strangers.make_room, known)
        if closed and time.monotonic() - said >= _SECONDS_BETWEEN_LINES:
            log("strangers closed", count=closed, reason=f"more than {strangers.most} connections without a client")
            closed, said = 0, time.monotonic()


def _open_sockets(folder: int) -> list[tuple[int, int]]:
    """Descriptor and inode of every socket of this process."""
    found = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.append((int(name), status.st_ino))
    return found


def _own(number: int, inode: int) -> socket.socket | None:
    """A descriptor of our own for a socket: whoever closes the other one meanwhile, this stays the same socket."""
    try:
        descriptor = os.dup(number)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_ino == inode:
            return socket.socket(fileno=descriptor)
    except OSError:
        pass
    os.close(descriptor)
    return None


def _peer(number: int, inode: int, port: int) -> Address | None:
    """Who is at the other end, if the socket is a connection that was accepted at the port."""
    with contextlib.suppress(OSError):
        own = _own(number, inode)
        if own is not None:
            with own:
                if own.family in (socket.AF_INET, socket.AF_INET6) and own.getsockname()[1] == port:
                    host, its_port = own.getpeername()[:2]  # a listening socket has none
                    return _address(host, its_port)
    return None


def _shut(number: int, inode: int) -> bool:
    """End a connection. gRPC sees its end, and closes it."""
    with contextlib.suppress(OSError):
        own = _own(number, inode)
        if own is not None:
            with own:
                own.shutdown(socket.SHUT_RDWR)
                return True
    return False
