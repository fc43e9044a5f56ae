"""Bits flipped and files cut, anywhere in the folders of a federation: what comes of its next start.

python -m deploy.damage 1000 [SEED]      in the folder tests: so many cases; the folders of bad ones stay
"""

import contextlib
import logging
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from consortium import Consortium
from dresfl.errors import DresError, ModelError
from dresfl.runtimes.coordinator_host import CoordinatorHost
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.model_file import encode_model, read_model

from .small_federation import Outcome, SmallFederation

CLIENTS, ROUNDS = 5, 6


def _sharing(host: CoordinatorHost) -> bool:
    relay = host.machine.relay
    return relay is not None and relay.relayed_bytes > 0 and sum(map(len, relay._waiting)) >= 4


def _training(host: CoordinatorHost) -> bool:
    return host.machine.training is not None and host.machine.training.round_number >= ROUNDS // 2


@dataclass(frozen=True)
class Case:
    """One damage: a file of one of the stopped federations, and the bit to flip or the length to cut it to."""

    stopped: str
    file: str
    bit: int | None = None
    length: int | None = None

    def inflict(self, folder: Path) -> None:
        path = folder / self.file
        data = bytearray(path.read_bytes())
        if self.bit is not None:
            data[self.bit // 8] ^= 1 << self.bit % 8
        path.write_bytes(data[: self.length])


def _kind(path: Path) -> str:
    """What a file is, whoever's it is."""
    if "spool" in path.parts:
        return "spool"
    return path.suffix if path.suffix == ".answered" else path.name.split("-")[0]


class Stopped:
    """Federations that were stopped while sharing, while training, and at the end; with a storage key and without."""

    def __init__(self, folder: Path) -> None:
        self.consortium = Consortium(folder, clients=CLIENTS, rounds=ROUNDS)
        self.expected = self.consortium.expected()
        folder.mkdir(exist_ok=True)
        StorageKey.create(folder / "storage.key")
        self.federations: dict[str, SmallFederation] = {}
        stops = {"sharing": _sharing, "training": _training, "ended": lambda host: False}
        for sealed in ("", "sealed "):
            for name, stop in stops.items():
                place = folder / f"{sealed}{name}".replace(" ", "-")
                key = folder / "storage.key" if sealed else None
                federation = SmallFederation(self.consortium, place, key)
                assert not federation.start(stop).errors
                self.federations[f"{sealed}{name}"] = federation
        self.model = (self.federations["ended"].folder / "coordinator" / "model.safetensors").read_bytes()

    def cases(self, count: int, seed: int) -> Iterator[Case]:
        """So many damages by chance; every kind of file has its turn."""
        chance = random.Random(seed)
        files = {
            (name, path.relative_to(federation.folder).as_posix()): path.stat().st_size
            for name, federation in self.federations.items()
            for path in sorted(federation.folder.rglob("*"))
            if path.is_file() and path.name != "lock" and path.stat().st_size
        }
        kinds: dict[tuple[str, str], list[str]] = {}
        for name, file in files:
            kinds.setdefault((name, _kind(Path(file))), []).append(file)
        order = sorted(kinds)
        for _ in range(count):
            name, kind = chance.choice(order)
            file = chance.choice(kinds[name, kind])
            size = files[name, file]
            if chance.random() < 0.7:
                yield Case(name, file, bit=chance.randrange(8 * size))
            else:
                yield Case(name, file, length=chance.choice((0, size - 1, chance.randrange(size))))

    def examine(self, case: Case, place: Path) -> str:
        """What comes of a damage, in a word. AssertionError if it is not what may come of it."""
        federation = self.federations[case.stopped].copy(place)
        case.inflict(place)
        self._read_models(federation)
        outcome = federation.start()
        found = self._judge(outcome)
        if found == "coordinator refuses" and Path(case.file).name == "checkpoint.safetensors":
            error = outcome.errors["coordinator"]
            assert "--from-earlier-checkpoint" in error.hint, error
            again = federation.start(use_earlier=True)
            assert not again.errors, again.errors
            assert self._judge(again) == "same weights", again
            found = "earlier checkpoint"
        if found in ("same weights", "client refuses") and "coordinator" in outcome.weights:
            assert (place / "coordinator" / "model.safetensors").read_bytes() == self.model
        return found

    def _judge(self, outcome: Outcome) -> str:
        assert set(outcome.weights.values()) <= {self.expected}, "other weights"
        for error in outcome.errors.values():
            assert isinstance(error, DresError), error
            assert error.hint, error
        clients_refuse = any(name != "coordinator" for name in outcome.errors)
        if "coordinator" in outcome.errors:
            return "coordinator refuses"
        if outcome.waits:
            assert clients_refuse, f"an endless wait: {outcome.events[-5:]}"
            return "waits for a client that refuses"
        assert outcome.weights["coordinator"] == self.expected
        return "client refuses" if clients_refuse else "same weights"

    def _read_models(self, federation: SmallFederation) -> None:
        """A damaged model is refused, or is the model that it was."""
        for path in federation.folder.rglob("model*.safetensors"):
            with contextlib.suppress(ModelError):
                assert encode_model(read_model(path)) == self.model


def main(count: int, seed: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="damage-"))
    stopped = Stopped(folder / "stopped")
    found: Counter[str] = Counter()
    for number, case in enumerate(stopped.cases(count, seed)):
        place = folder / f"case-{number}"
        try:
            found[stopped.examine(case, place)] += 1
            shutil.rmtree(place)
        except Exception as error:
            found["BAD"] += 1
            traceback.print_exc(limit=-3)
            print(f"case {number}: {case}: {type(error).__name__} {error}; its folder stays: {place}", file=sys.stderr)
    print(dict(found))
    if not found["BAD"]:
        shutil.rmtree(folder)
    sys.exit(found["BAD"] > 0)


if __name__ == "__main__":
    logging.disable()
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
