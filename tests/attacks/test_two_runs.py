"""The coordinator begins a second run on the same shares, and sees each batch once more, for other weights.

A client answers each batch for one set of weights in a run. But the coordinator decides when a run begins and how it
steps. In a second run of the same agreement the batches are the same and the weights are not. So two gradients
together span batches of twice the width.
"""

from pathlib import Path

import pytest
import torch

from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.storage.transcript import Transcript

from .least_squares import batch_places
from .runs import digits_rows, first_layer, random_rows, recorded_run
from .test_span import exactly_right, meeting, pairs_that_share, span


def rows_from_runs(transcripts: list[Transcript]) -> dict[int, torch.Tensor]:
    """The attack: integer rows by their place from the coordinator's transcripts of several runs on one sharing."""
    session = transcripts[0].session
    sums = [dict(transcript.sums()) for transcript in transcripts]
    rounds = sorted(set.intersection(*(set(run) for run in sums)))[1:]  # round 0 has the same weights in all runs
    spans = [
        span(torch.cat([first_layer(seen, run[n]) for seen, run in zip(transcripts, sums, strict=True)], 1))
        for n in rounds
    ]
    rows = {}
    for i, j, place in pairs_that_share(batch_places(session, torch.tensor(rounds))):
        direction = meeting(spans[i], spans[j])
        if direction is not None and abs(float(direction[-1])) > 1e-9:
            rows[place] = (direction[:-1] / direction[-1] * 2**session.network.input_bits).round()
    return rows


def test_a_second_run_gives_rows_that_one_run_hides(tmp_path: Path) -> None:
    """Batch 14, width 8. The control is each run alone."""
    true, labels = random_rows(90, 40, 3, seed=4)
    network = mlp((40, 8, 3), input_bits=4, weight_bits=10)
    settings = {"party": "coordinator", "rounds": 16, "batch_size": 14}
    runs = [
        recorded_run(tmp_path / str(rate), network, true, labels, optimizer=Optimizer("sgd", rate), **settings)
        for rate in (0.1, 0.03)
    ]
    assert runs[0].session.sharing_id == runs[1].session.sharing_id
    together = rows_from_runs(runs)
    assert len(together) > 10
    assert exactly_right(together, true) == len(together)
    assert [exactly_right(rows_from_runs([run]), true) for run in runs] == [0, 0]


@pytest.mark.attack
def test_digits(tmp_path: Path, report) -> None:
    true, labels = digits_rows(1437)
    network = mlp((64, 16, 16, 10), input_bits=4, weight_bits=10)
    settings = {"party": "coordinator", "rounds": 400, "batch_size": 24, "num_clients": 20}
    runs = [
        recorded_run(tmp_path / str(rate), network, true, labels, optimizer=Optimizer("sgd", rate), **settings)
        for rate in (0.1, 0.03)
    ]
    together, alone = rows_from_runs(runs), rows_from_runs(runs[:1])
    report(
        setting="digits, width 16, batch 24, two runs of 400 rounds on one sharing",
        found=exactly_right(together, true) / len(true),
        rows=f"{exactly_right(together, true)} of {len(together)} tried",
        control="one of the runs alone",
        control_found=exactly_right(alone, true) / len(true),
    )
    assert exactly_right(together, true) >= 0.9 * len(together) > 500
    assert exactly_right(alone, true) == 0
