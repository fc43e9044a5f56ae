"""The post: one thread for each bundle, so that a stuck one holds up no other."""

import threading
from collections.abc import Collection, Sequence

import pytest

from dresfl.runtimes.flower_runtime.post import Failure, Post


class Office:
    """A carrier whose replies are at the test's command."""

    def __init__(self) -> None:
        self.replies: dict[str, bytes | Failure | None] = {}
        self.stuck = threading.Event()
        self.trouble = 0  # calls that fail from now on

    def _check(self) -> None:
        if self.trouble:
            self.trouble -= 1
            raise ConnectionError("the connection is gone")

    def nodes(self) -> Collection[int]:
        self._check()
        return {1, 2}

    def send(self, bundles: Sequence[tuple[int, bytes]], ttl: float) -> list[str | None]:
        self._check()
        return [None if data == b"too large" else data.decode() for _, data in bundles]

    def fetch(self, flower_id: str) -> bytes | Failure | None:
        if flower_id == "stuck":
            self.stuck.wait(60)
        if flower_id == "broken":
            raise ConnectionError("the connection is gone")
        return self.replies.get(flower_id)


def test_replies_in_the_order_of_coming() -> None:
    office = Office()
    post = Post(office, 60)
    first, second = post.send([(1, b"a"), (2, b"b")])
    office.replies["b"] = b"reply b"
    arrival = post.next(10)
    assert arrival is not None
    assert (arrival.ticket, arrival.node, arrival.request, arrival.reply) == (second, 2, b"b", b"reply b")
    office.replies["a"] = Failure("node unavailable")
    arrival = post.next(10)
    assert arrival is not None
    assert (arrival.ticket, arrival.reply) == (first, Failure("node unavailable"))
    post.close()


def test_a_stuck_bundle_holds_up_no_other() -> None:
    """As when a node dies after Flower has heard of its reply, and before the bytes are there."""
    office = Office()
    office.replies["b"] = b"reply"
    post = Post(office, 60)
    post.send([(1, b"stuck"), (2, b"b")])
    arrival = post.next(10)
    assert arrival is not None
    assert arrival.node == 2
    office.stuck.set()
    post.close()


def test_what_cannot_be_sent_or_fetched_is_a_failure() -> None:
    post = Post(Office(), 60)
    post.send([(1, b"too large"), (2, b"broken")])
    reasons = {arrival.node: arrival.reply for arrival in (post.next(10), post.next(10)) if arrival is not None}
    assert reasons == {
        1: Failure("Flower did not take the bundle"),
        2: Failure("ConnectionError: the connection is gone"),
    }


def test_a_connection_that_fails_for_a_moment() -> None:
    office = Office()
    post = Post(office, 60)
    office.trouble = 5
    assert post.nodes({7}) == {7}
    assert [post.nodes({7}) for _ in range(5)][-1] == {1, 2}
    office.trouble = 100
    assert [post.nodes({7}) for _ in range(8)] == [{7}] * 8
    with pytest.raises(ConnectionError):
        post.nodes({7})
    post.send([(1, b"a")])
    arrival = post.next(10)
    assert arrival is not None
    assert arrival.reply == Failure("Flower did not take the bundle")


def test_given_up_in_the_end() -> None:
    post = Post(Office(), 0.0)
    post.send([(1, b"never")])
    arrival = post.next(10)
    assert arrival is not None
    assert arrival.reply == Failure("no reply came in time")


def test_nothing_arrives() -> None:
    assert Post(Office(), 60).next(0.0) is None
