"""Real processes, killed by pid: the trial that `dresfl federate` runs."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import Run
from dresfl.deploy.settings import Keys
from dresfl.errors import UsageError
from dresfl.experiments.config import load_config
from dresfl.experiments.training import train
from dresfl.experiments.trials.grpc_trial import Process, Trial, federate, write_clients, write_trial
from dresfl.sealing import Roster

from .federation import LIMIT

SMALL = """
name = "small"
rounds = 120
evaluate_every = 20
threads = 1
[federation]
batch_size = 16
[model]
layers = [{ kind = "dense", units = 8 }, { kind = "square" }, { kind = "dense", units = 10 }]
[optimizer]
method = "momentum"
learning_rate = 0.03
schedule = "cosine"
"""


@pytest.fixture
def preset(tmp_path: Path) -> str:
    (tmp_path / "small.toml").write_text(SMALL)
    return str(tmp_path / "small.toml")


@pytest.mark.timeout(500)
def test_killed_clients_and_a_killed_coordinator(tmp_path: Path, preset: str, dresfl: Run) -> None:
    result = federate(
        Trial(preset, clients=6, kill=2, kill_coordinator=True, limit=400, mode="open"), tmp_path / "trial"
    )
    settings = ["federation.num_clients=6", 'dropout.model="none"']
    undisturbed = train(load_config(preset, settings), out=tmp_path / "undisturbed")
    assert result["weights_sha256"] == undisturbed["weights_sha256"]
    assert result["test_accuracy"] == undisturbed["test_accuracy"]
    assert result["clients_agree"]
    assert (result["killed"], result["restarted"], result["survivors"]) == (2, 1, 5)
    assert result["skipped_rounds"] == 0
    kept = [path for path in (tmp_path / "trial").rglob("*") if path.is_file() and "keys" not in path.parts]
    secret = (tmp_path / "trial" / "site-0" / "keys" / "identity.json").read_bytes()
    hidden = [value for value in json.loads(secret).values() if len(value) == 64]
    assert hidden
    assert not any(value.encode() in path.read_bytes() for value in hidden for path in kept)
    _look_at_shares_and_forget_them(dresfl, tmp_path / "trial" / "site-0" / "site.toml")


def _look_at_shares_and_forget_them(dresfl: Run, config: Path) -> None:
    def shares(*arguments: str) -> list[dict[str, object]]:
        outcome = dresfl("shares", "--config", str(config), "--json", *arguments)
        assert outcome.returncode == 0, outcome.stderr
        found: list[dict[str, object]] = json.loads(outcome.stdout)
        return found

    (sharing,) = shares()
    assert sharing["client"] == 0
    assert str(sharing["identity"]) in dresfl("shares", "--config", str(config)).stdout
    unknown = dresfl("shares", "--config", str(config), "--forget", "0" * 32)
    assert unknown.returncode == 1
    assert str(sharing["identity"]) in unknown.stderr
    assert shares("--forget", str(sharing["identity"])) == []


def wait_for(process: Process, event: str) -> dict[str, object]:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until and process.running:
        for found in process.follow():
            if found["event"] == event:
                return found
        time.sleep(0.05)
    raise AssertionError(f"{process.name} did not say {event!r} within {LIMIT} seconds: {process.events[-15:]}")


def test_a_refused_handshake_is_a_line_in_the_log(tmp_path: Path, preset: str) -> None:
    coordinator, _ = write_trial(Trial(preset, clients=6, mode="open"), tmp_path / "trial")
    coordinator.start()
    try:
        port = int(str(wait_for(coordinator, "listening")["port"]))
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64))
            plain.recv(100)
        refused = wait_for(coordinator, "refused")
        assert refused["where"] == "tls"
        assert "plaintext" in str(refused["reason"])
    finally:
        coordinator.kill()


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_signals_end_both_sides_cleanly(tmp_path: Path, preset: str, numbers: tuple[signal.Signals, ...]) -> None:
    """Without a traceback; the coordinator can have its port again at once."""
    trial = Trial(preset, clients=6, mode="open")
    coordinator, clients = write_trial(trial, tmp_path / "trial")
    digest = Roster.load(tmp_path / "trial" / "roster.json").digest
    keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", digest)
    started = [coordinator, clients[0]]
    try:
        coordinator.start()
        port = int(str(wait_for(coordinator, "listening")["port"]))
        write_clients(trial.run_config(), keys, "", tmp_path / "trial", 6, port)
        clients[0].start()
        wait_for(clients[0], "waiting")
        for process, number in zip(started, numbers, strict=True):
            process.process.send_signal(number)
        assert [process.process.wait(LIMIT) for process in started] == [130, 130]
        for process in started:
            process.follow()
            assert [event for event in process.events if event["event"] == "stderr"] == []
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            again.bind(("127.0.0.1", port))
    finally:
        for process in started:
            if process.running:
                process.kill()


def test_a_trial_needs_an_empty_folder(tmp_path: Path, preset: str) -> None:
    with pytest.raises(UsageError, match="not empty"):
        federate(Trial(preset, clients=6, mode="open"), tmp_path)
    with pytest.raises(UsageError, match="cannot be killed"):
        federate(Trial(preset, clients=6, kill=7, mode="open"), tmp_path / "trial")


@pytest.mark.slow
@pytest.mark.parametrize("stderr", ["full", "closed"])
def test_a_run_whose_log_nobody_reads(tmp_path: Path, preset: str, stderr: str) -> None:
    """The coordinator's stderr is a pipe without room for a single line, or without a reader: the run ends as ever."""
    trial = Trial(preset, clients=6, mode="open")
    _, clients = write_trial(trial, tmp_path / "trial")
    digest = Roster.load(tmp_path / "trial" / "roster.json").digest
    keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", digest)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = tmp_path / "trial" / "coordinator" / "fed.toml"
    settings.write_text(settings.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    write_clients(trial.run_config(), keys, "", tmp_path / "trial", 6, port)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"\n")
    os.set_blocking(writing, True)
    arguments = [sys.executable, "-m", "dresfl", "serve", "--config", str(settings), "--json"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=writing) as serving:
        os.close(writing)
        if stderr == "closed":
            os.close(reading)
        try:
            for client in clients:
                client.start()
            out, _ = serving.communicate(timeout=200)
            assert serving.returncode == 0
            assert [client.process.wait(LIMIT) for client in clients] == [0] * 6
        finally:
            for process in (serving, *(client.process for client in clients if client.starts)):
                if process.poll() is None:
                    process.kill()
    assert {client.result()["weights_sha256"] for client in clients} == {json.loads(out)["weights_sha256"]}
    if stderr == "full":
        os.close(reading)
