"""What the full attacks found goes to standard output and, with ATTACKS=FILE in the environment, to a file."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dresfl.kernels.threads import torch_threads


def processor() -> str:
    """What this machine calls its processor."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """The full forms have the whole machine. The matrices of the short ones are too small for more than one thread."""
    with torch_threads((os.cpu_count() or 1) if request.node.get_closest_marker("attack") else 1):
        yield


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Say what an attack found, and what its control: one line of JSON."""
    began = time.monotonic()

    def write(**values: object) -> None:
        folder = request.node.path.parent.relative_to(Path(__file__).parent)
        attack = (folder / request.node.path.stem.removeprefix("test_")).as_posix()
        line = {"attack": attack, "test": request.node.name, **values}
        line |= {"seconds": round(time.monotonic() - began, 1), "processor": processor()}
        with request.getfixturevalue("capsys").disabled():
            print(json.dumps(line), flush=True)
        if "ATTACKS" in os.environ:
            with Path(os.environ["ATTACKS"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    return write
