"""Replaced connections, clients that vanish, errors inside, stops at any moment: nothing hangs, nothing is leaked."""

import asyncio
import gc
import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from consortium import Consortium
from dresfl.errors import DresError, Refused, StoreError
from dresfl.federation.messages import Done, Judged, Ready, Request, Weights
from dresfl.runtimes.grpc_runtime.coordinator import Connection
from dresfl.storage.spool import Spool

from .federation import Network, stop, within
from .proxy import Proxy
from .test_cuts import Proxied
from .test_refusals import PLACE, disturbed_run, drain, five_clients, join


def clean(run: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    """Run it in a loop of its own; no thread of it is left, and asyncio has nothing to complain of."""
    with caplog.at_level(logging.WARNING, "asyncio"):
        asyncio.run(run(), debug=False)
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    names = ("machine", "spool", "work", "deal")
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith(names)] == []


# -- one client's connection -----------------------------------------------------------------------------------


def test_what_waits_to_be_written() -> None:
    """In order; of the rounds' weights only the newest, however slow the client is."""

    async def run() -> None:
        connection = Connection(0, None)  # type: ignore[arg-type]
        connection.put(Request(1, 1))
        for number in range(1000):
            connection.put(Weights(bytes([number % 256])))
        connection.put(Request(1, 2))
        connection.put(Weights(b"newest"))
        connection.put(Done(b"end"))
        found = [await connection.next() for _ in range(4)]
        assert [type(message) for message in found] == [Request, Request, Weights, Done]
        assert isinstance(found[2], Weights)
        assert found[2].task == b"newest"

    asyncio.run(run())


def test_the_first_reason_counts() -> None:
    async def run() -> None:
        connection, error = Connection(0, None), DresError("why")  # type: ignore[arg-type]
        connection.close(error)
        connection.close(None, replaced=True)
        assert (connection.close_error, connection.replaced) == (error, False)

    asyncio.run(run())


# -- a replaced connection -------------------------------------------------------------------------------------


def test_a_newer_connection_takes_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The older one is ended. Nothing that it says counts, nothing meant for the newer one goes to it, and its end is
    not that of the newer one."""

    async def intrude(network: Network) -> None:
        sharing = network.machine.training.session.sharing_id
        (old_channel, old, _), (new_channel, new, _) = await join(network, PLACE), await join(network, PLACE)
        async with old_channel, new_channel:
            with pytest.raises(grpc.aio.AioRpcError, match="a newer connection"):
                await drain(old)
            assert len(network.coordinator_events.of("replaced")) == 1
            assert PLACE in network.machine.connected
            assert PLACE not in network.machine.ready
            await new.write(Ready(sharing, bytes(32)).encode())
            while (data := await new.read())[0] == Judged.KIND:
                pass
            assert data[0] == Weights.KIND
            assert PLACE in network.machine.ready

    clean(lambda: disturbed_run(five_clients(tmp_path), intrude), caplog)


def test_messages_of_a_replaced_connection_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They wait while the machine is busy; by the time it has time, there is a newer connection."""

    async def intrude(network: Network) -> None:
        sharing = network.machine.training.session.sharing_id
        channel, old, _ = await join(network, PLACE)
        coordinator = network.coordinator
        assert coordinator is not None
        (older,) = [connection for connection in coordinator._open if connection.client == PLACE]
        newer = Connection(PLACE, older.stream)
        busy, received = threading.Event(), len(network.coordinator_events.of("ready"))
        coordinator._machine.submit(busy.wait, 60)
        coordinator._machine.submit(coordinator._connect, newer)
        async with channel:
            await old.write(Ready(sharing, bytes(32)).encode())
            await asyncio.wrap_future(_released(coordinator, busy))
            with pytest.raises(grpc.aio.AioRpcError, match="a newer connection"):
                await drain(old)
        assert len(network.coordinator_events.of("ready")) == received
        await asyncio.wrap_future(coordinator._machine.submit(coordinator._forget, newer))

    def _released(coordinator: Any, busy: threading.Event) -> Any:
        busy.set()
        return coordinator._machine.submit(int)

    clean(lambda: disturbed_run(five_clients(tmp_path), intrude), caplog)


