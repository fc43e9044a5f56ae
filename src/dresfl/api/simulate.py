"""A whole federation in one process: the training loop of `dr.simulate` and of `dresfl train`."""

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import final, get_args

import numpy as np
import torch
from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.data import check_class_weights, integer_rows, no_rows, weighted_rows
from dresfl.errors import UsageError
from dresfl.federation.agreement import Mode
from dresfl.kernels.threads import torch_threads
from dresfl.model import Network
from dresfl.optimizers import Optimizer
from dresfl.protocol import Evaluation, Session, Training, make_local_plan
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.quantize import Quantizer
from dresfl.runtimes.local import ChannelFederation, Dropouts, Engine, LocalFederation, Ranks, no_dropouts
from dresfl.storage.checkpoint import RunFolder
from dresfl.storage.model_file import StoredModel
from dresfl.storage.run_folder import (
    RUN_FILES,
    Accuracy,
    Measurement,
    Progress,
    RunRecorder,
    Summary,
    Watcher,
    summarise,
)
from dresfl.storage.transcript import Recording

from .model import Model
from .plan import plan
from .rows import Rows, check_range, to_dataset
from .simulate_hidden import HiddenSimulation, hidden_session


@final
@dataclass(frozen=True)
class Run:
    """What came of a simulation: measurements on the way, the summary, the model.

    >>> import dresfl as dr
    >>> network = dr.mlp((3, 2), input_bits=4, weight_bits=10)
    >>> run = dr.simulate(network, [([[1.0, 0.0, 0.5]], [1])] * 3, rounds=4, evaluate_every=2)
    >>> [measured.round for measured in run.history], run.summary.rounds, run.summary.test_accuracy
    ([2, 4], 4, None)
    """

    history: list[Measurement]
    summary: Summary
    opened: Model | None  # None: a trial of the hidden mode opens none

    @property
    def model(self) -> Model:
        """The trained model."""
        if self.opened is None:
            raise UsageError("this run was a trial: it opened validation losses and no model")
        return self.opened


