"""A whole federation of the hidden mode in one process: the loop of `dr.simulate(mode="hidden")` and `dresfl train`.

Nobody in it looks at weights before the end, so there is no accuracy on the way, unless engine `direct` computes it:
that one holds the clear values that the clients of a real run never see.
"""

import dataclasses
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.errors import UsageError
from dresfl.federation.agreement import num_mask_seeds
from dresfl.model import Network
from dresfl.optimizers import Optimizer
from dresfl.protocol import RoundRecord, Session
from dresfl.protocol.hidden.plan import make_plan
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.local import Dropouts, Engine
from dresfl.runtimes.local.hidden import HiddenFederation
from dresfl.runtimes.local.hidden_direct import HiddenDirect
from dresfl.storage.checkpoint import RunFolder
from dresfl.storage.hidden_course import EngineState, HiddenCourse
from dresfl.storage.model_file import StoredModel
from dresfl.storage.run_folder import Accuracy, Measurement, RunRecorder, Summary, Watcher, summarise_hidden

_MOST_SHARES = 4 * 10**9  # bytes that engine `coded` keeps in memory


def hidden_session(
    network: Network,
    code: CodeParameters,
    settings: HiddenSettings,
    optimizer: Optimizer,
    rounds: int,
    client_rows: Sequence[int],
    seed: int,
    device: str = "cpu",
) -> Session:
    """The session of a simulated hidden run. UsageError or InfeasiblePlan if the mode cannot run it."""
    masks = num_mask_seeds(code, settings)
    plan = make_plan(network, code, settings, optimizer, rounds, client_rows=client_rows, num_masks=masks)
    run = hashlib.sha256(b"dresfl simulated run" + seed.to_bytes(8, "little")).digest()
    return Session(
        network=plan.network,
        parameters=code,
        client_rows=tuple(client_rows),
        seed=seed,
        hidden=plan,
        run=run,
        device=device,
    )


class HiddenRounds(Protocol):
    """How an engine plays: some rounds at a time, each with its record and how many clients answered."""

    @property
    def resumable(self) -> EngineState | None:
        """What a checkpoint keeps of the engine; None: a run that is stopped begins anew."""

    def play(self, limit: int) -> list[tuple[RoundRecord, int]]:
        """Up to `limit` rounds."""

    def losses(self) -> Sequence[int]:
        """The validation losses that were opened, in order."""

    @property
    def ended(self) -> bool:
        """Whether the stopping rule, or the last round, has ended the run."""

    def weights(self) -> Tensor | None:
        """The weights (P,) now; None if this engine does not know them before the end."""

    def model(self) -> Tensor | None:
        """The final weights (P,), once the run has ended; None: a trial opens none."""


@final
class CodedRounds:
    """N clients that play the real protocol. Who misses a round misses all its hops; who comes back catches up.

    If too few clients are there, a real run waits for more. Here those that are missing come back for that round.
    """

    def __init__(self, session: Session, data: Sequence[tuple[Tensor, Tensor]], dropouts: Dropouts) -> None:
        rows = sum(session.coded_rows(client) for client in range(session.num_clients))
        residues = len(session.field.moduli) * session.field.residue_bytes
        shares = session.num_clients * rows * session.row_width * residues
        if shares > _MOST_SHARES:
            raise UsageError(
                f"engine coded would keep {shares / 1e9:.0f} GB of shares in memory",
                "use engine direct, which computes the same integers on clear values; or fewer rows",
            )
        self._federation, self._dropouts = HiddenFederation(session, data), dropouts
        self._needed = session.answers_needed
        self._everybody = set(range(session.num_clients))

    @property
    def resumable(self) -> EngineState | None:
        return None  # masks are fresh, and their dither is part of the weights

    def play(self, limit: int) -> list[tuple[RoundRecord, int]]:
        federation = self._federation
        number = federation.ledger.round_number
        answering = set(self._dropouts.answering(number))
        if len(answering) < self._needed:
            answering = self._everybody
        absent = self._everybody - answering
        survivors: set[int] = set(self._everybody)
        liars: set[int] = set()
        while federation.ledger.round_number == number and not federation.ledger.ended:
            opened = federation.play_hop(absent)
            survivors &= set(opened.survivors)
            liars |= set(opened.liars)
        record = RoundRecord(number, "stepped", tuple(sorted(survivors)), liars=tuple(sorted(liars)))
        return [(record, len(answering))]

    def losses(self) -> Sequence[int]:
        return self._federation.ledger.losses

    @property
    def ended(self) -> bool:
        ledger = self._federation.ledger
        return ledger.ended or ledger.final

    def weights(self) -> Tensor | None:
        return None

    def model(self) -> Tensor | None:
        return None if self._federation.session.hidden_plan.settings.trial else self._federation.play()