def test_a_copied_client_folder_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two processes with one identity do not take the connection from each other for ever: the older one ends."""

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(3):
            await stop(clients.pop(PLACE))  # all five are needed: the run waits
        shutil.copytree(tmp_path / "client-0", tmp_path / "copy")
        older, clients[0] = clients[0], network.start_client(0, folder=tmp_path / "copy")
        with pytest.raises(Refused, match="client 0 runs twice"):
            await within("the end of the older process", older, report=network.report)
        clients[PLACE] = network.start_client(PLACE)
        assert await network.finish(coordinator, clients) == consortium.expected()
        (refused,) = network.coordinator_events.of("refused")
        assert (refused["client"], refused["name"]) == (0, "site-0")
        assert len(network.coordinator_events.of("replaced")) <= 3  # by the copy, by the older one, by the copy again

    consortium = five_clients(tmp_path)
    clean(run, caplog)


# -- a client that vanishes ------------------------------------------------------------------------------------


def test_a_client_that_stops_reading_and_vanishes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The coordinator writes to it, cannot, and goes on with the others; the client comes back and has everything."""

    async def run() -> None:
        network = Proxied(consortium)
        coordinator = await network.start_coordinator()
        network.proxy = await Proxy(network.port).start()
        clients = {0: network.start_client(0)}
        direct = Network.connect_settings(network)
        network.connect_settings = lambda: direct  # type: ignore[method-assign]
        clients |= network.start_clients(but=(0,))
        async with network.pause_after(0):
            network.proxy.hold()
        async with network.pause_after(20):
            network.proxy.cut()
        network.proxy.release()
        assert await network.finish(coordinator, clients) == consortium.expected()
        await network.proxy.stop()

    consortium = Consortium(tmp_path, clients=6, rounds=60)
    clean(run, caplog)


# -- errors inside ---------------------------------------------------------------------------------------------


def fail(*_: object) -> Any:
    raise ZeroDivisionError("inside")


