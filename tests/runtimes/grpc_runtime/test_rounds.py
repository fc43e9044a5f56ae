"""Rounds without a network: arrivals in, records out."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from dresfl.runtimes.grpc_runtime.frames import Hello
from dresfl.runtimes.grpc_runtime.lobby import Lobby
from dresfl.runtimes.grpc_runtime.log import core_event, core_lines_as_events, log_to
from dresfl.runtimes.grpc_runtime.rounds import Pace, Rounds

from consortium import OPTIMIZER, Consortium
from dresfl.errors import MessageError, Refused, UsageError
from dresfl.federation import NO_NONCE, Agreement, Terms, make_session
from dresfl.federation import agreement as agreement_module
from dresfl.model import Dense
from dresfl.protocol import Client, Task, Training

from .federation import Events


class Crowd:
    """Clients that answer when told to."""

    def __init__(self, consortium: Consortium, pace: Pace) -> None:
        from dresfl.field import SecretSeed

        rows = tuple(len(inputs) for inputs, _ in consortium.rows)
        self.session = make_session(consortium.agreement, rows, b"n", b"r")
        self.clients = [Client(self.session, i, SecretSeed.fresh(), *own) for i, own in enumerate(consortium.rows)]
        for dealer in self.clients:
            for share in dealer.deal_to(range(consortium.clients)):
                self.clients[share.receiver].receive(share)
        self.server = Training(self.session, OPTIMIZER, consortium.rounds)
        self.records: list[Any] = []
        self.dismissed: list[tuple[int, str]] = []
        self.published: asyncio.Queue[Task] = asyncio.Queue()
        self.resent: list[set[int]] = []
        self.events = Events()
        watch = lambda record, answers: self.records.append((record, answers))  # noqa: E731
        self.rounds = Rounds(self.server, self, pace, watch, self.events.log)

    def publish(self, task: Task) -> None:
        self.published.put_nowait(task)

    def resend(self, answered: set[int]) -> None:
        self.resent.append(set(answered))

    def dismiss(self, index: int, reason: MessageError) -> None:
        self.dismissed.append((index, str(reason)))

    def answer(self, index: int, task: Task) -> None:
        self.rounds.arrive(index, task.round_number, self.clients[index].answer(task).encode(self.session))


def test_late_double_and_invalid_answers(tmp_path: Path) -> None:
    async def run() -> None:
        consortium = Consortium(tmp_path, clients=6, rounds=2)
        crowd = Crowd(consortium, Pace())
        running = asyncio.create_task(crowd.rounds.run())
        first = await crowd.published.get()
        crowd.rounds.arrive(5, 0, b"garbage")
        for index in (0, 0, 1, 2, 3):
            crowd.answer(index, first)
        crowd.rounds.arrive(0, 7, b"of the future")
        crowd.answer(4, first)
        second = await crowd.published.get()
        crowd.answer(5, first)  # too late
        for index in (5, 4, 3, 2, 1):
            crowd.answer(index, second)
        await running
        assert [record.survivors for record, _ in crowd.records] == [(0, 1, 2, 3, 4), (1, 2, 3, 4, 5)]
        assert [index for index, _ in crowd.dismissed] == [5]
        assert crowd.rounds.counters.late == 3
        assert crowd.rounds.counters.invalid == 1
        assert crowd.rounds.counters.answers == 10

    asyncio.run(run())


def test_grace_counts_stragglers(tmp_path: Path) -> None:
    """With a grace the sixth answer is counted, though the fifth decided."""

    async def run() -> None:
        crowd = Crowd(Consortium(tmp_path, clients=6, rounds=1), Pace(grace=30.0))
        running = asyncio.create_task(crowd.rounds.run())
        task = await crowd.published.get()
        for index in range(6):
            crowd.answer(index, task)
        await running
        assert [(len(record.survivors), answers) for record, answers in crowd.records] == [(5, 6)]

    asyncio.run(run())


def test_a_shortage(tmp_path: Path) -> None:
    async def run(on_shortage: Any) -> Crowd:
        crowd = Crowd(Consortium(tmp_path, clients=6, rounds=1), Pace(deadline=0.05, on_shortage=on_shortage))
        running = asyncio.create_task(crowd.rounds.run())
        task = await crowd.published.get()
        crowd.answer(2, task)
        await crowd.events.seen("shortage")
        if on_shortage == "retry":
            for index in (0, 1, 3, 4):
                crowd.answer(index, task)
        await running
        return crowd

    crowd = asyncio.run(run("retry"))
    assert crowd.resent[0] == {2}
    assert [record.outcome for record, _ in crowd.records] == ["stepped"]
    crowd = asyncio.run(run("skip"))
    assert [(record.outcome, answers) for record, answers in crowd.records] == [("skipped", 1)]


THREE = Agreement((Dense(2),), (3,), num_clients=3, rounds=1)


def hello(rows: int) -> Hello:
    return Hello(THREE.digest, rows, bytes(32), NO_NONCE, bytes(16))


def test_terms_survive(tmp_path: Path) -> None:
    terms = Terms(b"n" * 32, b"r" * 16, b"o" * 16, (3, 4, 5), (b"a" * 32, b"b" * 32, b"c" * 32))
    terms.save(tmp_path / "terms.json")
    assert Lobby(THREE, tmp_path / "terms.json", log_to(lambda line: None)).terms == terms


def test_a_client_with_too_many_rows_is_refused(tmp_path: Path) -> None:
    """Nothing of it is kept, and the terms are settled once it has come with fewer."""
    path = tmp_path / "terms.json"
    lobby = Lobby(THREE, path, log_to(lambda line: None))
    most = (2**31 - 1) // 3
    lobby.hello(0, hello(most))
    lobby.hello(2, hello(most))
    for rows in (2**32 - 1, most + 1):
        with pytest.raises(Refused, match=f"{most} at most") as caught:
            lobby.hello(1, hello(rows))
        assert caught.value.hint
        assert lobby.missing() == [1]
        assert not path.exists()
    lobby.hello(1, hello(most))
    assert lobby.settled_terms.rows == (most, most, most)
    assert path.exists()


def test_unusable_terms_never_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_module, "most_client_rows", lambda parameters: 2**32)
    lobby = Lobby(THREE, tmp_path / "terms.json", log_to(lambda line: None))
    lobby.hello(0, hello(5))
    lobby.hello(2, hello(5))
    with pytest.raises(UsageError):
        lobby.hello(1, hello(2**32 - 1))
    assert lobby.terms is None
    assert not (tmp_path / "terms.json").exists()


def test_only_events_pass_as_events(capfd: pytest.CaptureFixture[str]) -> None:
    event = '{"time": "now", "event": "joined", "client": 3}'
    others = ["{", '{"key": "value"}', '{"event": 5}', '{"event": "cut", ', '{"a":' * 100_000]
    with core_lines_as_events() as log:
        for line in (event, *others):
            data = line.encode() + b"\n"
            while data:
                data = data[os.write(2, data) :]
        log("own")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert json.loads(event) in lines
    assert [line["text"] for line in lines if line["event"] == "stderr"] == others
    assert len(lines) == len(others) + 2


def test_lines_of_the_core() -> None:
    head = "I1115 12:40:47.759133    1034 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: "
    known = {
        "error:100000b8:SSL routines:OPENSSL_internal:NO_SHARED_CIPHER: Invalid certificate": "1.3",
        "error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid certificate": "plaintext",
        "error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired": "expired",
        "something new": "something new",
    }
    for text, meaning in known.items():
        event = core_event(head + text)
        assert event is not None
        assert event[0] == "refused"
        assert meaning in str(event[1]["reason"])
    assert core_event("I1115 12:40:47.759133    1034 other.cc:1] fine") is None
    assert core_event("E1115 12:40:47.759133    1034 other.cc:1] bad") == ("transport", {"text": "bad"})
    assert core_event("Traceback (most recent call last):") is not None
    assert core_event("") is None
