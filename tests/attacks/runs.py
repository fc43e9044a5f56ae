"""Recorded runs to attack, and what an attacker may read off them."""

from pathlib import Path

import torch
from torch import Tensor

from dresfl.api.simulate import simulate
from dresfl.data import load
from dresfl.field import unpacked
from dresfl.model import Network
from dresfl.optimizers import Optimizer
from dresfl.storage.transcript import Transcript

OPTIMIZER = Optimizer("momentum", 0.03, "constant")


def random_rows(count: int, inputs: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows (count,inputs) of sixteenths in 0..1, and labels."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 17, (count, inputs), generator=generator) / 16
    return rows, torch.randint(0, classes, (count,), generator=generator)


def digits_rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Some rows of digits (count,64) in 0..1, and labels."""
    train = load("digits", None).train
    chosen = torch.randperm(train.num_rows, generator=torch.Generator().manual_seed(seed))[:count]
    return torch.from_numpy(train.inputs).flatten(1)[chosen], torch.from_numpy(train.labels)[chosen]


def recorded_run(
    folder: Path,
    network: Network,
    rows: Tensor,
    labels: Tensor,
    *,
    party: str,
    rounds: int,
    batch_size: int,
    num_clients: int = 6,
    optimizer: Optimizer = OPTIMIZER,
) -> Transcript:
    """A simulated run over rows that are spread evenly, in their order; what one participant saw of it."""
    clients = [(rows[part], labels[part]) for part in torch.arange(len(rows)).chunk(num_clients)]
    simulate(
        network,
        clients,
        rounds=rounds,
        optimizer=optimizer,
        batch_size=batch_size,
        threads=1,
        record=folder,
        recorded=[party],
    )
    return Transcript(folder / "transcript" / f"{party}.transcript")


def exact_sums(transcript: Transcript) -> dict[int, list[int]]:
    """The summed gradient of each round as Python integers, from the answers that the coordinator saw."""
    session, sums = transcript.session, {}
    for number, answers in transcript.answers():
        survivors = sorted(answers)[: session.recovery_threshold]
        residues = torch.stack([unpacked(answers[j].residues) for j in survivors], 1)  # (M,R,P)
        sums[number] = session.field.lift_exact(session.code.decode_sum(residues, survivors))
    return sums


def first_layer(transcript: Transcript, total: list[int] | Tensor) -> list[list[int]] | Tensor:
    """The first layer's part of a sum, inputs and then bias: (F+1,H). Its columns combine the rows (x, 2^l)."""
    p = transcript.session.network.parameters[0]
    whole = total[p.weight.start : p.bias.stop]
    if isinstance(whole, Tensor):
        return whole.view(p.fan[0] + 1, p.fan[1])
    return [whole[i : i + p.fan[1]] for i in range(0, len(whole), p.fan[1])]
