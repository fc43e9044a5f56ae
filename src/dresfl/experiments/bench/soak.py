"""A long run over gRPC: do memory, descriptors and the log stay bounded?

    python -m dresfl.experiments.bench.soak --rounds 10000

The coordinator is this process, and each client one of its own. While rounds are played, the soak notes the memory and
the open descriptors of all of them, every second. At the end it compares the last fifth of the run with its second
fifth. It ends with exit code 1 if anything has grown beyond what is allowed. Figures go to stdout as JSON.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, final

from dresfl.deploy.serve import serve
from dresfl.deploy.settings import AgreedModel, AgreementFile
from dresfl.federation.agreement import ACCEPTED
from dresfl.model import Dense
from dresfl.optimizers import Optimizer
from dresfl.runtimes.log import log_to

from .network import Federation

_ROWS, _FEATURES, _CLASSES = 200, 64, 10
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOG_BYTES_A_SECOND = 400.0  # a line of progress has 120

# A client remembers which rounds it has answered, 64 bytes each and what Python needs around them. Beyond that there is
# the allocator's noise.
_MEMORY_A_ROUND, _MEMORY_NOISE = 400, 4e6
_OPEN_FOR_A_MOMENT = 4  # descriptors: a checkpoint that is being written, for example


def footprint(pid: int) -> tuple[int, int] | None:
    """Resident bytes and open descriptors of a process; None if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * _PAGE, len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


@final
class Watch:
    """Notes the footprint of some processes, now and then."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._over = seconds, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.pids: dict[str, int] = {}
        self.seen: dict[str, list[tuple[int, int]]] = {}

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            for name, pid in list(self.pids.items()):
                found = footprint(pid)
                if found is not None:
                    self.seen.setdefault(name, []).append(found)

    def start(self, pids: dict[str, int]) -> None:
        self.pids = pids
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def grown(seen: list[tuple[int, int]]) -> dict[str, float]:
    """How much a process has grown from the second fifth of its samples to the last: bytes and descriptors."""
    fifth = max(1, len(seen) // 5)
    early, late = seen[fifth : 2 * fifth] or seen[:1], seen[-fifth:]
    memory = [statistics.median(sample[0] for sample in part) for part in (early, late)]
    descriptors = [statistics.median(sample[1] for sample in part) for part in (early, late)]
    return {
        "bytes": memory[1],
        "bytes_more": memory[1] - memory[0],
        "descriptors": descriptors[1],
        "descriptors_more": descriptors[1] - descriptors[0],
    }


def soak(rounds: int, clients: int, sample_seconds: float = 1.0) -> dict[str, Any]:
    """Train for so many rounds; what everybody needed, and what is wrong with it, in words."""
    lines: list[int] = []
    watch = Watch(sample_seconds)

    def note(line: str) -> None:
        lines.append(len(line) + 1)
        event = json.loads(line)
        if event["event"] == "rounds":
            watch.start({"coordinator": os.getpid(), **{p.name: p.process.pid for p in federation.clients}})
        if event["event"] == "progress" and event["round"] == rounds:
            watch.stop()

    with tempfile.TemporaryDirectory() as name:
        model = AgreedModel((Dense(_CLASSES),), (_FEATURES,))
        agreed = AgreementFile(rounds, model, "open", rows_can_be_computed=ACCEPTED)
        federation = Federation(Path(name), agreed, clients, _ROWS, Optimizer(learning_rate=0.002))
        try:
            summary = serve(federation.config(), log_to(note), federation.start_clients)
            for process in federation.clients:
                process.process.wait(60)
        finally:
            for process in federation.clients:
                if process.starts:
                    process.kill()
    found = {name: grown(seen) for name, seen in watch.seen.items()}
    allowed = _MEMORY_NOISE + _MEMORY_A_ROUND * rounds
    wrong: list[str] = []
    for name, own in found.items():
        if own["bytes_more"] > allowed:
            wrong.append(f"{name} grew by {own['bytes_more']:.0f} bytes")
        if own["descriptors_more"] > _OPEN_FOR_A_MOMENT:
            wrong.append(f"{name} has {own['descriptors_more']:.0f} descriptors more")
    if sum(lines) > 20_000 + _LOG_BYTES_A_SECOND * summary["seconds"]:
        wrong.append(f"the log has {sum(lines)} bytes in {summary['seconds']:.0f} seconds")
    return {
        "rounds": rounds,
        "clients": clients,
        "seconds_per_round": summary["seconds_per_round"],
        "log_lines": len(lines),
        "log_bytes": sum(lines),
        "processes": found,
        "wrong": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    found = soak(options.rounds, options.clients)
    print(json.dumps(found, indent=2))
    sys.exit(1 if found["wrong"] else 0)


if __name__ == "__main__":
    main()
