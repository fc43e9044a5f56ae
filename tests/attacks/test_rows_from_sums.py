"""The coordinator computes rows from the decoded sums of all rounds, even if somebody rounds them to 8 bits.

It follows the protocol. Each round it decodes the exact gradient of a batch that it knows. One gradient of many rows
may not determine them, but the gradients of all rounds do. Rounding the sums before the coordinator sees
them was thought of as a remedy. It does not help: the errors average out like any other noise.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dresfl.model import Network, mlp
from dresfl.quantize import gradient_reals
from dresfl.storage.transcript import Transcript

from .least_squares import Prior, batch_places, error, found, rows_from_gradients
from .runs import random_rows, recorded_run
from .test_rows_from_weights import digits_run, public_digits


def rounded(network: Network, gradients: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Gradients (T,P) with `bits` bits for each value, sign included; and the errors' standard deviation (T,P).

    Each round and each layer has a unit of its own, which its largest value decides.
    """
    unit = torch.empty_like(gradients)
    for p in network.parameters:
        for place in (p.weight, p.bias):
            unit[:, place] = gradients[:, place].abs().amax(1, keepdim=True) / 2 ** (bits - 1)
    return (gradients / unit).round() * unit, unit / 12**0.5


def rows_from_sums(
    transcript: Transcript,
    targets: Tensor | None,
    prior: Prior,
    *,
    bits: int = 8,
    wrong_batches: bool = False,
    epochs: int,
    learning_rate: float,
    together: int = 20,
) -> Tensor:
    """The attack: rows (m,F) of all clients from the coordinator's transcript, its sums rounded to some bits."""
    session, seen = transcript.session, transcript.weights()
    network, per_round = session.network, session.batch_size * session.num_shards
    sums = dict(transcript.sums())
    rounds = torch.tensor(sorted(sums))
    exact = torch.stack([gradient_reals(sums[n], network.gradient_scales, per_round) for n in rounds.tolist()])
    weights = torch.stack([seen[n] / network.weight_scales for n in rounds.tolist()])
    gradients, noise = rounded(network, exact, bits)
    places = batch_places(session, rounds + 2**20 if wrong_batches else rounds)
    data = weights.float(), gradients.float(), noise.float(), places, targets, prior
    return rows_from_gradients(network, *data, epochs=epochs, learning_rate=learning_rate, together=together)[0]


def test_rounded_sums_give_rows(tmp_path: Path) -> None:
    true, labels = random_rows(42, 12, 3, seed=5)
    network = mlp((12, 5, 3), input_bits=4, weight_bits=10)
    transcript = recorded_run(tmp_path, network, true, labels, party="coordinator", rounds=200, batch_size=6)
    prior, targets = Prior(torch.full_like(true, 0.5), torch.full_like(true, 0.3)), torch.eye(3)[labels]
    settings = {"epochs": 30, "learning_rate": 0.015, "together": 5}
    rows = rows_from_sums(transcript, targets, prior, **settings)
    control = rows_from_sums(transcript, targets, prior, wrong_batches=True, **settings)
    assert found(rows, true) >= 0.7
    assert found(control, true) <= 0.2


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits_preset(tmp_path: Path, report) -> None:
    transcript, _, true, targets = digits_run(tmp_path, "coordinator")
    prior = Prior.of_classes(*public_digits(), targets.argmax(1))
    settings = {"epochs": 500, "learning_rate": 0.006, "together": 10}
    rows = rows_from_sums(transcript, targets, prior, **settings)
    control = rows_from_sums(transcript, targets, prior, wrong_batches=True, epochs=60, learning_rate=0.006)
    exact = (torch.equal(*pair) for pair in zip((rows * 16).round(), (true * 16).round(), strict=True))
    report(
        setting="digits, the preset as it is, sums rounded to 8 bits; labels known",
        found=found(rows, true),
        exact=sum(exact) / len(true),
        error=error(rows, true),
        prior_found=found(prior.mean, true),
        control="wrong batches",
        control_found=found(control, true),
    )
    assert found(rows, true) >= 0.9
    assert found(control, true) <= 0.02
