"""What a coordinator writes to its folder of a hidden run: who answered, the agreed losses, and at the end the model.

The rounds themselves are in the published hops (`dresfl.storage.broadcasts`): a coordinator that is started again goes
on from those. Here are counters, so a checkpoint that lags behind costs nothing but counts.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from torch import Tensor

from dresfl.data import DataSet
from dresfl.federation import Agreement
from dresfl.protocol import Evaluation, RoundRecord, Session, Totals
from dresfl.runtimes.log import Log
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.checkpoint import RunFolder
from dresfl.storage.hidden_course import HiddenCourse
from dresfl.storage.run_folder import RunRecorder, summarise_hidden

from .model import stored_model
from .run_record import note_run, weight_settings
from .settings import CoordinatorConfig

SECONDS_BETWEEN_LINES = 1.0  # of progress in the log


@final
class HiddenRecorder:
    """The folder of a hidden run, written after every round and at its end."""

    def __init__(
        self,
        config: CoordinatorConfig,
        agreement: Agreement,
        test: DataSet | None,
        log: Log,
        engine: str,
        session: Callable[[], Session | None],
        key: StorageKey | None,
    ) -> None:
        """session: the run's, once its dealers are judged. key: seals checkpoints."""
        self._config, self._agreement, self._test, self._log, self._engine = config, agreement, test, log, engine
        self._session, self._logged = session, time.monotonic()
        settings = weight_settings(config)
        self._folder = RunFolder(Path(config.folder), private=True, key=key, settings=settings, use_earlier=True)
        self._made: tuple[HiddenCourse, RunRecorder] | None = None

    @property
    def _running(self) -> tuple[HiddenCourse, RunRecorder]:
        if self._made is None:
            session, agreement, test = self._session(), self._agreement, self._test
            if session is None:
                raise RuntimeError("no run has been made")
            course = HiddenCourse(session)
            accuracy = Evaluation(agreement.network, agreement.quantizer, test).score if test is not None else None
            every = self._config.evaluate_every
            recorder = RunRecorder(course, accuracy=accuracy, evaluate_every=every, folder=self._folder)
            note_run(self._folder.path, agreement, weight_settings(self._config), self._folder.key)
            self._made = course, recorder
        return self._made

    def watch(self, record: RoundRecord, answers: int) -> None:
        """After a round: count it; checkpoint and log when it is time."""
        course, run = self._running
        run.count(record, answers)
        if course.round_number < course.rounds:
            run.measure(record)
        if course.round_number % self._config.checkpoint_every == 0 or record.liars:
            run.checkpoint()
        if time.monotonic() - self._logged >= SECONDS_BETWEEN_LINES or course.done:
            self._logged = time.monotonic()
            self._log("progress", round=course.round_number, rounds=course.rounds, accuracy=None)

    def opened_loss(self, round_number: int, loss: float) -> None:
        """A validation loss was opened in a round."""
        course, run = self._running
        run.count_loss(round_number + 1, loss)
        self._log("validation loss", round=round_number + 1, rounds=course.rounds, loss=loss)

    def finish(self, model: Tensor | None, totals: Totals | None) -> dict[str, Any]:
        """Write the model, if there is one for the coordinator, and the summary.

        totals: what the clients counted on their own rows, summed.
        """
        course, run = self._running
        course.weights, course.ended = model, True
        last = max(0, course.round_number - 1)
        run.measure(RoundRecord(last, "stepped", ()))
        run.checkpoint()
        rows = self._test.num_rows if self._test is not None else None
        name, engine = self._config.name, self._engine
        counted = None if totals is None else _counted(totals, self._agreement)
        summary = summarise_hidden(course, run.progress, name=name, engine=engine, test_rows=rows, totals=counted)
        run.finish(summary, None if model is None else stored_model(self._agreement, model))
        return summary.to_dict()

    def close(self) -> None:
        if self._made is not None:
            self._made[1].__exit__()


def _counted(totals: Totals, agreement: Agreement) -> dict[str, Any]:
    """Totals in words: rows that the final model classifies right, of all; and the confusion matrix, if it is there."""
    correct, rows, *confusion = totals.values
    found: dict[str, Any] = {"correct": correct, "rows": rows, "clients": list(totals.dealers)}
    if confusion:
        classes = agreement.network.num_labels
        found["confusion"] = [confusion[i : i + classes] for i in range(0, len(confusion), classes)]
    return found
