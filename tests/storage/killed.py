"""Run by test_crash.py in a process of its own: fill a store in a child that is killed at its n-th disk operation.

For each n a child is forked; just before its n-th operation (or half-way through a write) it sends itself SIGKILL. Then
this process opens what is left, sees that everything the child had been promised is there, and finishes the work.
"""

import os
import signal
import tempfile
from pathlib import Path

import torch

import five_clients
from dresfl.errors import StoreError
from dresfl.federation.sealed_slices import missing_slices
from dresfl.protocol import Client, Task, num_slices, slice_range, slices
from dresfl.storage import ShareStore, data_digest
from five_clients import dealers, fetch, rows_of, session_of

INDEX = 2
OPERATIONS = ("fsync", "fdatasync", "replace", "pwrite", "posix_fallocate", "mkdir", "ftruncate", "unlink")


def work(folder: Path, promise) -> None:
    """Open, fetch what is missing, answer four rounds; tell of every promise as soon as it is made."""
    session = session_of()
    with ShareStore.open(folder, data_digest(*rows_of(INDEX))) as store:
        promise(b"tag " + store.tag.hex().encode())
        (table, _), answered = store.table(session, INDEX), store.answered(session)
        client = Client(session, INDEX, store.secret(session), *rows_of(INDEX), table, answered)
        clients = dealers(session, store.secret(session), INDEX)
        for dealer in range(5):
            for number in missing_slices(session, dealer, table):
                rows = slice_range(session, dealer, number)
                if number == num_slices(session, dealer) - 1:
                    client.receive_set_up(dealer, clients[dealer].deal_set_up([INDEX])[0])
                client.receive(clients[dealer].deal(INDEX, rows.start, len(rows)))
                if dealer % 2:
                    table.flush()
                    promise(b"slice %d %d" % (dealer, number))
        promise(b"complete")
        for number in range(4):
            client.answer(Task(number, torch.full((20,), number)))
            promise(b"answer %d" % number)


def dying(real, done, step, half):
    def wrapped(*arguments, **more):
        if len(done) == step:
            if half:
                number, data, place = arguments
                real(number, bytes(data)[: len(data) // 2], place)
            os.kill(os.getpid(), signal.SIGKILL)
        # a record of 64 bytes lies in one sector and is never cut
        done.append(real.__name__ == "pwrite" and len(arguments[1]) > 64)
        return real(*arguments, **more)

    return wrapped


def child(folder: Path, step: int, half: bool, pipe: int) -> None:
    done: list[bool] = []
    for name in OPERATIONS:
        setattr(os, name, dying(getattr(os, name), done, step, half))
    work(folder, lambda line: os.write(pipe, line + b"\n"))
    os.write(pipe, b"divisible " + b" ".join(b"%d" % i for i, write in enumerate(done) if write) + b"\n")


def check(folder: Path, promises: list[list[bytes]]) -> None:
    """What was promised is there; the rest can be fetched; the result is right."""
    session = session_of()
    said = {line[0]: line for line in promises if line[0] in (b"tag", b"complete")}
    with ShareStore.open(folder, data_digest(*rows_of(INDEX))) as store:
        assert said.get(b"tag", [b"", store.tag.hex().encode()])[1] == store.tag.hex().encode()
        (table, _), answered = store.table(session, INDEX), store.answered(session)
        for kind, *numbers in promises:
            if kind == b"slice":
                assert int(numbers[1]) not in missing_slices(session, int(numbers[0]), table)
            if kind == b"answer":
                assert not answered.claim(int(numbers[0]), bytes(32)), "a round could be answered again"
        assert table.complete or b"complete" not in said
        client = Client(session, INDEX, store.secret(session), *rows_of(INDEX), table, answered)
        clients = dealers(session, store.secret(session), INDEX)
        fetch(session, clients, client, table)
        assert client.ready
        batch = session.batch_rows(9)
        whole = [dealer.deal(INDEX).residues for dealer in clients]
        pairs = zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)
        assert torch.equal(table.rows(batch.dealers, batch.rows), torch.stack([whole[d][:, r] for d, r in pairs], 1))
        for part in folder.rglob("*.part"):
            raise AssertionError(f"{part} was left")


def killed(step: int, half: bool) -> list[list[bytes]]:
    """Kill a child at one step and check what it leaves; return its promises."""
    quick = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
    with tempfile.TemporaryDirectory(dir=quick) as parent:
        folder = Path(parent, "store")
        readable, writable = os.pipe()
        number = os.fork()
        if number == 0:
            os.close(readable)
            try:
                child(folder, step, half, writable)
            finally:
                os._exit(1)
        os.close(writable)
        with open(readable, "rb") as pipe:
            promises = [line.split() for line in pipe.read().splitlines()]
        _, status = os.waitpid(number, 0)
        if not os.WIFSIGNALED(status) and promises[-1][0] != b"divisible":
            raise AssertionError("the child failed")
        try:
            check(folder, promises)
        except (StoreError, AssertionError) as error:
            raise AssertionError(f"killed at operation {step}") from error
        return promises


def main() -> None:
    slices.SLICE_BYTES = five_clients.SLICE_BYTES
    torch.set_num_threads(1)
    step = 0
    while (promises := killed(step, half=False))[-1:] == [] or promises[-1][0] != b"divisible":
        step += 1
    divisible = [int(number) for number in promises[-1][1:]]
    for number in divisible:
        killed(number, half=True)
    print(f"{step} operations, {len(divisible)} of them cut in half")


if __name__ == "__main__":
    main()