def simulate(
    network: Network,
    clients: Sequence[Rows | None],
    *,
    rounds: int,
    optimizer: Optimizer | None = None,
    num_shards: int = CodeParameters.num_shards,
    max_colluders: int = CodeParameters.max_colluders,
    batch_size: int = CodeParameters.batch_size,
    max_liars: int = CodeParameters.max_liars,
    local_steps: int = CodeParameters.local_steps,
    seed: int = 0,
    dropouts: Dropouts | None = None,
    test: Rows | None = None,
    shift: float = 0.0,
    classes: Sequence[str] = (),
    engine: Engine = "coded",
    device: str = "cpu",
    threads: int = 0,
    evaluate_every: int = 100,
    progress: Callable[[Progress], None] | None = None,
    record: str | PathLike[str] | None = None,
    recorded: Collection[str] = ("all",),
    blinded: bool = False,
    mode: Mode = "open",
    hidden: HiddenSettings | None = None,
    class_weights: Sequence[int] = (),
    out: str | PathLike[str] | None = None,
) -> Run:
    """Train a network over simulated clients, in memory. The weights are those of the same run by `dresfl train`.

    clients: each client's (inputs, labels), as NumPy arrays, torch tensors or lists; labels are integers from 0. None:
    a helper without rows, which computes on the rows of the others. A network with `target_bits` is one of a
    regression: it takes (inputs, targets), real numbers. One that ends in a single value tells classes 0 and 1 apart.
    local_steps: s, the mini-batches of a round on which clients step before they answer; needs plain SGD.
    dropouts: who misses which round; None: nobody ever does. test: rows to evaluate on. shift: added to the inputs.
    classes: names of the classes, kept in the model. engine: "coded" runs the whole protocol, "direct" computes the
    same integers without it. device: "cpu" or "cuda"; the weights come out the same. threads: torch's, restored at the
    end; 0 leaves them alone. progress: called after every round. record: a folder that gets transcripts of what the
    participants in `recorded` see: "all", "coordinator", "client-0"…; `Transcript` reads them.
    blinded: answers are blinded as between real participants; the weights are the same, and rounds take longer.
    mode: "hidden" trains as between participants that see no weight before the end. `hidden` has its settings, and the
    optimiser must be SGD or momentum. Engine "coded" plays the real protocol with fresh masks, whose rounding is part
    of the weights, so they differ a little from run to run; "direct" computes on clear values and gives the same each
    time. A run that waits for clients in reality goes on at once here.
    class_weights: a whole number for each class; clients repeat each row that often, so that batches draw it as much
    more often. out: a new folder that gets metrics.jsonl, rounds.jsonl, the model and summary.json.

    >>> import dresfl as dr
    >>> network = dr.Network((dr.Dense(2),), input_shape=(3,), input_bits=4)
    >>> rows = [[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]], [0, 1]
    >>> run = simulate(network, [rows] * 3, rounds=20, batch_size=4, test=rows)
    >>> run.summary.test_accuracy == 1.0
    True
    """
    if not clients:
        raise UsageError("there are no clients", "give one (inputs, labels) pair for each client")
    if mode not in get_args(Mode):
        raise UsageError(f"the mode {mode!r} is not known", f"use one of {', '.join(get_args(Mode))}")
    if mode == "open" and hidden is not None:
        raise UsageError("settings of the hidden mode are given, but the mode is open", 'use mode = "hidden"')
    if mode == "hidden" and (record is not None or blinded):
        raise UsageError("record and blinded are of the open mode", "in the hidden mode every answer is blinded")
    code = CodeParameters(len(clients), num_shards, max_colluders, batch_size, max_liars, local_steps)
    for name, value, least in (("rounds", rounds, 1), ("evaluate_every", evaluate_every, 1), ("threads", threads, 0)):
        if value < least:
            raise UsageError(f"{name} must be at least {least}, not {value}")
    if engine not in get_args(Engine):
        raise UsageError(f"the engine {engine!r} is not known", f"use one of {', '.join(get_args(Engine))}")
    if classes and len(classes) != network.num_labels:
        raise UsageError(f"{len(classes)} classes are named, but the network has {network.num_labels}")
    if dropouts is not None and len(dropouts.rates) != len(clients):
        raise UsageError(f"the dropouts are of {len(dropouts.rates)} clients, but {len(clients)} clients have rows")
    data = [None if rows is None else to_dataset(rows, network, f"client {i}") for i, rows in enumerate(clients)]
    tested = None if test is None else to_dataset(test, network, "test")
    for part in [*data, tested]:
        if part is not None:
            check_range(part, network, shift)
    quantizer = Quantizer(network.input_bits, shift, network.target_bits)
    check_class_weights(class_weights, network.num_labels)
    weighted = [None if part is None else weighted_rows(part, np.arange(part.num_rows), class_weights) for part in data]
    rows = tuple(0 if part is None else len(part) for part in weighted)
    folder = None if out is None else new_run_folder(Path(out))
    if not any(rows):
        raise UsageError("no client has rows", "give one (inputs, labels) pair for each client, None for a helper")
    if mode == "hidden":
        settings, chosen = hidden or HiddenSettings(), optimizer or Optimizer()
        session = hidden_session(network, code, settings, chosen, rounds, rows, seed, check_device(device))
    else:
        chosen = optimizer or Optimizer()
        plan(network, **dataclasses.asdict(code), rows=sum(rows), optimizer=chosen).check()
        session = Session(
            network=network,
            parameters=code,
            client_rows=rows,
            seed=seed,
            local=make_local_plan(network, code, chosen, rounds),
            device=check_device(device),
        )
    with torch_threads(threads):
        integers = [
            no_rows(network.input_size, network.num_classes)
            if part is None or chosen is None
            else integer_rows(part, quantizer, chosen)
            for part, chosen in zip(data, weighted, strict=True)
        ]
        leaving = dropouts or no_dropouts(code.num_clients, seed)
        accuracy = None if tested is None else Evaluation(session.network, quantizer, tested).score
        test_rows = None if tested is None else tested.num_rows
        if mode == "hidden":
            hidden_simulation = HiddenSimulation(
                session=session,
                data=integers,
                dropouts=leaving,
                engine=engine,
                accuracy=accuracy,
                test_rows=test_rows,
                evaluate_every=evaluate_every,
                shift=shift,
                classes=tuple(classes),
                folder=folder,
            )
            return Run(*_with_model(hidden_simulation.run(_shown(progress))))
        simulation = Simulation(
            session=session,
            data=integers,
            optimizer=optimizer or Optimizer(),
            rounds=rounds,
            dropouts=leaving,
            engine=engine,
            accuracy=accuracy,
            test_rows=test_rows,
            evaluate_every=evaluate_every,
            shift=shift,
            classes=tuple(classes),
            folder=folder,
            record=None if record is None else Path(record),
            recorded=tuple(recorded),
            blinded=blinded,
        )
        return simulation.run(watch=_shown(progress))


