"""Try it on one machine: a coordinator and its clients as real processes on loopback, with fresh keys and real faults.

    FOLDER/agreement.toml, ca/, roster.json      what all share
    FOLDER/coordinator/  fed.toml, keys/, run/   the coordinator
    FOLDER/site-3/  site.toml, keys/, store/     a client
    FOLDER/*/log.jsonl                           what each said
    FOLDER/coordinator/run/transcript/, FOLDER/site-3/store/transcript/    what each saw, if that is asked for

Each is started by the command that a real one would use: `dresfl serve` and `dresfl join`.
"""

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from dresfl.coding import recovery_threshold
from dresfl.data import load
from dresfl.deploy.settings import (
    AgreedFederation,
    AgreedModel,
    AgreementFile,
    ClientConfig,
    ClientData,
    Connecting,
    CoordinatorConfig,
    Keys,
    Listening,
    Test,
)
from dresfl.deploy.toml import to_toml
from dresfl.errors import DresError, UsageError
from dresfl.experiments.config import RunConfig, load_config
from dresfl.experiments.prepare import build_network, prepare
from dresfl.federation.agreement import ACCEPTED, Mode
from dresfl.files import write_atomic
from dresfl.optimizers import Optimizer
from dresfl.sealing import CertificateAuthority, Identity, Roster, certificate_request

HIDDEN_MODE_NOTE = (
    "hidden mode: nobody sees a gradient or a weight before the final model. agreement.toml has what everybody must "
    "hold alike, the optimiser among it"
)
OPEN_MODE_NOTE = (
    'open mode: agreement.toml and the own file of everybody say rows_can_be_computed = "accepted". That is for this '
    "trial, with public data on one machine. In a real federation each organisation writes it itself"
)
_START_SECONDS = 180.0
_POLL_SECONDS = 0.05
_END_SECONDS = 10.0  # for a client to end after the coordinator


@final
@dataclass(frozen=True)
class Trial:
    """What to try."""

    preset: str = "digits"
    clients: int = 9
    kill: int = 0  # clients killed mid-run; one of them is restarted, more if the run could not go on otherwise
    kill_coordinator: bool = False  # SIGKILL the coordinator once, mid-run, and start it again
    settings: tuple[str, ...] = ()
    seed: int = 0  # of who is killed and when
    data: Path | None = None
    limit: float = 1800.0  # seconds
    record: bool = False  # whether every participant writes down what it sees; in the open mode
    blinded: bool = True  # False: to measure what blinding costs, in the open mode
    mode: Mode = "hidden"

    def run_config(self) -> RunConfig:
        if not 0 <= self.kill <= self.clients:
            raise UsageError(f"of {self.clients} clients {self.kill} cannot be killed")
        if self.mode == "hidden" and (self.record or not self.blinded):
            raise UsageError("recording is of the open mode", "use --mode open, with public data only")
        fixed = [f"federation.num_clients={self.clients}", 'dropout.model="none"', f'mode="{self.mode}"']
        config = load_config(self.preset, [*self.settings, *fixed])
        if config.federation.local_steps > 1:
            raise UsageError(
                f"{config.federation.local_steps} local steps a round are simulated only: over a network there is one",
                "use `dresfl train`, or federation.local_steps = 1",
            )
        return config

    def needed(self, config: RunConfig) -> int:
        """How many clients must answer a round, or a hop."""
        if self.mode == "hidden":
            return prepare(config, self.data).session.answers_needed
        degree = build_network(config, load(config.data.dataset, self.data).train).gradient_degree
        code = config.federation
        return recovery_threshold(degree, code.num_shards, code.max_colluders) + 2 * code.max_liars


