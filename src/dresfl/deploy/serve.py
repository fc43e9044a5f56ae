"""A coordinator's run: the machine on the network, and the run folder with metrics, checkpoints, model and summary."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

from dresfl.data import DataSet
from dresfl.federation import Agreement, CoordinatorSettings, Windows
from dresfl.kernels.threads import torch_threads
from dresfl.protocol import Evaluation, RoundRecord, Session, Training
from dresfl.runtimes.coordinator_host import CoordinatorHost
from dresfl.runtimes.grpc_runtime import GrpcCoordinator
from dresfl.runtimes.log import Log
from dresfl.sealing import Identity, Roster
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.checkpoint import EARLIER, NEWEST, RunFolder
from dresfl.storage.run_folder import RunRecorder, summarise

from .consent import consented_agreement
from .hidden_recorder import HiddenRecorder
from .metrics import serve_metrics
from .model import stored_model
from .rows import test_rows
from .run_record import note_run, run_folder_of, weight_settings
from .settings import CoordinatorConfig, load_credentials
from .storage_key import find_storage_key

SECONDS_BETWEEN_LINES = 1.0  # of progress in the log
_HOW_TO_USE_EARLIER = {
    "grpc": "go on from it with: dresfl serve --config FILE.toml --from-earlier-checkpoint",
    "flower": f"go on from it: in the run's folder, mv {EARLIER} {NEWEST}, and start the run again",
}
_THEN = {
    "retry": "the weights will be the same",
    "skip": "if its round was skipped then and is not now, or the other way round, clients refuse the rest of the run",
}


@final
class Recorder:
    """What a run writes to its folder: after every round, and at its end."""

    def __init__(
        self,
        config: CoordinatorConfig,
        agreement: Agreement,
        test: DataSet | None,
        log: Log,
        engine: str = "grpc",
        *,
        key: StorageKey | None = None,
        use_earlier: bool = False,
    ) -> None:
        """key: seals checkpoints. use_earlier: if the newest checkpoint is damaged, go on from the one before."""
        self._config, self._agreement, self._test, self._log, self._engine = config, agreement, test, log, engine
        self._logged = time.monotonic()
        self._folder = RunFolder(
            Path(config.folder),
            private=True,
            key=key,
            settings=weight_settings(config),
            use_earlier=use_earlier,
            how_to_use_earlier=f"{_HOW_TO_USE_EARLIER[engine]}; {_THEN[config.network.on_shortage]}",
        )
        self._training: Training | None = None
        self._run: RunRecorder | None = None

    def make_training(self, session: Session) -> Training:
        """The training of a session, where its last checkpoint left it."""
        agreement, test = self._agreement, self._test
        accuracy = Evaluation(agreement.network, agreement.quantizer, test).score if test is not None else None
        self._training = training = Training(session, self._config.optimizer, agreement.rounds)
        self._run = RunRecorder(
            training, accuracy=accuracy, evaluate_every=self._config.evaluate_every, folder=self._folder
        )
        note_run(self._folder.path, agreement, weight_settings(self._config), self._folder.key)
        return training

    @property
    def _running(self) -> tuple[Training, RunRecorder]:
        if self._training is None or self._run is None:
            raise RuntimeError("no run has been made")
        return self._training, self._run

    def watch(self, record: RoundRecord, answers: int) -> None:
        """After a round: count it; evaluate, checkpoint and log when it is time."""
        training, run = self._running
        run.count(record, answers)
        run.measure(record)
        special = record.outcome != "stepped" or bool(record.liars)
        if training.round_number % self._config.checkpoint_every == 0 or training.done or special:
            run.checkpoint()
        if time.monotonic() - self._logged >= SECONDS_BETWEEN_LINES or training.done:
            self._logged = time.monotonic()
            self._log("progress", round=training.round_number, rounds=training.rounds, accuracy=run.progress.accuracy)

    def finish(self) -> dict[str, Any]:
        """Write the model and the summary."""
        training, run = self._running
        test_rows = self._test.num_rows if self._test is not None else None
        name, engine = self._config.name, self._engine
        summary = summarise(training, run.progress, name=name, engine=engine, test_rows=test_rows)
        run.finish(summary, stored_model(self._agreement, training.weights))
        return summary.to_dict()

    def close(self) -> None:
        if self._run is not None:
            self._run.__exit__()


def serve(
    config: CoordinatorConfig,
    log: Log,
    on_ready: Callable[[int], None] = lambda port: None,
    *,
    use_earlier: bool = False,
) -> dict[str, Any]:
    """Run a coordinator to the end of its run, or go on with it after a stop; return the summary.

    use_earlier: if the newest checkpoint is damaged, go on from the one before.
    """
    credentials = load_credentials(config.keys)
    agreement = consented_agreement(config, credentials.roster, log)

    async def run(host: CoordinatorHost) -> None:
        with stopping_on_signals():
            coordinator = GrpcCoordinator(config.listen_settings(), host, credentials, log)
            with serve_metrics(config.network.metrics, host.machine, lambda: coordinator.refusals, log):
                await coordinator.run(on_ready)

    def carry_out(host: CoordinatorHost) -> None:
        asyncio.run(run(host))

    identity, roster = credentials.identity, credentials.roster
    return run_coordinator(config, agreement, identity, roster, log, "grpc", carry_out, use_earlier=use_earlier)


def run_coordinator(
    config: CoordinatorConfig,
    agreement: Agreement,
    identity: Identity,
    roster: Roster,
    log: Log,
    engine: str,
    carry_out: Callable[[CoordinatorHost], None],
    windows: Windows | None = None,
    *,
    use_earlier: bool = False,
) -> dict[str, Any]:
    """What all network runtimes do around a run: the folder, the recorder, the summary.

    carry_out: drives the host until the run is over.
    """
    key = find_storage_key(config, log)
    with run_folder_of(config, agreement, key, log) as folder, torch_threads(config.threads):
        test = test_rows(config.test, agreement)
        settings = config.machine_settings(windows)
        if agreement.mode == "hidden":
            return _run_hidden(config, agreement, identity, roster, log, engine, carry_out, settings, folder, test, key)
        recorder = Recorder(config, agreement, test, log, engine, key=key, use_earlier=use_earlier)
        host = CoordinatorHost(
            settings, agreement, identity, roster, folder, recorder.make_training, recorder.watch, log, key
        )
        try:
            carry_out(host)
        finally:
            recorder.close()
        return recorder.finish()


def _run_hidden(
    config: CoordinatorConfig,
    agreement: Agreement,
    identity: Identity,
    roster: Roster,
    log: Log,
    engine: str,
    carry_out: Callable[[CoordinatorHost], None],
    settings: CoordinatorSettings,
    folder: Path,
    test: DataSet | None,
    key: StorageKey | None,
) -> dict[str, Any]:
    """A run of the hidden mode: there is no training here, only what was published, and at the end the model."""
    recorder = HiddenRecorder(config, agreement, test, log, engine, lambda: host.machine.session, key)
    host = CoordinatorHost(
        settings, agreement, identity, roster, folder, _no_training, recorder.watch, log, key, recorder.opened_loss
    )
    try:
        carry_out(host)
        return recorder.finish(host.machine.model, host.machine.totals)
    finally:
        recorder.close()
        host.close()


def _no_training(session: Session) -> Training:
    raise RuntimeError("the coordinator of a hidden run trains nothing")


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
