"""Ranks as processes on this machine, without torchrun: `start_ranks` starts them, and this file is what each runs."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from dresfl.errors import DresError
from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import prepare
from dresfl.experiments.training import train
from dresfl.field import ByteField, ResidueField, choose_moduli
from dresfl.model import weights_sha256
from dresfl.protocol import Training
from dresfl.runtimes.local import ChannelFederation, LocalFederation, Ranks
from dresfl.runtimes.local.ranks import join

LIMIT = 240  # seconds, for processes that hang


def start_ranks(folder: Path, size: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """Start ranks and wait until all have ended. They meet at a store of this process: no port is guessed.

    Each computes what `bits` does and prints it. Then they train in `folder`, until one of them dies.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store exists already
        "WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        ended = [(rank, *rank.communicate(timeout=LIMIT)) for rank in started]
    finally:
        for rank in started:
            rank.kill()
            rank.wait()
    return [subprocess.CompletedProcess(rank.args, rank.returncode, out, err) for rank, out, err in ended]


# -- bits ------------------------------------------------------------------------------------------------------------

SETTINGS = {
    "momentum": [],
    "adam, decay, clipping": ["optimizer.method=adam", "optimizer.weight_decay=0.1", "optimizer.max_norm=0.5"],
    "two shards": ["federation.num_shards=2", "dropout.model=none"],
    "skipped rounds": ["dropout.model=bernoulli", "dropout.rate=0.6"],
    "alarms": ["optimizer.method=sgd", "optimizer.learning_rate=1e6", "optimizer.schedule=constant"],
    "local steps": [
        "federation.local_steps=2",
        "optimizer.method=sgd",
        "dropout.model=none",
        "model.layers=[{kind='dense', units=10}]",
    ],
    "room for a liar": ["federation.max_liars=1", "dropout.model=none"],
    "convolution": [
        "model.layers=[{kind='conv2d', channels=2, kernel=3, padding=1}, {kind='square'}, "
        "{kind='sumpool', kernel=2}, {kind='flatten'}, {kind='dense', units=10}]",
        "optimizer.learning_rate=0.003",
    ],
}


def played(settings: Sequence[str], ranks: Ranks | None = None, engine: str = "coded") -> dict[str, object]:
    """A short run, on these ranks or in this process alone: its weights and every record."""
    config = load_config("digits", ["rounds=8", "threads=1", *settings])
    prepared = prepare(config, None)
    training = Training(prepared.session, config.optimizer, config.rounds)
    run = prepared.session, training, prepared.client_data(), prepared.dropouts, engine
    federation = LocalFederation(*run) if ranks is None else ChannelFederation(*run, ranks)
    records = []
    while not training.done:
        records += federation.run_rounds(1)
    plain = [[dataclasses.asdict(record), answers] for record, answers in records]
    return json.loads(json.dumps({"weights": weights_sha256(training.weights), "records": plain}))


def whole_numbers(field, columns: int) -> torch.Tensor:
    """Residues (M,columns) of numbers that fill the range of values, and one number that is beyond it."""
    generator = torch.Generator().manual_seed(columns)
    residues = field.embed(torch.randint(-(2**40), 2**40, (columns,), generator=generator))
    residues = field.mul(residues, residues)
    residues[-1, 0] = 1 - residues[-1, 0]
    return residues


COLUMNS = 1, 7, 64
FIELDS = {
    "float64": ResidueField(choose_moduli(100, more_than=30), 5),
    "bytes": ByteField(choose_moduli(100, more_than=30, limit=256), 14),
}


def bits(ranks: Ranks) -> dict[str, object]:
    """What ranks compute together."""
    found: dict[str, object] = {
        f"{name}, {engine}": played(settings, ranks, engine)
        for name, settings in SETTINGS.items()
        for engine in ("coded", "direct")
    }
    for name, field in FIELDS.items():
        first, end = ranks.channels(len(field.moduli))
        for columns in COLUMNS:
            integers, exceeded = ranks.lift(field, whole_numbers(field, columns)[first:end])
            found[f"lift {columns} in {name}"] = [integers.tolist(), int(exceeded)]
    found["shared"] = ranks.share({"rank": ranks.rank})
    try:
        ranks.check_same(bytes([ranks.rank] * 32), "number", "be alike")
    except DresError as error:
        found["different"] = str(error)
    return found


# -- a rank that dies ------------------------------------------------------------------------------------------------

TRAINED = ["rounds=24", "threads=1", "evaluate_every=4", "checkpoint_every=6"]


def train_until_death(ranks: Ranks, folder: Path) -> None:
    """Rank 1 ends without a word after round 15."""

    def watch(progress, record, answers) -> None:
        if ranks.rank == 1 and progress.round_number == 15:
            os._exit(9)

    train(load_config("digits", TRAINED), out=folder, watch=watch, ranks=ranks)


def main() -> None:
    torch.set_num_threads(1)
    try:
        with join("cpu") as ranks:
            print(json.dumps(bits(ranks)), flush=True)
            train_until_death(ranks, Path(sys.argv[1]))
    except DresError as error:
        sys.exit(f"error: {error}\nhint: {error.hint}")


if __name__ == "__main__":
    main()