@final
class Process:
    """One process, its log, and how it ended."""

    def __init__(self, name: str, command: str | Sequence[str], folder: Path, config: str) -> None:
        """command: one of `dresfl`, or the arguments of Python that start something like it."""
        self.name, self._folder = name, folder
        program = ["-m", "dresfl", command] if isinstance(command, str) else command
        self._arguments = [sys.executable, *program, "--config", str(folder / config), "--json"]
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0
        self.events: list[dict[str, Any]] = []
        self.starts = 0

    def start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(self._folder / "log.jsonl", "ab") as log, open(self._folder / "result.json", "wb") as out:
            self._process = subprocess.Popen(self._arguments, stdout=out, stderr=log, env=environment)  # noqa: S603
        self.starts += 1

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> int:
        """SIGKILL, by pid; nothing of it is left running when this returns."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return self.process.pid

    def follow(self) -> list[dict[str, Any]]:
        """The events since the last look."""
        with open(self._folder / "log.jsonl", "rb") as log:
            log.seek(self._read)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        new = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                new.append(json.loads(line))
        self.events += new
        return new

    def result(self) -> dict[str, Any]:
        """What it printed at its end."""
        if self.process.returncode != 0:
            self.follow()
            last = [event for event in self.events if event.get("event") in ("error", "refused", "stderr")][-1:]
            raise DresError(f"{self.name} ended with code {self.process.returncode}: {last}", f"see {self._folder}")
        result: dict[str, Any] = json.loads((self._folder / "result.json").read_text())
        return result


# -- keys and configurations -----------------------------------------------------------------------------------


def write_trial(trial: Trial, folder: Path) -> tuple[Process, list[Process]]:
    """Fresh keys, a roster and everybody's configuration; the processes, not started."""
    config = trial.run_config()
    names = [f"site-{i}" for i in range(trial.clients)]
    roster = make_keys(folder, names)
    write_atomic(folder / "agreement.toml", to_toml(_agreement(config, trial.data, trial.record)).encode())
    keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", roster.digest)
    data = str(trial.data.resolve()) if trial.data else ""
    _write_coordinator(config, keys, data, folder, "127.0.0.1:0")
    coordinator = Process("coordinator", "serve", folder / "coordinator", "fed.toml")
    command = "join" if trial.blinded else ("-m", "dresfl.experiments.bench.unblinded_client")
    return coordinator, [Process(name, command, folder / name, "site.toml") for name in names]


def make_keys(folder: Path, names: list[str]) -> Roster:
    """Fresh keys and certificates for a coordinator and these clients, and their roster."""
    authority = CertificateAuthority.create()
    authority.save(folder / "ca")
    coordinator, *clients = (Identity.create(name) for name in ("coordinator", *names))
    roster = Roster.create(coordinator, coordinator.card, [client.card for client in clients])
    roster.save(folder / "roster.json")
    for identity in (coordinator, *clients):
        identity.save(folder / identity.name / "keys")
        hosts = ["127.0.0.1", "localhost"] if identity is coordinator else []
        certificate = authority.sign(certificate_request(identity), server=hosts)
        write_atomic(folder / identity.name / "keys" / "certificate.pem", certificate)
    return roster


def _agreement(config: RunConfig, data: Path | None, record: bool) -> AgreementFile:
    train = load(config.data.dataset, data).train
    network, model, federation = build_network(config, train), config.model, config.federation
    agreed = AgreedModel(
        layers=model.layers,
        input_shape=network.input_shape,
        input_bits=model.input_bits,
        weight_bits=model.weight_bits,
        shift=model.shift,
        input_bound=2.0**network.input_magnitude,
    )
    code = AgreedFederation(
        federation.num_shards, federation.max_colluders, federation.batch_size, federation.max_liars
    )
    common = AgreementFile(config.rounds, agreed, config.mode, seed=config.seed, record=record, federation=code)
    if config.mode == "hidden":
        return dataclasses.replace(common, hidden=config.hidden, optimizer=config.optimizer)
    return dataclasses.replace(common, rows_can_be_computed=ACCEPTED)


