"""A coordinator's run: the machine on the network, and the run folder with metrics, checkpoints, model and summary."""

import asyncio
import contextlib
import dataclasses
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

from dresfl import __version__
from dresfl.data import DataSet
from dresfl.errors import CheckpointError
from dresfl.experiments.prepare import Evaluation
from dresfl.experiments.training import Metrics, Progress, checkpoint_path, metrics_line, restore, threads
from dresfl.federation import Agreement, Windows
from dresfl.files import save_tensors, write_atomic
from dresfl.model import weights_sha256
from dresfl.protocol import Answer, RoundRecord, Server, Session
from dresfl.runtimes.coordinator_host import CoordinatorHost
from dresfl.runtimes.grpc_runtime import GrpcCoordinator
from dresfl.runtimes.log import Log
from dresfl.sealing import Identity, Roster

from .metrics import serve_metrics
from .rows import test_rows
from .settings import CoordinatorConfig, load_agreement, load_credentials

SECONDS_BETWEEN_LINES = 1.0  # of progress in the log


@final
class Recorder:
    """What a run writes to its folder: after every round, and at its end."""

    def __init__(
        self, config: CoordinatorConfig, agreement: Agreement, test: DataSet | None, log: Log, engine: str = "grpc"
    ) -> None:
        self._engine = engine
        self._config, self._agreement, self._log = config, agreement, log
        self._evaluation = Evaluation(agreement.network, agreement.quantizer, test) if test is not None else None
        self._folder = Path(config.folder)
        self._started = self._logged = time.monotonic()
        self._metrics: Metrics | None = None
        self._server: Server | None = None
        self.progress = Progress()

    def make_server(self, session: Session) -> Server:
        """The Server of a session, where its last checkpoint left it."""
        server = Server(session, self._config.optimizer, self._agreement.rounds)
        self.progress = restore(server, self._folder)
        self._started = time.monotonic() - self.progress.seconds
        self._metrics = Metrics(self._folder / "metrics.jsonl", self.progress.metrics_bytes)
        self._server = server
        return server

    @property
    def _running(self) -> tuple[Server, Metrics]:
        if self._server is None or self._metrics is None:
            raise RuntimeError("no run has been made")
        return self._server, self._metrics

    def watch(self, record: RoundRecord, answers: int) -> None:
        """After a round: count it; evaluate, checkpoint and log when it is time."""
        (server, metrics), progress = self._running, self.progress
        progress.count(record, answers)
        if record.outcome == "refused":
            metrics.write({"round": record.round_number, "alarm": record.reason})
        if server.round_number % self._config.evaluate_every == 0 or server.done:
            progress.accuracy = self._evaluation.accuracy(server.weights) if self._evaluation else 0.0
            progress.seconds = time.monotonic() - self._started
            metrics.write(metrics_line(progress, record))
        if server.round_number % self._config.checkpoint_every == 0 or server.done or record.outcome != "stepped":
            progress.seconds = time.monotonic() - self._started
            progress.metrics_bytes = metrics.sync()
            state = {"progress": dataclasses.asdict(progress), "session": server.session.session_id.hex()}
            save_tensors(checkpoint_path(self._folder), server.state(), state)
        if time.monotonic() - self._logged >= SECONDS_BETWEEN_LINES or server.done:
            self._logged = time.monotonic()
            self._log("progress", round=progress.round_number, rounds=server.rounds, accuracy=progress.accuracy)

    def finish(self) -> dict[str, Any]:
        """Write the model and the summary."""
        server = self._running[0]
        progress, session, network = self.progress, server.session, server.session.network
        digest = weights_sha256(server.weights)
        description = {
            "format": "dresfl model 1",
            "agreement": self._agreement.described(),
            "input_shape": network.input_shape,
            "weights_sha256": digest,
        }
        save_tensors(self._folder / "model.safetensors", network.tensors(server.weights), description)
        summary = {
            "name": self._config.name,
            "engine": self._engine,
            "test_accuracy": progress.accuracy,
            "rounds": server.rounds,
            "skipped_rounds": progress.skipped,
            "alarms": progress.alarms,
            "mean_survivors": progress.mean_survivors,
            "recovery_threshold": session.recovery_threshold,
            "weights_sha256": digest,
            "seconds": progress.seconds,
            "seconds_per_round": progress.seconds / server.rounds,
            "bytes_uploaded": progress.answers * Answer.size(session.field, network.num_parameters),
            "versions": {"dresfl": __version__},
        }
        write_atomic(self._folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
        return summary

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.__exit__()


def serve(config: CoordinatorConfig, log: Log, on_ready: Callable[[int], None] = lambda port: None) -> dict[str, Any]:
    """Run a coordinator to the end of its run, or go on with it after a stop; return the summary."""
    credentials = load_credentials(config.keys)
    agreement = load_agreement(config, credentials.roster)

    async def run(host: CoordinatorHost) -> None:
        with stopping_on_signals():
            coordinator = GrpcCoordinator(config.listen_settings(), host, credentials, log)
            with serve_metrics(config.network.metrics, host.machine, lambda: coordinator.refusals, log):
                await coordinator.run(on_ready)

    def carry_out(host: CoordinatorHost) -> None:
        asyncio.run(run(host))

    return run_coordinator(config, agreement, credentials.identity, credentials.roster, log, "grpc", carry_out)


def run_coordinator(
    config: CoordinatorConfig,
    agreement: Agreement,
    identity: Identity,
    roster: Roster,
    log: Log,
    engine: str,
    carry_out: Callable[[CoordinatorHost], None],
    windows: Windows | None = None,
) -> dict[str, Any]:
    """What all network runtimes do around a run: the folder, the recorder, the summary.

    carry_out: drives the host until the run is over.
    """
    folder = Path(config.folder)
    folder.mkdir(parents=True, exist_ok=True)
    check_same(folder / "agreement.json", agreement)
    recorder = Recorder(config, agreement, test_rows(config.test, agreement), log, engine)
    settings = config.machine_settings(windows)
    with threads(config.threads):
        host = CoordinatorHost(settings, agreement, identity, roster, folder, recorder.make_server, recorder.watch, log)
        try:
            carry_out(host)
        finally:
            recorder.close()
        return recorder.finish()


def check_same(path: Path, agreement: Agreement) -> None:
    """A run's folder is of one agreement; another one needs another folder."""
    if path.exists():
        if path.read_bytes() != agreement.encode():
            differing = "; ".join(agreement.differences(path.read_bytes()))
            raise CheckpointError(
                f"the run in {path.parent} is of another agreement ({differing})", "choose another folder"
            )
    else:
        write_atomic(path, agreement.encode())


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: cleanly, to be continued."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        if task is not None:
            task.cancel()

    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not in this thread or system
        loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        yield
    except asyncio.CancelledError:
        if stopped:
            raise KeyboardInterrupt from None
        raise