@pytest.mark.parametrize("place", ["training", "round", "disk"])
def test_an_error_in_the_machine_ends_the_run(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        network = Network(Consortium(tmp_path))
        if place == "training":
            network.make_training = fail
        elif place == "round":
            network._watch = fail  # type: ignore[method-assign]
        else:
            monkeypatch.setattr(Spool, "drop", fail)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        with pytest.raises(ZeroDivisionError, match="inside"):
            await within("the coordinator's error", coordinator, report=network.report)
        for task in clients.values():
            await stop(task)

    clean(run, caplog)


def test_after_an_error_nothing_more_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A round whose record is not on the disk has no consequences: nobody is sent the weights that follow from it."""

    async def run() -> None:
        network = Network(Consortium(tmp_path))
        watched = []

        def watch(record: Any, answers: int) -> None:
            watched.append(record.round_number)
            if record.round_number == 4:
                raise DresError("the disk is full")

        network._watch = watch  # type: ignore[method-assign]
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        with pytest.raises(DresError, match="the disk is full"):
            await within("the coordinator's error", coordinator, report=network.report)
        for task in clients.values():
            await stop(task)
        assert watched == [0, 1, 2, 3, 4]
        assert network.host is not None
        assert max(network.machine.counters.last_answered.values()) == 4

    clean(run, caplog)


def test_an_error_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run whose training cannot go on does not listen at all."""

    async def run() -> None:
        network = Network(Consortium(tmp_path))
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(2):
            coordinator.cancel()
        await stop(coordinator)
        before = len(network.coordinator_events.of("listening"))
        network.make_training = fail
        with pytest.raises(ZeroDivisionError):
            await network.start_coordinator()
        assert len(network.coordinator_events.of("listening")) == before
        for task in clients.values():
            await stop(task)

    clean(run, caplog)


def test_an_error_in_a_client_ends_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not the others, who go on."""

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients(but=(5,))
        failing = network.start_client(5, keep=fail)
        with pytest.raises(ZeroDivisionError, match="inside"):
            await within("client 5's error", failing, report=network.report)
        assert await network.finish(coordinator, clients) == consortium.expected()

    consortium = Consortium(tmp_path, clients=6)
    clean(run, caplog)


def test_a_disk_that_takes_no_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its dealer is sent away and comes back with it, until there is room."""
    put, failures = Spool.put, []

    def full(spool: Spool, *arguments: Any) -> None:
        if len(failures) < 7:
            failures.append(arguments[:3])
            raise StoreError("no space left")
        put(spool, *arguments)

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        assert await network.finish(coordinator, network.start_clients()) == consortium.expected()
        assert len(network.coordinator_events.of("failed")) == 7

    monkeypatch.setattr(Spool, "put", full)
    consortium = Consortium(tmp_path, clients=5)
    clean(run, caplog)


def test_a_full_disk_is_not_asked_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Dealers are sent away right after Begin: each time they wait twice as long before they come back."""
    put, first, times = Spool.put, 0.05, 3
    free = threading.Event()

    def full(spool: Spool, *arguments: Any) -> None:
        if not free.is_set():
            raise StoreError("no space left")
        put(spool, *arguments)

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        settings = replace(network.connect_settings(), first_delay=first, longest_delay=30.0)
        network.connect_settings = lambda: settings  # type: ignore[method-assign]
        clients = network.start_clients()
        line = await network.client_events[0].seen("disconnected", times)
        assert line["again_in"] >= 0.5 * first * 2**times
        free.set()
        assert await network.finish(coordinator, clients) == consortium.expected()

    monkeypatch.setattr(Spool, "put", full)
    consortium = Consortium(tmp_path, clients=5)
    clean(run, caplog)


def test_a_disk_that_loses_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is lost between dealer and receiver is dealt again."""
    get, lost = Spool.get, set()

    def forgetful(spool: Spool, *place: int) -> bytes | None:
        if place not in lost and len(lost) < 9:
            lost.add(place)
            return None
        return get(spool, *place)

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        assert await network.finish(coordinator, network.start_clients()) == consortium.expected()

    monkeypatch.setattr(Spool, "get", forgetful)
    consortium = Consortium(tmp_path, clients=5)
    clean(run, caplog)
    assert len(lost) == 9


# -- stops -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["listening", "joined", "terms settled", "ready", "rounds"])
def test_a_stop_at_any_moment(tmp_path: Path, event: str, caplog: pytest.LogCaptureFixture) -> None:
    """The port and the folder are free for the next start at once, and the run ends as if nothing had happened."""

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        await network.coordinator_events.seen(event)
        await stop(coordinator)
        coordinator = await network.start_coordinator()
        assert await network.finish(coordinator, clients) == consortium.expected()

    consortium = Consortium(tmp_path, clients=5, rounds=40)
    clean(run, caplog)


def test_a_stop_while_the_machine_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it is doing is finished, what waits is not begun, and only then the coordinator has ended."""

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        async with network.pause_after(5):
            coordinator.cancel()
            for events in network.client_events:
                await events.seen("disconnected")
            assert not coordinator.done()
        await stop(coordinator)
        assert [record.round_number for record in network.records] == list(range(6))
        coordinator = await network.start_coordinator()
        assert await network.finish(coordinator, clients) == consortium.expected()

    consortium = Consortium(tmp_path)
    clean(run, caplog)


def test_clients_stop_at_any_moment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also while they work; their folders are free at once."""

    async def run() -> None:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        clients = network.start_clients()
        for index, event in enumerate(("connected", "ready", "connected", "ready")):
            await network.client_events[index].seen(event)
            await stop(clients[index])
            clients[index] = network.start_client(index)
        assert await network.finish(coordinator, clients) == consortium.expected()

    consortium = Consortium(tmp_path, clients=5, rounds=200)
    clean(run, caplog)


def test_a_port_in_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        network = Network(Consortium(tmp_path))
        coordinator = await network.start_coordinator()
        with pytest.raises(DresError, match="cannot listen"):
            await network.start_coordinator()
        await stop(coordinator)

    clean(run, caplog)
