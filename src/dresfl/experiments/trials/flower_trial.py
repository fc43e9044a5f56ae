"""Try it over Flower on one machine: a SuperLink and SuperNodes as users run them, with TLS and node authentication.

The folder is that of grpc_trial.py, and in it are also:

    FOLDER/app/          what `dresfl flower init` writes, started by `flwr run`
    FOLDER/flwr/         Flower's own home, with the address of the SuperLink
    FOLDER/*/flower.log  what SuperLink, SuperNodes and their apps said

A killed SuperNode is refused for a minute when it comes back; it is started until it is let in, as systemd would.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dresfl.deploy.settings import ClientConfig, CoordinatorConfig, Keys, load_settings
from dresfl.deploy.toml import to_toml
from dresfl.errors import DresError, UsageError
from dresfl.files import write_atomic
from dresfl.model import weights_sha256
from dresfl.runtimes.flower_runtime.template import write_app
from dresfl.sealing import Roster
from dresfl.storage.model_file import read_model

from .grpc_trial import (
    HIDDEN_MODE_NOTE,
    OPEN_MODE_NOTE,
    Faults,
    Trial,
    check_folder,
    trial_result,
    write_clients,
    write_trial,
)

_START_SECONDS = 300.0
_SILENT_SECONDS = 60.0  # without a line in the log: then Flower is asked how the run stands
_END_SECONDS = 60.0  # for Flower to clear up after the last line
_POLL_SECONDS = 0.1
_AGAIN_SECONDS = 5.0  # between two attempts of a SuperNode that is refused
_CONNECTION = "trial"


@final
class _Process:
    """One of Flower's processes, in a group of its own with the processes it starts."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        folder: Path,
        environment: dict[str, str],
        companion: "_Process | None" = None,
    ) -> None:
        """companion: a process on the same machine, which lives and dies with this one."""
        self.name, self._arguments, self._folder, self._environment = name, arguments, folder, environment
        self._companion = companion
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self.wanted = False

    def start(self) -> int:
        if self._companion is not None and not self._companion.running:
            self._companion.start()
        with open(self._folder / "flower.log", "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                self._arguments, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )
        self._started, self.wanted = time.monotonic(), True
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def supervise(self) -> None:
        """Start it again if it ended by itself."""
        if self.wanted and not self.running and time.monotonic() - self._started >= _AGAIN_SECONDS:
            self.start()

    def end(self) -> None:
        """SIGTERM and some time for it to end what it started; then SIGKILL."""
        if self.running and self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30.0)
        if self._process is not None:
            self.kill()

    def kill(self) -> int:
        """SIGKILL the process and those it started, as if its machine had lost power."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        self.wanted = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._companion is not None:
            self._companion.kill()
        return self._process.pid


def federate_flower(
    trial: Trial, folder: Path, note: Callable[[str], None] = lambda text: None, workers: bool = True
) -> dict[str, Any]:
    """Run a trial over Flower in an empty folder; no process is left when this returns.

    workers: with `dresfl flower worker` beside each SuperNode; without, every message starts from nothing.
    """
    folder, port, environment = _prepare(trial, folder, note)
    with _processes(folder, trial.clients, port, workers, environment) as (superlink, nodes):
        return _play(trial, folder, superlink, nodes, environment, note)


def federate_simulation(trial: Trial, folder: Path, note: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run a trial in Flower's simulation engine: all clients in a few processes of Ray, each with its own store."""
    if trial.kill:
        raise UsageError("simulated clients cannot be killed", "use --engine flower")
    folder, port, environment = _prepare(trial, folder, note)
    connection = f'address = "127.0.0.1:{port}"\ninsecure = true\noptions.num-supernodes = {trial.clients}\n'
    _write_connection(folder, connection + "options.backend.client-resources.num-cpus = 1\n")
    arguments = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    command = [_command("flower-superlink"), *arguments, "--disable-runtime-dependency-installation"]
    superlink = _Process("superlink", command, folder / "coordinator", environment)
    try:
        superlink.start()
        _wait_for_port(port, superlink)
        return _play(trial, folder, superlink, [], environment, note)
    finally:
        superlink.end()


