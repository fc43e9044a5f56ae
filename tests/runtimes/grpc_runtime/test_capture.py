"""What the coordinator receives: no share in the clear, and nothing that tells data sets of one size apart."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
import torch
from dresfl.runtimes.grpc_runtime.frames import Ack, Hello, Reply, Slice

from consortium import Consortium
from dresfl.protocol import Client
from dresfl.runtimes.grpc_runtime import streams
from dresfl.storage import ShareStore, data_digest

from .federation import Network

Capture = list[tuple[int, bytes]]  # client, frame


def captured(consortium: Consortium, monkeypatch: pytest.MonkeyPatch) -> tuple[Capture, Network]:
    """A whole run, and every frame that reached the coordinator."""
    frames: Capture = []
    read = streams.Stream.read

    async def noted(stream: streams.Stream) -> bytes:
        data = await read(stream)
        frames.append((stream.index, data))
        return data

    async def run() -> Network:
        network = Network(consortium)
        coordinator = await network.start_coordinator()
        await asyncio.gather(*network.start_clients().values())
        await coordinator
        return network

    with monkeypatch.context() as patch:
        patch.setattr(streams.Stream, "read", noted)
        return frames, asyncio.run(run())


def equal_rows(consortium: Consortium) -> None:
    """Everybody has as many rows as everybody else."""
    consortium.rows = [(inputs[:9], targets[:9]) for inputs, targets in consortium.rows]


def test_no_share_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    consortium = Consortium(tmp_path, rounds=2)
    frames, network = captured(consortium, monkeypatch)
    session = network.running.session
    everything = b"".join(data for _, data in frames)
    slices = [data for _, data in frames if data[0] == Slice.KIND]
    assert len(slices) == 6 * 5
    for dealer in range(6):
        rows = consortium.rows[dealer]
        with ShareStore.open(tmp_path / f"site-{dealer}", data_digest(*rows)) as store:
            client = Client(session, dealer, store.secret(session), *rows)
        for share in client.deal_to(range(6)):
            clear = share.encode(session)[30:]
            assert all(clear[i : i + 12] not in everything for i in range(0, len(clear) - 12, 12))
        integers = rows[0].to(torch.int32).numpy().tobytes()
        assert integers[:32] not in everything


def test_the_search_would_find_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sealing the same search does find the shares: the test above is not blind."""
    from dresfl.federation import sealed_slices as parcels

    monkeypatch.setattr(parcels, "seal", lambda identity, receiver, context, plaintext: plaintext)
    monkeypatch.setattr(parcels, "open_sealed", lambda identity, sender, context, sealed: sealed)
    consortium = Consortium(tmp_path, rounds=2)
    frames, network = captured(consortium, monkeypatch)
    session = network.running.session
    everything = b"".join(data for _, data in frames)
    rows = consortium.rows[0]
    with ShareStore.open(tmp_path / "site-0", data_digest(*rows)) as store:
        client = Client(session, 0, store.secret(session), *rows)
    assert client.deal(1).encode(session)[30:] in everything


def test_other_data_looks_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client's rows swapped for others of equal size: the same frames of the same sizes come from everybody."""
    seen = []
    for swapped in (False, True):
        consortium = Consortium(tmp_path / str(swapped), rounds=2)
        equal_rows(consortium)
        if swapped:
            inputs, targets = consortium.rows[0]
            consortium.rows[0] = (inputs.flip(0, 1), targets.flip(0, 1))
        frames, _ = captured(consortium, monkeypatch)
        hellos = {data[:1] + data[34:38] for _, data in frames if data[0] == Hello.KIND}  # row counts
        answers = {len(data) for _, data in frames if data[0] == Reply.KIND}
        # (how many answers come in time, and whether the last Acks do before the end of so short a run, is chance)
        rest = Counter((client, data[0], len(data)) for client, data in frames if data[0] not in (Reply.KIND, Ack.KIND))
        seen.append((hellos, answers, rest))
    assert seen[0] == seen[1]
