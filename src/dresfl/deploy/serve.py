"""A coordinator's run: the hub, and beside it what `dresfl train` also keeps: metrics, checkpoints, model, summary."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

from dresfl.data import DataSet
from dresfl.errors import CheckpointError
from dresfl.federation import Agreement
from dresfl.files import write_atomic
from dresfl.kernels.threads import torch_threads
from dresfl.protocol import Evaluation, RoundRecord, Session, Training
from dresfl.runtimes.grpc_runtime import Hub, Log
from dresfl.storage.run_folder import RunRecorder, summarise

from .metrics import serve_metrics
from .model import stored_model
from .rows import test_rows
from .settings import ServerConfig, load_agreement, load_credentials

SECONDS_BETWEEN_LINES = 1.0  # of progress in the log


@final
class Recorder:
    """What a run writes to its folder: after every round, and at its end."""

    def __init__(
        self, config: ServerConfig, agreement: Agreement, test: DataSet | None, log: Log, engine: str = "grpc"
    ) -> None:
        self._config, self._agreement, self._test, self._log, self._engine = config, agreement, test, log, engine
        self._logged = time.monotonic()
        self._folder = Path(config.folder)
        self._server: Training | None = None
        self._run: RunRecorder | None = None

    def make_server(self, session: Session) -> Training:
        """The training of a session, where its last checkpoint left it."""
        agreement, test = self._agreement, self._test
        accuracy = Evaluation(agreement.network, agreement.quantizer, test).accuracy if test is not None else None
        self._server = server = Training(session, self._config.optimizer, agreement.rounds)
        self._run = RunRecorder(
            server, accuracy=accuracy, evaluate_every=self._config.evaluate_every, folder=self._folder
        )
        return server

    def watch(self, record: RoundRecord, answers: int) -> None:
        """After a round: count it; evaluate, checkpoint and log when it is time."""
        server, run = self._server, self._run
        if server is None or run is None:
            raise RuntimeError("no run has been made")
        run.count(record, answers)
        if record.outcome == "refused":
            self._log("round refused", round=record.round_number, reason=record.reason)
        run.measure(record)
        if server.round_number % self._config.checkpoint_every == 0 or server.done or record.outcome != "stepped":
            run.checkpoint()
        if time.monotonic() - self._logged >= SECONDS_BETWEEN_LINES or server.done:
            self._logged = time.monotonic()
            self._log("progress", round=server.round_number, rounds=server.rounds, accuracy=run.progress.accuracy)

    def finish(self, server: Training) -> dict[str, Any]:
        """Write the model and the summary."""
        if self._run is None:
            raise RuntimeError("no run has been made")
        test_rows = self._test.num_rows if self._test is not None else None
        name, engine = self._config.name, self._engine
        summary = summarise(server, self._run.progress, name=name, engine=engine, test_rows=test_rows)
        self._run.finish(summary, stored_model(self._agreement, server.weights))
        return summary.to_dict()

    def close(self) -> None:
        if self._run is not None:
            self._run.__exit__()


def run_server(config: ServerConfig, log: Log, on_ready: Callable[[int], None] = lambda port: None) -> dict[str, Any]:
    """Run a coordinator to the end of its run, or go on with it after a stop; return the summary."""
    credentials = load_credentials(config.keys)
    agreement = load_agreement(config, credentials.roster)
    folder = Path(config.folder)
    folder.mkdir(parents=True, exist_ok=True)
    check_same(folder / "agreement.json", agreement)
    recorder = Recorder(config, agreement, test_rows(config.test, agreement), log)

    async def run() -> Training:
        with stopping_on_signals():
            hub = Hub(config.hub_settings(), agreement, credentials, recorder.make_server, recorder.watch, log)
            with serve_metrics(config.network.metrics, hub, log):
                return await hub.run(on_ready)

    with torch_threads(config.threads):
        try:
            server = asyncio.run(run())
        finally:
            recorder.close()
        return recorder.finish(server)


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
