"""How threads share a call: every unit once, no wait for a thread that has not begun, no help after a long wait."""

import threading
from concurrent.futures import Future

import pytest
import torch

from dresfl.kernels.cpu import sharing
from dresfl.kernels.threads import torch_threads


@pytest.fixture(autouse=True)
def fresh_threads():
    sharing._helpers.cache_clear()
    yield
    sharing._helpers.cache_clear()


class Calls:
    """A kernel that notes which units it was given, and on which thread."""

    def __init__(self):
        self.pieces = []

    def __call__(self, first, last, *arguments):
        self.pieces.append((first, last, threading.get_ident(), arguments))

    @property
    def units(self):
        return sorted(unit for first, last, *_ in self.pieces for unit in range(first, last))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("units", [1, 2, 9, 1000])
def test_every_unit_is_done_once(threads, units):
    calls, tensor = Calls(), torch.zeros(1)
    with torch_threads(threads):
        sharing.share(calls, units, True, (7,), tensor)
    assert calls.units == list(range(units))
    assert {piece[3] for piece in calls.pieces} == {(7, tensor.data_ptr())}


def test_small_work_is_not_shared():
    calls = Calls()
    with torch_threads(2):
        sharing.share(calls, 100, False, ())
    assert [piece[:2] for piece in calls.pieces] == [(0, 100)]


def test_a_thread_that_never_begins_is_not_waited_for():
    class Busy:
        """A pool whose threads have other work for ever."""

        def submit(self, work, claims):
            return Future()

    calls = Calls()
    with torch_threads(2):
        helpers = sharing._helpers(1, sharing.os.getpid())
        helpers.pool = Busy()
        sharing.share(calls, 10, True, ())
    assert calls.units == list(range(10))
    assert helpers.calls_alone == 0


def test_an_error_in_another_thread_is_raised():
    mine, other_began = threading.get_ident(), threading.Event()

    def kernel(first, last):
        if threading.get_ident() != mine:
            other_began.set()
            raise ArithmeticError("in another thread")
        assert other_began.wait(60)

    with torch_threads(2), pytest.raises(ArithmeticError, match="in another thread"):
        sharing.share(kernel, 2, True, ())


def test_after_a_long_wait_calls_go_alone_for_a_while(monkeypatch):
    monkeypatch.setattr(sharing, "_SHORT_WAIT", 0.0)
    monkeypatch.setattr(sharing, "_LONG_SHARE", 0.0)
    monkeypatch.setattr(sharing, "_CALLS_ALONE", 2)
    mine, began, release = threading.get_ident(), threading.Event(), threading.Event()

    def kernel(first, last):
        """Each thread is at one piece until the other is, too; then the calling thread is done first."""
        if threading.get_ident() == mine:
            assert began.wait(60)
            release.set()
        else:
            began.set()
            assert release.wait(60)

    with torch_threads(2):
        sharing.share(kernel, 2, True, ())
        for alone in (True, True, False):
            calls = Calls()
            sharing.share(calls, 64, True, ())
            assert (len(calls.pieces) == 1) == alone


def test_kernels_alone_share():
    calls = Calls()
    with torch_threads(2):
        with sharing.kernels_alone_share():
            assert torch.get_num_threads() == 1
            sharing.share(calls, 64, True, ())
        assert torch.get_num_threads() == 2
    assert len(calls.pieces) == 16
    assert calls.units == list(range(64))