def _write_coordinator(config: RunConfig, keys: Keys, data: str, folder: Path, listen: str) -> None:
    coordinator = CoordinatorConfig(
        name=config.name,
        agreement="../agreement.toml",
        folder="run",
        keys=keys,
        evaluate_every=config.evaluate_every,
        threads=1,
        rows_can_be_computed=_consent(config),
        network=Listening(listen=listen, deadline=20.0, linger=5.0),
        optimizer=config.optimizer if config.mode == "open" else Optimizer(),
        test=Test(dataset=config.data.dataset, folder=data),
    )
    write_atomic(folder / "coordinator" / "fed.toml", to_toml(coordinator).encode())


def _consent(config: RunConfig) -> str:
    return ACCEPTED if config.mode == "open" else ""


def write_clients(config: RunConfig, keys: Keys, data: str, folder: Path, clients: int, port: int) -> None:
    for i in range(clients):
        client = ClientConfig(
            agreement="../agreement.toml",
            folder="store",
            keys=keys,
            network=Connecting(coordinator=f"127.0.0.1:{port}", longest_delay=2.0),
            data=ClientData(
                dataset=config.data.dataset,
                folder=data,
                partition=config.data.partition,
                alpha=config.data.alpha,
            ),
            threads=1,
            rows_can_be_computed=_consent(config),
        )
        write_atomic(folder / f"site-{i}" / "site.toml", to_toml(client).encode())


# -- the run ---------------------------------------------------------------------------------------------------