def new_run_folder(path: Path) -> Path:
    """The folder of a new run; UsageError if it holds one already."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file, not a folder", "choose another folder")
    if any((path / name).exists() for name in RUN_FILES):
        raise UsageError(f"{path} already holds a run", "choose another folder, or remove the old run's")
    path.mkdir(parents=True, exist_ok=True)
    return path


def _shown(progress: Callable[[Progress], None] | None) -> Watcher:
    """A watcher that shows a user copies of how the run stands."""
    if progress is None:
        return lambda current, record, answers: None
    return lambda current, record, answers: progress(dataclasses.replace(current))


def _with_model(
    found: tuple[list[Measurement], Summary, StoredModel | None],
) -> tuple[list[Measurement], Summary, Model | None]:
    history, summary, stored = found
    return history, summary, None if stored is None else Model(stored)


def check_device(device: str) -> str:
    """The device, if this machine has it."""
    if device not in ("cpu", "cuda"):
        raise UsageError(f"the device {device!r} is not known", "use cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("this machine has no CUDA device", 'use device = "cpu"; the weights come out the same')
    return device


@final
@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated run, ready to start: the session, each client's integer rows, and what to do with them."""

    session: Session
    data: Sequence[tuple[Tensor, Tensor]]
    optimizer: Optimizer
    rounds: int
    dropouts: Dropouts
    engine: Engine
    accuracy: Accuracy | None
    test_rows: int | None
    evaluate_every: int
    shift: float
    classes: tuple[str, ...] = ()
    name: str = "simulation"
    folder: Path | None = None  # of a run that can be stopped and resumed
    checkpoint_every: int = 100
    record: Path | None = None  # the folder of transcripts
    recorded: tuple[str, ...] = ()  # the participants that have one
    blinded: bool = False  # answers are blinded as between real participants
    ranks: Ranks | None = None  # the processes that share the run; rank 0 alone evaluates and writes. None: this one

    def __post_init__(self) -> None:
        if self.ranks is not None and (self.record is not None or self.blinded):
            raise UsageError("several ranks neither record nor blind answers", "start the run without torchrun")
        if self.record is not None and self.engine != "coded":
            raise UsageError("engine direct has no messages that could be recorded", 'use engine = "coded"')
        if self.blinded and self.engine != "coded":
            raise UsageError("engine direct has no answers that could be blinded", 'use engine = "coded"')

    def run(self, watch: Watcher = lambda progress, record, answers: None) -> Run:
        """Run to the end, from the folder's checkpoint if there is one. `watch` is called after every round.

        On ranks other than 0 the counters of what is returned begin at the checkpoint, and nothing is evaluated.
        """
        network = self.session.network
        training = Training(self.session, self.optimizer, self.rounds)
        recording = None if self.record is None else Recording(self.record, self.recorded, self.session)
        federation = self._federation(training, recording)
        leads = self.ranks is None or self.ranks.leads
        settings = {"rounds": self.rounds, "optimizer": dataclasses.asdict(self.optimizer)}
        # a simulation that goes back a round plays it again just as it was
        kept = RunFolder(self.folder, settings=settings, use_earlier=True) if self.folder and leads else None
        accuracy = self.accuracy if leads else None
        coded, every = self.engine == "coded", self.evaluate_every
        with RunRecorder(training, accuracy=accuracy, evaluate_every=every, folder=kept, messages=coded) as recorder:
            if self.ranks is not None:
                self.ranks.share_training(training)  # as it was at the checkpoint of rank 0
            self._play(federation, recorder, watch)
            if recording is not None:
                recording.task(training.task())  # the final weights
            summary = summarise(
                training,
                recorder.progress,
                name=self.name,
                engine=self.engine,
                reliable_clients=self.dropouts.num_reliable,
                test_rows=self.test_rows,
            )
            model = StoredModel(network, training.weights.cpu(), self.shift, 2.0**network.input_magnitude, self.classes)
            recorder.finish(summary, model)
        return Run(recorder.history, summary, Model(model))

    def _federation(self, training: Training, recording: Recording | None) -> LocalFederation | ChannelFederation:
        """The clients, in this process or in this rank's channels."""
        run = self.session, training, self.data, self.dropouts, self.engine
        if self.ranks is not None:
            return ChannelFederation(*run, self.ranks)
        return LocalFederation(*run, recording, self.blinded)

    def _play(self, federation: LocalFederation | ChannelFederation, recorder: RunRecorder, watch: Watcher) -> None:
        """The training loop."""
        training, progress = federation.training, recorder.progress
        stops = self.evaluate_every, self.checkpoint_every
        whole = True  # whether the training, the counters and the metrics agree
        try:
            while not training.done:
                whole = False
                started = time.monotonic()
                played = federation.run_rounds(min(every - training.round_number % every for every in stops))
                seconds = (time.monotonic() - started) / len(played)
                for record, answers in played[:-1]:
                    recorder.count(record, answers, seconds)
                    watch(progress, record, answers)
                record, answers = played[-1]
                recorder.count(record, answers, seconds)
                recorder.measure(record)
                whole = True
                watch(progress, record, answers)
                if training.round_number % self.checkpoint_every == 0 and not training.done:
                    recorder.checkpoint()
        except KeyboardInterrupt:
            if whole:
                recorder.checkpoint()
            raise
        recorder.checkpoint()