def _prepare(trial: Trial, folder: Path, note: Callable[[str], None]) -> tuple[Path, int, dict[str, str]]:
    """Keys, configurations and the app in a new folder; the SuperLink's port and everybody's environment."""
    if importlib.util.find_spec("flwr") is None:
        raise UsageError("flwr is not installed", "pip install 'dresfl[flower]'")
    if trial.kill_coordinator:
        raise UsageError("a killed SuperLink takes the run with it", "kill the coordinator with --engine grpc")
    check_folder(folder)
    note(OPEN_MODE_NOTE if trial.mode == "open" else HIDDEN_MODE_NOTE)
    config, folder, port = trial.run_config(), folder.resolve(), _free_port()
    write_trial(trial, folder)
    data = str(trial.data.resolve()) if trial.data else ""
    roster = Roster.load(folder / "roster.json")
    keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", roster.digest)
    write_clients(config, keys, data, folder, trial.clients, port)
    _adapt(folder, trial.clients)
    write_app(folder / "app")
    return folder, port, flower_environment(folder / "flwr")


def _adapt(folder: Path, clients: int) -> None:
    """What Flower needs otherwise: more patience, and a model at every client to compare at the end."""
    path = folder / "coordinator" / "fed.toml"
    coordinator = load_settings(CoordinatorConfig, path)
    network = dataclasses.replace(coordinator.network, deadline=120.0, linger=90.0)
    write_atomic(path, to_toml(dataclasses.replace(coordinator, network=network)).encode())
    for i in range(clients):
        path = folder / f"site-{i}" / "site.toml"
        client = load_settings(ClientConfig, path)
        model = str(path.parent / "model.safetensors")
        write_atomic(path, to_toml(dataclasses.replace(client, model=model)).encode())


# -- processes -------------------------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _command(name: str) -> str:
    """One of Flower's programs, from the environment that runs this."""
    return str(Path(sys.executable).with_name(name))


def flower_environment(home: Path) -> dict[str, str]:
    """The environment in which Flower calls nobody and installs nothing."""
    switches = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    programs = str(Path(sys.executable).parent)
    return {**os.environ, **switches, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}


@contextlib.contextmanager
def _processes(
    folder: Path, clients: int, port: int, workers: bool, environment: dict[str, str]
) -> Iterator[tuple[_Process, list[_Process]]]:
    """SuperLink and SuperNodes, started; ended whatever happens."""
    authority, keys = folder / "ca" / "ca.cert.pem", folder / "coordinator" / "keys"
    _write_connection(folder, f'address = "127.0.0.1:{port}"\nroot-certificates = "{authority}"\n')
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth"]
    arguments += ["--ssl-ca-certfile", str(authority), "--ssl-certfile", str(keys / "certificate.pem")]
    arguments += ["--ssl-keyfile", str(keys / "tls.key.pem"), "--disable-runtime-dependency-installation"]
    superlink = _Process("superlink", [_command("flower-superlink"), *arguments], folder / "coordinator", environment)
    nodes = []
    for i in range(clients):
        site = folder / f"site-{i}"
        _write_node_key(site / "keys" / "node")
        arguments = ["--superlink", f"127.0.0.1:{port}", "--root-certificates", str(authority)]
        arguments += ["--auth-supernode-private-key", str(site / "keys" / "node"), "--port", str(_free_port())]
        arguments += ["--node-config", f"site='{site / 'site.toml'}'"]
        command = [sys.executable, "-m", "dresfl", "flower", "worker", "--config", str(site / "site.toml")]
        worker = _Process(f"{site.name} worker", command, site, environment) if workers else None
        nodes.append(_Process(site.name, [_command("flower-supernode"), *arguments], site, environment, worker))
    try:
        superlink.start()
        _wait_for_port(port, superlink)
        for i, node in enumerate(nodes):
            register = ["supernode", "register", str(folder / f"site-{i}" / "keys" / "node.pub"), _CONNECTION]
            flwr([*register, "--format", "json"], environment)
            node.start()
        yield superlink, nodes
    finally:
        for process in [*nodes, superlink]:
            if process.running or process.wanted:
                process.kill()


def _write_connection(folder: Path, settings: str) -> None:
    """Tell `flwr` where the SuperLink is."""
    text = f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]\n{settings}'
    write_atomic(folder / "flwr" / "config.toml", text.encode())


