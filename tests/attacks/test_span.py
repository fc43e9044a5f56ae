"""The coordinator finds rows exactly if a batch is no larger than the first layer is wide: by linear algebra alone.

The first layer's gradient is Xᵀ·D: its columns are combinations of the batch's rows. If D has rank B they span
all of them. Two batches that share one row meet in that row and in nothing else. The bias's gradient extends
each row by a constant, which fixes its length.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dresfl.model import mlp
from dresfl.storage.transcript import Transcript

from .least_squares import batch_places
from .runs import digits_rows, first_layer, random_rows, recorded_run


def span(columns: Tensor, tolerance: float = 1e-9) -> Tensor:
    """An orthonormal basis (F+1,rank) of the columns (F+1,·)."""
    scaled = columns / columns.norm(dim=0).clamp_min(1e-300)
    basis, values, _ = torch.linalg.svd(scaled, full_matrices=False)
    return basis[:, values > tolerance * values[0]]


def meeting(one: Tensor, other: Tensor) -> Tensor | None:
    """The direction that two spans have in common; None if there is none, or more than one."""
    left, values, _ = torch.linalg.svd(one.T @ other)
    common = int((values > 1 - 1e-9).sum())
    return one @ left[:, 0] if common == 1 else None


def pairs_that_share(places: Tensor) -> Iterator[tuple[int, int, int]]:
    """Pairs of rounds with exactly one row in common, and that row: places (T,B)."""
    batches = [set(batch) for batch in places.tolist()]
    for i in range(len(batches)):
        for j in range(i):
            shared = batches[i] & batches[j]
            if len(shared) == 1:
                yield i, j, shared.pop()


def rows_from_spans(transcript: Transcript) -> tuple[dict[int, Tensor], set[int]]:
    """The attack: integer rows (F,) by their place, and the places tried, from the coordinator's transcript."""
    session, sums = transcript.session, dict(transcript.sums())
    rounds = torch.tensor(sorted(sums))
    spans = [span(first_layer(transcript, sums[number])) for number in rounds.tolist()]
    rows: dict[int, Tensor] = {}
    tried: set[int] = set()
    for i, j, place in pairs_that_share(batch_places(session, rounds)):
        if place in rows:
            continue
        tried.add(place)
        direction = meeting(spans[i], spans[j])
        if direction is not None and abs(float(direction[-1])) > 1e-9:
            rows[place] = (direction[:-1] / direction[-1] * 2**session.network.input_bits).round()
    return rows, tried


def exactly_right(rows: dict[int, Tensor], true: Tensor) -> int:
    return sum(torch.equal(row.long(), (true[place] * 16).long()) for place, row in rows.items())


@pytest.mark.parametrize(("batch_size", "succeeds"), [(8, True), (14, False)])
def test_two_batches_meet_in_the_row_that_they_share(tmp_path: Path, batch_size: int, succeeds: bool) -> None:
    """The control is a batch that is larger than the first layer's width of 12."""
    true, labels = random_rows(60, 30, 3, seed=1)
    network = mlp((30, 12, 3), input_bits=4, weight_bits=10)
    settings = {"party": "coordinator", "rounds": 24, "batch_size": batch_size}
    rows, tried = rows_from_spans(recorded_run(tmp_path, network, true, labels, **settings))
    assert len(tried) > 5
    assert exactly_right(rows, true) == (len(tried) if succeeds else 0)


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits(tmp_path: Path, report) -> None:
    true, labels = digits_rows(1437)
    network = mlp((64, 32, 32, 10), input_bits=4, weight_bits=10)
    settings = {"party": "coordinator", "rounds": 400, "num_clients": 20}
    rows, tried = rows_from_spans(recorded_run(tmp_path / "16", network, true, labels, batch_size=16, **settings))
    control, _ = rows_from_spans(recorded_run(tmp_path / "64", network, true, labels, batch_size=64, **settings))
    report(
        setting="digits, 20 clients, 1,437 rows, width 32, batch 16, 400 rounds",
        found=exactly_right(rows, true) / len(true),
        rows=f"{exactly_right(rows, true)} of {len(tried)} tried",
        control="batch 64, twice the width",
        control_found=exactly_right(control, true) / len(true),
    )
    assert exactly_right(rows, true) >= 0.9 * len(tried)
    assert exactly_right(control, true) == 0
