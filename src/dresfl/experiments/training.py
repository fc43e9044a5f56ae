"""One training run from a configuration, in a folder. It can be killed at any moment and resumed.

The loop is that of `dresfl.api.simulate`; the folder is described in `dresfl.storage.run_folder`.
"""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from dresfl.api.plan import warnings
from dresfl.api.simulate import Simulation
from dresfl.api.simulate_hidden import HiddenSimulation
from dresfl.deploy.toml import to_toml
from dresfl.errors import CheckpointError, UsageError
from dresfl.files import write_atomic
from dresfl.kernels.threads import torch_threads
from dresfl.runtimes.local import Ranks
from dresfl.storage.run_folder import RUN_FILES, Watcher, read_summary

from .config import RunConfig, differences, load_config
from .prepare import Prepared, prepare


def train(
    config: RunConfig,
    *,
    folder: Path | None = None,
    out: Path,
    resume: bool = False,
    watch: Watcher = lambda progress, record, answers: None,
    note: Callable[[str], None] = lambda text: None,
    recorded: Collection[str] = (),
    blinded: bool = False,
    ranks: Ranks | None = None,
    prepared: Prepared | None = None,
) -> dict[str, Any]:
    """Run (or resume) a training and return its summary; `watch` is called after every round.

    folder: of the data sets. note: gets a line where a reader should know something, e.g. that the dropouts leave too
    few clients. recorded: the participants that get a transcript in the run's folder (`dresfl.storage.transcript`).
    blinded: answers are blinded as between real participants. ranks: the processes that share the run; all of them call
    this alike, rank 0 alone uses the folder, and all return its summary. prepared: what `prepare` made of this
    configuration.
    """
    if config.mode == "hidden" and (recorded or blinded):
        raise UsageError("--record and --blinded are of the open mode", "in the hidden mode every answer is blinded")
    if config.mode == "hidden" and ranks is not None:
        raise UsageError("the hidden mode is simulated in one process", "start it without torchrun")
    leads = ranks is None or ranks.leads
    if leads:
        _check_folder(config, out, resume)
    complete = read_summary(out) if leads and (out / "summary.json").exists() else None
    complete = complete if ranks is None else ranks.share(complete)
    if complete is not None:
        return complete
    if leads and resume and not out.exists():
        note(f"note: there is no run in {out} yet; it starts with round 1")
    with torch_threads(config.threads):
        prepared = prepare(config, folder) if prepared is None else prepared
        if leads:  # only now: a run that cannot start holds no folder
            write_atomic(out / "config.toml", to_toml(config).encode())
            _keep_origin(prepared, out)
            _note_dangers(prepared, note)
        if config.mode == "hidden":
            hidden = HiddenSimulation(
                session=prepared.session,
                data=prepared.client_data(),
                dropouts=prepared.dropouts,
                engine=config.engine,
                accuracy=prepared.accuracy,
                test_rows=prepared.split.test.num_rows,
                evaluate_every=config.evaluate_every,
                shift=config.model.shift,
                name=config.name,
                folder=out,
                checkpoint_every=config.checkpoint_every,
            )
            return hidden.run(watch)[1].to_dict()
        simulation = Simulation(
            session=prepared.session,
            data=prepared.client_data(),
            optimizer=config.optimizer,
            rounds=config.rounds,
            dropouts=prepared.dropouts,
            engine=config.engine,
            accuracy=prepared.accuracy,
            test_rows=prepared.split.test.num_rows,
            evaluate_every=config.evaluate_every,
            shift=config.model.shift,
            name=config.name,
            folder=out,
            checkpoint_every=config.checkpoint_every,
            record=out if recorded else None,
            recorded=tuple(recorded),
            blinded=blinded,
            ranks=ranks,
        )
        summary = simulation.run(watch).summary.to_dict()
        return summary if ranks is None else ranks.share(summary)


def read_origin(out: Path) -> dict[str, Any]:
    """What the run in a folder was made from: `Origin.to_dict`. Nothing, if an older version began it."""
    path = out / "data.json"
    try:
        origin: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return origin
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}", "choose another --out") from error


def _keep_origin(prepared: Prepared, out: Path) -> None:
    """Write data.json; refuse to go on with other data than the run began with."""
    origin, before = prepared.split.origin.to_dict(), read_origin(out)
    differing = [key for key in origin if before and before.get(key) != origin[key]]
    if differing:
        raise CheckpointError(
            f"the run in {out} began with other data ({', '.join(differing)})",
            "give the folder that it began with, or choose another --out; `dresfl data check` shows the digests",
        )
    write_atomic(out / "data.json", (json.dumps(origin, indent=2) + "\n").encode())


def _note_dangers(prepared: Prepared, note: Callable[[str], None]) -> None:
    session, reliable = prepared.session, prepared.dropouts.num_reliable
    if session.hidden is not None:
        if reliable < session.answers_needed:
            note(
                f"note: only {reliable} of {session.num_clients} clients are reliable and {session.answers_needed} "
                "answers are needed: a real run would wait in most rounds. Here those that are missing come back"
            )
        return
    if reliable < session.answers_needed:
        note(
            f"note: only {reliable} of {session.num_clients} clients are reliable and {session.answers_needed} "
            "answers are needed: most rounds will be skipped (try another dropout.seed)"
        )
    for warning in warnings(session.network, session.parameters, session.local):
        note(f"note: {warning}")


def _check_folder(config: RunConfig, out: Path, resume: bool) -> None:
    """Refuse a folder that holds another run, or a run that nobody asked to resume."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file, not a folder", "choose another --out")
    found = [name for name in RUN_FILES if (out / name).exists()]
    if found and not resume:
        raise UsageError(f"{out} already holds a run", "continue it with --resume, or choose another --out")
    if found and "config.toml" not in found:
        raise CheckpointError(f"the run in {out} lost its config.toml", "choose another --out")
    if found:
        _check_same(config, out)


def _check_same(config: RunConfig, out: Path) -> None:
    """Evaluation, checkpoints, threads and the device may change; what decides the weights may not."""
    stored = load_config(str(out / "config.toml"))
    differing = differences(stored, config, ("evaluate_every", "checkpoint_every", "threads", "device"))
    if differing:
        raise CheckpointError(
            f"the run in {out} has another configuration ({', '.join(differing)})",
            f"compare with {out / 'config.toml'}, or choose another --out",
        )