def _write_node_key(path: Path) -> None:
    """The key by which a SuperLink knows a SuperNode: Flower's own, apart from the identity of the roster."""
    key = ec.generate_private_key(ec.SECP384R1())
    form, encoding = serialization.PrivateFormat.OpenSSH, serialization.Encoding.PEM
    write_atomic(path, key.private_bytes(encoding, form, serialization.NoEncryption()), private=True)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_atomic(path.with_suffix(".pub"), public + b"\n")


def _wait_for_port(port: int, process: _Process) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.running:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(_POLL_SECONDS)
    raise DresError(f"{process.name} does not listen", "see coordinator/flower.log")


def flwr(arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run Flower's command line; what it printed as JSON."""
    done = subprocess.run([_command("flwr"), *arguments], env=environment, capture_output=True, check=False)  # noqa: S603
    try:
        printed: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        printed = {}
    if done.returncode != 0 or printed.get("success") is False:
        said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-500:]
        raise DresError(f"flwr {shlex.join(arguments[:2])} failed: {said}")
    return printed


def _status(environment: dict[str, str]) -> str:
    """How the one run of this SuperLink stands, in Flower's words: running, finished:completed, finished:failed, …"""
    runs = flwr(["list", _CONNECTION, "--format", "json"], environment).get("runs") or [{}]
    return str(runs[0].get("status", "unknown"))


# -- the run ---------------------------------------------------------------------------------------------------


def _play(
    trial: Trial,
    folder: Path,
    superlink: _Process,
    nodes: list[_Process],
    environment: dict[str, str],
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Start the run, watch its log, and cause the faults when their rounds come."""
    began, number, done = time.monotonic(), 0, False
    run_config = trial.run_config()
    faults = Faults.draw(trial, run_config.rounds, trial.needed(run_config))
    config = f"coordinator='{folder / 'coordinator' / 'fed.toml'}' sites='{folder}'"
    flwr(["run", str(folder / "app"), _CONNECTION, "--run-config", config, "--format", "json"], environment)
    note("the run is started")
    log = _Lines(folder / "coordinator" / "run" / "log.jsonl")
    heard = time.monotonic()
    while not done:
        now = time.monotonic()
        if now - heard > _SILENT_SECONDS:  # is it still there?
            heard = now
            if (status := _status(environment)).startswith("finished"):
                raise DresError(f"the run ended too early: {status}", "see coordinator/flower.log")
        if now - began > trial.limit or not superlink.running:
            raise DresError("the run does not come to an end", "see the logs in coordinator/")
        for event in log.follow():
            heard = now
            if event["event"] == "progress":
                number = int(event["round"])
                known = event["accuracy"] is not None
                note(
                    f"round {number}/{event['rounds']}"
                    + (f"  accuracy {100 * event['accuracy']:.1f} %" if known else "")
                )
            elif event["event"] in ("terms settled", "rounds", "joined", "left", "shortage", "failed", "refused"):
                note(" ".join(f"{key}={value}" for key, value in event.items() if key != "time"))
            done = done or event["event"] == "done"
        while faults.at and faults.at[0][0] <= number:
            _, fault, client = faults.at.pop(0)
            pid = nodes[client].kill() if fault == "kill" else nodes[client].start()
            faults.done.append({"round": number, "fault": fault, "client": client, "pid": pid})
            note(f"round {number}: {fault} {client} (pid {pid})")
        for node in nodes:
            node.supervise()
        time.sleep(_POLL_SECONDS)
    until = time.monotonic() + _END_SECONDS
    while time.monotonic() < until and not _status(environment).startswith("finished"):
        time.sleep(_POLL_SECONDS)
    summary = json.loads((folder / "coordinator" / "run" / "summary.json").read_text())
    models = [path for i in range(trial.clients) if (path := folder / f"site-{i}" / "model.safetensors").exists()]
    digests = [weights_sha256(read_model(path).weights) for path in models]
    return trial_result(summary, trial, faults, digests, began)


@final
class _Lines:
    """A log of JSON lines, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path, self.read = path, 0

    def follow(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with open(self._path, "rb") as log:
            log.seek(self.read)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
