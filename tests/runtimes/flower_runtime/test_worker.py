"""The worker: bundles over a socket that only its owner, or one group, may open."""

import grp
import os
import socket
import stat
import struct
import threading
from pathlib import Path

import pytest

from dresfl.deploy.flower import open_site
from dresfl.errors import MessageError, UsageError
from dresfl.runtimes.flower_runtime.worker import Forwarder, serve


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path, ready = tmp_path / "s", threading.Event()

    def handle(data: bytes) -> bytes:
        return data[::-1]

    threading.Thread(target=serve, args=(path, handle, "", ready.set), daemon=True).start()
    assert ready.wait(10)
    return path


def test_bundles_there_and_back(place: Path) -> None:
    for size in (1, 3_000_000):
        assert Forwarder(place).handle(b"a" + bytes(size)) == bytes(size) + b"a"


def test_private(place: Path) -> None:
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_one_worker_at_a_socket(place: Path) -> None:
    with pytest.raises(UsageError, match="already"):
        serve(place, bytes)


def test_rude_callers_do_no_harm(place: Path) -> None:
    for rude in (b"", b"\x01", struct.pack("<I", 2**32 - 1) + b"x", struct.pack("<I", 5) + b"abc"):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(place))
            caller.sendall(rude)
    assert Forwarder(place).handle(b"ab") == b"ba"


def test_socket_of_a_dead_worker_is_taken_over(tmp_path: Path) -> None:
    path, ready = tmp_path / "s", threading.Event()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert Forwarder.reached(path) is None
    threading.Thread(target=serve, args=(path, bytes, "", ready.set), daemon=True).start()
    assert ready.wait(10)
    assert Forwarder.reached(path) is not None


def test_path_too_long_and_group_unknown(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too long"):
        serve(tmp_path / ("long" * 30), bytes)
    with pytest.raises(UsageError, match="no group"):
        serve(tmp_path / "s", bytes, "no-such-group")


def test_a_group_may_connect(tmp_path: Path) -> None:
    path, ready = tmp_path / "s", threading.Event()
    group = grp.getgrgid(os.getgid()).gr_name
    threading.Thread(target=serve, args=(path, bytes, group, ready.set), daemon=True).start()
    assert ready.wait(10)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_bundle_that_cannot_be_answered(tmp_path: Path) -> None:
    """The worker says so in its log, and stays."""
    path, ready = tmp_path / "s", threading.Event()

    def handle(data: bytes) -> bytes:
        if data == b"bad":
            raise RuntimeError("out of memory")
        return data

    threading.Thread(target=serve, args=(path, handle, "", ready.set), daemon=True).start()
    assert ready.wait(10)
    with pytest.raises(MessageError, match="no reply"):
        Forwarder(path).handle(b"bad")
    assert Forwarder(path).handle(b"good") == b"good"


def test_worker_that_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        closer = threading.Thread(target=lambda: listener.accept()[0].close())
        closer.start()
        with pytest.raises((MessageError, OSError)):
            Forwarder(path).handle(b"bundle")
        closer.join()


def test_node_config(place: Path, tmp_path: Path) -> None:
    site = open_site({"socket": str(place)}, {})
    assert site.handle(b"ab") == b"ba"
    with pytest.raises(UsageError, match="does not know its site"):
        open_site({}, {"coordinator": "fed.toml", "sites": ""})
    place.rename(tmp_path / "site.socket")
    assert open_site({"site": str(tmp_path / "site.toml")}, {}).handle(b"ab") == b"ba"
