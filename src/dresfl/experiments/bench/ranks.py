"""What it costs to spread a run's residue channels over ranks, beside the same run in one process. Under torchrun:

    torchrun --standalone --nproc-per-node 2 -m dresfl.experiments.bench.ranks
    torchrun --standalone --nproc-per-node 2 -m dresfl.experiments.bench.ranks --device cuda --backend gloo
    torchrun --standalone --nproc-per-node 1 -m dresfl.experiments.bench.ranks --device cuda --backend nccl

Two ranks on one GPU need gloo, since NCCL wants a GPU for each rank. Rank 0 plays the run alone first, while the others
wait. Then all play it together, the same rounds. Rank 0 prints a JSON line for each setting: medians over the rounds
after the first two, what a rank sends in a round, and whether both runs ended in the same weights. Where other work
loads the cores, two processes get more of them than one: compare the CPU's seconds there, not the clock's.
"""

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from dresfl.api.simulate import check_device
from dresfl.errors import DresError, UsageError
from dresfl.kernels.cpu import keep_freed_memory
from dresfl.kernels.threads import torch_threads
from dresfl.model import weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, Training
from dresfl.runtimes.local import ChannelFederation, LocalFederation, Ranks, no_dropouts
from dresfl.runtimes.local.ranks import join, launched

from . import stages
from .run import machine

SETTINGS = {
    "mnist": stages.Setting(),
    "wide": stages.Setting(layers=(784, 512, 512, 10)),
    "large head": stages.Setting(layers=(25088, 4096, 4096, 10), rows_per_client=8),
}
_LARGE = "large head"  # for GPUs
_WARM = 2  # rounds that are not counted: kernels are compiled, and connections are made
_RATE = 1e-9  # so that random labels hardly move the weights


def measure(setting: stages.Setting, ranks: Ranks, rounds: int) -> dict[str, Any]:
    """A setting's figures, which are rank 0's: medians over `rounds` rounds, in milliseconds."""
    session = setting.session(ranks.device)
    data = stages.synthetic_rows(session, density=0.1)
    everybody, total = no_dropouts(session.num_clients, 1), _WARM + rounds
    alone: dict[str, Any] = {}
    if ranks.leads:
        training = Training(session, Optimizer(learning_rate=_RATE), total)
        alone = _play(LocalFederation(session, training, data, everybody, "coded"))
        gc.collect()
        if ranks.device == "cuda":
            torch.cuda.empty_cache()  # other ranks may be on the same GPU
    alone = ranks.share(alone)
    training = Training(session, Optimizer(learning_rate=_RATE), total)
    together = _play(ChannelFederation(session, training, data, everybody, "coded", ranks))
    moduli, parameters = len(session.field.moduli), session.network.num_parameters
    first, end = ranks.channels(moduli)
    lifting = _lift_seconds(session, ranks, rounds)
    columns = -(-parameters // ranks.size)
    residue = 1 if session.field.dtype == torch.int8 else 4
    return {
        "network": "-".join(map(str, setting.layers)),
        "parameters": parameters,
        "clients": session.num_clients,
        "answers": session.recovery_threshold,
        "batch": session.batch_size,
        "channels": moduli,
        "channels_of_rank_0": end - first,
        "rounds": rounds,
        "one_process_ms": 1e3 * alone["seconds"],
        "ranks_ms": 1e3 * together["seconds"],
        "one_process_cpu_ms": 1e3 * alone["cpu"],
        "slowest_rank_cpu_ms": 1e3 * _largest(together["cpu"]),
        "meet_and_lift_ms": 1e3 * lifting,
        "sent_mb": (ranks.size - 1) * columns * ((end - first) * residue + 8) / 1e6,
        "same_weights": alone["weights"] == together["weights"],
    }


def _play(federation: LocalFederation | ChannelFederation) -> dict[str, Any]:
    """Play a training to its end: the median seconds of a round, those of the CPU, and the weights it ends in.

    Where a federation plays rounds in blocks, each round of a block counts alike.
    """
    training = federation.training
    seconds: list[float] = []
    cpu: list[float] = []
    while not training.done:
        limit = _WARM - training.round_number if training.round_number < _WARM else training.rounds
        before, start = time.process_time(), _now(training.session.device)
        played = federation.run_rounds(limit)
        spent = _now(training.session.device) - start, time.process_time() - before
        seconds += [spent[0] / len(played)] * len(played)
        cpu += [spent[1] / len(played)] * len(played)
        if any(record.outcome != "stepped" for record, _ in played):
            raise DresError(f"a round did not step: {played[-1][0].reason}")
    medians = statistics.median(seconds[_WARM:]), statistics.median(cpu[_WARM:])
    return {"seconds": medians[0], "cpu": medians[1], "weights": weights_sha256(training.weights)}


def _largest(value: float) -> float:
    """The largest of all ranks' values."""
    found = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def _lift_seconds(session: Session, ranks: Ranks, rounds: int) -> float:
    """The median seconds in which ranks bring decoded columns together and lift them."""
    part = session.field.part(*ranks.channels(len(session.field.moduli)))
    residues, seconds = stages.residues(part, session.network.num_parameters), []
    for _ in range(_WARM + rounds):
        start = _now(session.device)
        ranks.lift(session.field, residues)
        seconds.append(_now(session.device) - start)
    return statistics.median(seconds[_WARM:])


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", choices=[*SETTINGS, []], help="which settings; all that fit if none")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--backend", default="", help="gloo or nccl")
    parser.add_argument("--rounds", type=int, default=20, help="rounds that are timed")
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    options = parser.parse_args(arguments)
    if not launched():
        raise UsageError("this is no rank", "start it with torchrun, as --help shows")
    keep_freed_memory()
    chosen = options.settings or [name for name in SETTINGS if options.device == "cuda" or name != _LARGE]
    with torch_threads(options.threads), join(check_device(options.device), options.backend) as ranks:
        common = {**machine(), "torch": torch.__version__, "device": ranks.device, "backend": ranks.backend}
        common |= {"ranks": ranks.size, "threads": options.threads}
        for name in chosen:
            row = measure(SETTINGS[name], ranks, options.rounds)
            rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
            load = round(os.getloadavg()[0], 1)  # of everything on this machine, in the last minute
            if ranks.leads:
                print(json.dumps({"setting": name, **common, "load": load, **rounded}), flush=True)


if __name__ == "__main__":
    main()