@final
@dataclass
class Faults:
    """What is to happen at which round, and what has."""

    at: list[tuple[int, str, int]] = field(default_factory=list)  # round, fault, client
    done: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def draw(cls, trial: Trial, rounds: int, needed: int) -> "Faults":
        generator = random.Random(trial.seed)  # noqa: S311 - not a secret
        victims = generator.sample(range(trial.clients), trial.kill)
        at = [(generator.randrange(rounds // 10, rounds // 2), "kill", victim) for victim in victims]
        spare = trial.clients - needed
        revived = victims[: max(1, len(victims) - spare)] if victims else []
        killed_at = {victim: number for number, _, victim in at}
        at += [(killed_at[victim] + max(1, rounds // 10), "restart", victim) for victim in revived]
        if trial.kill_coordinator:
            at.append((generator.randrange(rounds // 4, 3 * rounds // 4), "kill coordinator", -1))
        return cls(sorted(at))

    def take(self, number: int, short: bool) -> tuple[str, int] | None:
        """The next fault that is due at a round; a restart at once, if the run is short of clients and would wait."""
        alive = {client for _, fault, client in self.at if fault == "kill"}
        for entry in sorted(self.at, key=lambda entry: (short and entry[1] != "restart", entry)):
            at, fault, client = entry
            restart = fault == "restart" and client not in alive
            if (at <= number and fault != "restart") or (restart and (short or at <= number)):
                self.at.remove(entry)
                return fault, client
        return None


def federate(trial: Trial, folder: Path, note: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run a trial in an empty folder; return what came of it. No process is left when this returns."""
    check_folder(folder)
    config = trial.run_config()
    note(OPEN_MODE_NOTE if trial.mode == "open" else HIDDEN_MODE_NOTE)
    coordinator, clients = write_trial(trial, folder)
    with _ended(coordinator, *clients):
        return _federate(trial, config, folder, coordinator, clients, note)


def check_folder(folder: Path) -> None:
    """A trial needs a new folder."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", "give --out a new folder")


def _federate(
    trial: Trial,
    config: RunConfig,
    folder: Path,
    coordinator: Process,
    clients: list[Process],
    note: Callable[[str], None],
) -> dict[str, Any]:
    until = time.monotonic() + trial.limit
    began = time.monotonic()
    coordinator.start()
    port = int(_wait_for(coordinator, "listening", min(until, began + _START_SECONDS))["port"])
    roster = Roster.load(folder / "roster.json")
    keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", roster.digest)
    data = str(trial.data.resolve()) if trial.data else ""
    _write_coordinator(config, keys, data, folder, f"127.0.0.1:{port}")  # started again, it is found where it was
    write_clients(config, keys, data, folder, trial.clients, port)
    note(f"the coordinator listens on port {port}; starting {trial.clients} clients")
    for client in clients:
        client.start()
    faults = Faults.draw(trial, config.rounds, trial.needed(config))
    first = _wait_for(coordinator, "rounds", until)
    note(
        f"sharing took {time.monotonic() - began:.1f} s with the start of all processes; rounds begin: {first['ready']}"
    )
    _play(coordinator, clients, faults, trial.needed(config), until, note)
    summary = coordinator.result()
    results = [client.result() for client in clients if _ends(client)]
    return trial_result(summary, trial, faults, [result["weights_sha256"] for result in results], began)


def trial_result(
    summary: dict[str, Any], trial: Trial, faults: Faults, digests: list[str], began: float
) -> dict[str, Any]:
    """A trial's result: the run's summary, the faults, and whether the clients that heard of the end have its weights.

    digests: of the weights that each of them was sent.
    """
    return {
        **summary,
        "clients": trial.clients,
        "killed": sum(fault["fault"] == "kill" for fault in faults.done),
        "restarted": sum(fault["fault"] == "restart" for fault in faults.done),
        "faults": faults.done,
        "survivors": len(digests),
        "clients_agree": len({*digests, summary["weights_sha256"] or digests[0]} if digests else {}) <= 1,
        "wall_seconds": time.monotonic() - began,
    }


def _play(
    coordinator: Process, clients: list[Process], faults: Faults, needed: int, until: float, note: Callable[[str], None]
) -> None:
    """Watch the coordinator's progress and cause the faults when their rounds come."""
    number = 0
    while coordinator.running:
        if time.monotonic() > until:
            raise DresError("the trial took too long", "see the log.jsonl of each process")
        for event in coordinator.follow():
            if event.get("event") == "progress":
                number = int(event["round"])
                known = event["accuracy"] is not None  # in the hidden mode nobody knows it before the end
                note(
                    f"round {number}/{event['rounds']}"
                    + (f"  accuracy {100 * event['accuracy']:.1f} %" if known else "")
                )
        while due := faults.take(number, sum(client.running for client in clients) < needed):
            fault, client = due
            pid = _cause(fault, coordinator, clients, client)
            faults.done.append({"round": number, "fault": fault, "client": client, "pid": pid})
            note(f"round {number}: {fault} {'' if client < 0 else client} (pid {pid})")
        time.sleep(_POLL_SECONDS)


def _cause(fault: str, coordinator: Process, clients: list[Process], client: int) -> int:
    if fault == "kill coordinator":
        pid = coordinator.kill()
        coordinator.start()
        return pid
    if fault == "kill":
        return clients[client].kill()
    clients[client].start()
    return clients[client].process.pid


def _wait_for(process: Process, event: str, until: float) -> dict[str, Any]:
    """The first event of a name: the process's own sign that it is that far."""
    while time.monotonic() < until:
        for found in process.follow():
            if found.get("event") == event:
                return found
        if not process.running:
            process.result()
            raise DresError(f"{process.name} ended before it said {event!r}")
        time.sleep(_POLL_SECONDS)
    raise DresError(f"{process.name} did not say {event!r} in time", "see its log.jsonl")


def _ends(client: Process) -> bool:
    """Whether a client heard of the end: not if it is dead, or came back after the coordinator had gone."""
    try:
        return client.process.wait(_END_SECONDS) == 0
    except subprocess.TimeoutExpired:
        return False


@contextlib.contextmanager
def _ended(*processes: Process) -> Iterator[None]:
    """Whatever happens, end what was started here."""
    try:
        yield
    finally:
        for process in processes:
            if process.running:
                process.kill()
