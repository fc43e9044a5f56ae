"""What the coordinator receives: no share in the clear, and nothing that tells data sets of one size apart."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
import torch

from consortium import Consortium
from dresfl import sealing
from dresfl.federation import sealed_slices
from dresfl.federation.messages import Ack, Answered, Hello, Slice, decode
from dresfl.protocol import Client
from dresfl.runtimes.coordinator_host import CoordinatorHost, OnNetwork
from dresfl.storage import ShareStore, data_digest

from .federation import Network

Capture = list[tuple[int, bytes]]  # client, message


def captured(consortium: Consortium, monkeypatch: pytest.MonkeyPatch) -> tuple[Capture, Network]:
    """A whole run, and every message that reached the coordinator."""
    messages: Capture = []
    received = CoordinatorHost.received

    def noted(host: CoordinatorHost, client: int, *data: bytes | memoryview) -> list[OnNetwork]:
        messages.extend((client, bytes(message)) for message in data)
        return received(host, client, *data)

    async def run() -> Network:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        await network.finish(coordinator, network.start_clients())
        return network

    with monkeypatch.context() as patch:
        patch.setattr(CoordinatorHost, "received", noted)
        return messages, asyncio.run(run())


def equal_rows(consortium: Consortium) -> None:
    """Everybody has as many rows as everybody else."""
    consortium.rows = [(inputs[:9], targets[:9]) for inputs, targets in consortium.rows]


def introduced_rows(data: bytes) -> int:
    hello = decode(data, (Hello,))
    assert isinstance(hello, Hello)
    return hello.introduction.rows


def test_no_share_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    consortium = Consortium(tmp_path, rounds=2)
    messages, network = captured(consortium, monkeypatch)
    session = network.machine.training.session
    everything = b"".join(data for _, data in messages)
    slices = [data for _, data in messages if data[0] == Slice.KIND]
    assert len(slices) == 6 * 5
    for dealer in range(6):
        rows = consortium.rows[dealer]
        with ShareStore.open(tmp_path / f"client-{dealer}", data_digest(*rows)) as store:
            client = Client(session, dealer, store.secret(session), *rows)
        for share in client.deal_to(range(6)):
            clear = share.encode(session)[30:]
            assert all(clear[i : i + 12] not in everything for i in range(0, len(clear) - 12, 12))
        integers = rows[0].to(torch.int32).numpy().tobytes()
        assert integers[:32] not in everything


def test_the_search_would_find_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sealing the same search does find the shares: the test above is not blind."""
    padding = bytes(sealing.OVERHEAD)
    monkeypatch.setattr(sealed_slices, "seal", lambda identity, receiver, context, plaintext: plaintext + padding)
    monkeypatch.setattr(sealed_slices, "open_sealed", lambda identity, sender, context, sealed: sealed[: -len(padding)])
    consortium = Consortium(tmp_path, rounds=2)
    messages, network = captured(consortium, monkeypatch)
    session = network.machine.training.session
    everything = b"".join(data for _, data in messages)
    rows = consortium.rows[0]
    with ShareStore.open(tmp_path / "client-0", data_digest(*rows)) as store:
        client = Client(session, 0, store.secret(session), *rows)
    assert client.deal(1).encode(session)[30:] in everything


def test_other_data_looks_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client's rows swapped for others of equal size: the same messages of the same sizes come from everybody."""
    seen = []
    for swapped in (False, True):
        consortium = Consortium(tmp_path / str(swapped), rounds=2)
        equal_rows(consortium)
        if swapped:
            inputs, targets = consortium.rows[0]
            consortium.rows[0] = (inputs.flip(0, 1), targets.flip(0, 1))
        messages, _ = captured(consortium, monkeypatch)
        hellos = {(client, introduced_rows(data)) for client, data in messages if data[0] == Hello.KIND}
        answers = {len(data) for _, data in messages if data[0] == Answered.KIND}
        # (how many answers come in time, and whether the last Acks do before the end of so short a run, is chance)
        chance = (Answered.KIND, Ack.KIND)
        rest = Counter((client, data[0], len(data)) for client, data in messages if data[0] not in chance)
        seen.append((hellos, answers, rest))
    assert seen[0] == seen[1]