@final
class DirectRounds:
    """The same integers on clear values, without shares and masks; the masks' dither comes from a public stream."""

    def __init__(self, session: Session, data: Sequence[tuple[Tensor, Tensor]], dropouts: Dropouts) -> None:
        self._engine, self._dropouts = HiddenDirect(session, data), dropouts
        self._needed, self._clients = session.answers_needed, session.num_clients

    @property
    def resumable(self) -> EngineState | None:
        return self._engine

    def play(self, limit: int) -> list[tuple[RoundRecord, int]]:
        first = self._engine.round_number
        self._engine.run_rounds(limit)
        rounds = range(first, self._engine.round_number)
        counts = [len(answering) for answering in self._dropouts.answering_in(rounds)] if rounds else []
        answers = [count if count >= self._needed else self._clients for count in counts]
        return [(RoundRecord(number, "stepped", ()), count) for number, count in zip(rounds, answers, strict=True)]

    def losses(self) -> Sequence[int]:
        return self._engine.losses

    @property
    def ended(self) -> bool:
        return self._engine.done

    def weights(self) -> Tensor | None:
        return self._engine.weights

    def model(self) -> Tensor | None:
        return None if self._engine.session.hidden_plan.settings.trial else self._engine.weights


@final
@dataclass(frozen=True, eq=False)
class HiddenSimulation:
    """A simulated hidden run, ready to start: the session, each client's integer rows, and what to do with them."""

    session: Session
    data: Sequence[tuple[Tensor, Tensor]]
    dropouts: Dropouts
    engine: Engine
    accuracy: Accuracy | None
    test_rows: int | None
    evaluate_every: int
    shift: float
    classes: tuple[str, ...] = ()
    name: str = "simulation"
    folder: Path | None = None  # of a run that can be stopped and, with engine `direct`, resumed
    checkpoint_every: int = 100

    def run(
        self, watch: Watcher = lambda progress, record, answers: None
    ) -> tuple[list[Measurement], Summary, StoredModel | None]:
        """Run to the end. `watch` is called after every round. The model is None for a trial."""
        session, plan = self.session, self.session.hidden_plan
        rounds = self._rounds()
        course = HiddenCourse(session, rounds.resumable)
        settings = {"rounds": plan.rounds, "optimizer": dataclasses.asdict(plan.optimizer), "engine": self.engine}
        kept = None if self.folder is None else RunFolder(self.folder, settings=settings, use_earlier=True)
        coded, every = self.engine == "coded", self.evaluate_every
        recorder = RunRecorder(course, accuracy=self.accuracy, evaluate_every=every, folder=kept, messages=coded)
        with recorder:
            try:
                self._play(rounds, course, recorder, watch)
            except KeyboardInterrupt:
                self._checkpoint(rounds, recorder)
                raise
            course.weights, course.ended = rounds.model(), True
            recorder.measure(RoundRecord(course.round_number - 1, "stepped", ()))
            self._checkpoint(rounds, recorder)
            summary = summarise_hidden(
                course,
                recorder.progress,
                name=self.name,
                engine=self.engine,
                reliable_clients=self.dropouts.num_reliable,
                test_rows=self.test_rows,
            )
            model = None
            if course.weights is not None:
                bound = max(1.0, 2.0**session.network.input_magnitude)
                model = StoredModel(session.network, course.weights, self.shift, bound, self.classes)
            recorder.finish(summary, model)
        return recorder.history, summary, model

    def _rounds(self) -> HiddenRounds:
        if self.engine == "coded":
            return CodedRounds(self.session, self.data, self.dropouts)
        return DirectRounds(self.session, self.data, self.dropouts)

    def _play(self, rounds: HiddenRounds, course: HiddenCourse, recorder: RunRecorder, watch: Watcher) -> None:
        """The training loop, without the final opening."""
        stops, plan = (self.evaluate_every, self.checkpoint_every), self.session.hidden_plan
        while not rounds.ended:
            started = time.monotonic()
            played = rounds.play(min(stop - course.round_number % stop for stop in stops))
            seconds = (time.monotonic() - started) / max(1, len(played))
            for record, answers in played:
                recorder.count(record, answers, seconds)
                for number, loss in enumerate(rounds.losses(), 1):
                    done = min(number * plan.settings.validation_every, course.rounds)
                    if done <= course.round_number:
                        recorder.count_loss(done, plan.real_loss(loss))
                if not rounds.ended and course.round_number % self.evaluate_every == 0:
                    course.weights = rounds.weights()
                    recorder.measure(record)
                    course.weights = None
                watch(recorder.progress, record, answers)
            if course.round_number % self.checkpoint_every == 0:
                self._checkpoint(rounds, recorder)

    def _checkpoint(self, rounds: HiddenRounds, recorder: RunRecorder) -> None:
        """A run whose engine cannot be resumed leaves no checkpoint: it would begin anew."""
        if rounds.resumable is not None:
            recorder.checkpoint()
