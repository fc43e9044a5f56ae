"""The coordinator finds all rows exactly if there are no more of them than inputs, whatever the batch and the width.

Each round's gradient lies in the span of its batch. For each row r, the rounds that do not use r span all other rows.
What is orthogonal to those, within the span of all rounds, is the dual vector of r. The rows are dual to these vectors
in turn. The bias's gradient extends each row by a constant, which fixes its length.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dresfl.model import mlp
from dresfl.storage.transcript import Transcript

from .least_squares import batch_places
from .runs import digits_rows, first_layer, random_rows, recorded_run
from .test_span import span


def all_rows(transcript: Transcript) -> Tensor | None:
    """The attack: integer rows (m,F) of all clients from the coordinator's transcript; None if it sees too little."""
    session, sums = transcript.session, dict(transcript.sums())
    rounds, count = sorted(sums), sum(session.client_rows)
    places = batch_places(session, torch.tensor(rounds)).tolist()
    gradients = [first_layer(transcript, sums[number]) for number in rounds]
    gradients = [gradient / gradient.abs().max() for gradient in gradients]
    basis = span(torch.cat(gradients, 1))  # (F+1,m)
    if basis.shape[1] != count:
        return None
    duals = []
    for row in range(count):
        without = [basis.T @ g for g, used in zip(gradients, places, strict=True) if row not in used]
        left = torch.linalg.svd(torch.cat(without, 1)).U if without else None
        if left is None or len(left) != count:
            return None
        duals.append(left[:, -1])
    directions = basis @ torch.linalg.inv(torch.stack(duals))  # (F+1,m)
    return (directions[:-1] / directions[-1] * 2**session.network.input_bits).round().T


def right(rows: Tensor | None, true: Tensor) -> int:
    return 0 if rows is None else int((rows == true.double() * 16).all(1).sum())


@pytest.mark.parametrize(("count", "succeeds"), [(18, True), (36, False)])
def test_all_rows_of_a_small_data_set(tmp_path: Path, count: int, succeeds: bool) -> None:
    """Batch 12, width 4. The control has more rows than inputs."""
    true, labels = random_rows(count, 24, 3, seed=3)
    network = mlp((24, 4, 3), input_bits=4, weight_bits=10)
    rows = all_rows(
        recorded_run(tmp_path, network, true, labels, party="coordinator", rounds=40, batch_size=6 if succeeds else 12)
    )
    assert right(rows, true) == (count if succeeds else 0)


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits(tmp_path: Path, report) -> None:
    network = mlp((64, 16, 10), input_bits=4, weight_bits=10)
    settings = {"party": "coordinator", "rounds": 120, "batch_size": 24}
    true, labels = digits_rows(48)
    rows = all_rows(recorded_run(tmp_path / "48", network, true, labels, **settings))
    more, more_labels = digits_rows(96)
    control = all_rows(recorded_run(tmp_path / "96", network, more, more_labels, **settings))
    report(
        setting="digits, 48 rows in all, width 16, batch 24, 120 rounds",
        found=right(rows, true) / 48,
        control="96 rows, more than inputs",
        control_found=right(control, more) / 96,
    )
    assert right(rows, true) >= 0.9 * 48
    assert right(control, more) == 0
