"""A store survives SIGKILL at any disk operation, and a power cut that loses what was not flushed."""

import os
import random
import subprocess
import sys
from pathlib import Path

from dresfl.storage import ShareStore, data_digest
from five_clients import dealers, rows_of, session_of

from .killed import INDEX, check, work


def test_sigkill_at_every_disk_operation_leaves_a_usable_store():
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "storage.killed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    operations, halves = (int(word) for word in done.stdout.split() if word.isdigit())
    assert operations > 60
    assert halves >= 8


class PowerCut(BaseException):
    pass


class Disk:
    """Forgets what was written and not flushed, in sectors, when the power goes at the n-th operation."""

    def __init__(self, step, rng):
        self.step, self.rng, self.count = step, rng, 0
        self.unflushed = {}  # path -> [(place, bytes before)]
        self.real = {name: getattr(os, name) for name in ("pwrite", "fsync", "fdatasync", "replace")}

    def tick(self):
        self.count += 1
        if self.count > self.step:
            raise PowerCut

    def pwrite(self, number, data, place):
        self.tick()
        path = os.readlink(f"/proc/self/fd/{number}")
        before = os.pread(number, len(data), place)
        self.unflushed.setdefault(path, []).append((place, before, len(data), os.fstat(number).st_size))
        return self.real["pwrite"](number, data, place)

    def flush(self, name, number):
        self.tick()
        self.real[name](number)
        self.unflushed.pop(os.readlink(f"/proc/self/fd/{number}"), None)

    def replace(self, source, target):
        self.tick()
        return self.real["replace"](source, target)

    def cut(self):
        """Undo unflushed writes, each sector of 512 bytes or not as it happens."""
        for path, writes in self.unflushed.items():
            if not os.path.exists(path):
                continue
            with open(path, "r+b") as file:
                for place, before, length, size in reversed(writes):
                    for sector in range(place // 512, -(-(place + length) // 512)):
                        start, stop = max(place, sector * 512), min(place + length, sector * 512 + 512)
                        if self.rng.random() < 0.5:
                            continue
                        old = before[start - place : stop - place]
                        file.seek(start)
                        file.write(old + bytes(stop - start - len(old)))
                    if self.rng.random() < 0.5 and file.seek(0, 2) > size:
                        file.truncate(size)


def played(folder, step, monkeypatch):
    """Work until the power goes; return what had been promised, and whether it went."""
    disk, promises = Disk(step, random.Random(step)), []
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", disk.pwrite)
        patched.setattr(os, "fsync", lambda number: disk.flush("fsync", number))
        patched.setattr(os, "fdatasync", lambda number: disk.flush("fdatasync", number))
        patched.setattr(os, "replace", disk.replace)
        opened = []
        real = ShareStore.open.__func__
        patched.setattr(ShareStore, "open", classmethod(lambda cls, *a: opened.append(real(cls, *a)) or opened[-1]))
        patched.setattr(ShareStore, "close", lambda store: None)  # a dead process closes nothing
        try:
            work(folder, lambda line: promises.append(line.split()))
            went = False
        except PowerCut:
            went = True
    for store in opened:  # give files and lock back without flushing
        for table in store._tables.values():
            table.close(flush=False)
        store._tables.clear()
        store.close()
    disk.cut()
    return promises, went


def test_a_power_cut_at_any_operation_loses_nothing_that_was_promised(tmp_path, monkeypatch):
    for step in range(10**6):
        folder = tmp_path / f"{step}"
        promises, went = played(folder, step, monkeypatch)
        check(folder, promises)
        if not went:
            assert step > 50
            return


def test_a_store_that_was_cut_twice_still_works(tmp_path, monkeypatch):
    rng = random.Random(3)
    for trial in range(15):
        folder, promises = tmp_path / f"{trial}", []
        for _ in range(3):
            promises += played(folder, rng.randrange(10, 60), monkeypatch)[0]
        check(folder, promises)


def test_rows_are_flushed_before_they_are_listed(tmp_path, monkeypatch):
    session = session_of()
    with ShareStore.open(tmp_path / "s", data_digest(*rows_of(INDEX))) as store:
        table, _ = store.table(session, INDEX)
        events = []

        def spied(name):
            real = getattr(os, name)

            def called(number, *rest):
                events.append((name, os.readlink(f"/proc/self/fd/{number}").rsplit(".", 1)[-1]))
                return real(number, *rest)

            return called

        for name in ("pwrite", "fsync", "fdatasync"):
            monkeypatch.setattr(os, name, spied(name))
        table.put(3, 0, dealers(session)[3].deal(INDEX, 0, 3).residues)
        assert events == [("pwrite", "rows")]
        table.flush()
        assert events[1:] == [("fsync", "rows"), ("pwrite", "index"), ("fdatasync", "index")]
