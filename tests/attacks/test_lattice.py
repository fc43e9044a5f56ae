"""The coordinator finds the span of a batch that is larger than the first layer is wide: by a lattice.

The gradient G = Xᵀ·D has fewer columns than the batch has rows, so its columns span too little. But it is known as
exact integers. All integer vectors u with uᵀ·G = 0 form a lattice. Those with uᵀ·Xᵀ = 0 are in it, and they are short,
since rows are small integers, while D is huge and every other u must be long. LLL finds the short ones. What is
orthogonal to them is the span of the rows. Batches that share a row then meet in it, as in test_span.py.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dresfl.model import mlp
from dresfl.storage.transcript import Transcript

from .least_squares import batch_places
from .runs import digits_rows, exact_sums, first_layer, random_rows, recorded_run

flint = pytest.importorskip("flint")

Kernel = list[list[int]]


def short_kernel(gradient: list[list[int]], count: int) -> Kernel:
    """The `count` shortest integer vectors (count,F+1) that LLL finds with uᵀ·G = 0, for G (F+1,H)."""
    size = len(gradient)
    weight = 2**40  # so large that a reduced vector is zero on the right wherever it can be
    table = [[int(i == j) for j in range(size)] + [weight * value for value in line] for i, line in enumerate(gradient)]
    reduced = [[int(value) for value in line] for line in flint.fmpz_mat(table).lll().tolist()]
    kernel = [line[:size] for line in reduced if not any(line[size:])]
    return sorted(kernel, key=lambda line: sum(value * value for value in line))[: max(0, count)]


def kernel_of_round(transcript: Transcript, number: int, total: list[int]) -> Kernel:
    """The attack on one round: integer vectors that are orthogonal to every row (x, 2^l) of its batch."""
    drawn = set(batch_places(transcript.session, torch.tensor([number]))[0].tolist())
    return short_kernel(first_layer(transcript, total), transcript.session.network.input_size + 1 - len(drawn))


def meeting_of(kernels: list[Kernel], input_bits: int) -> Tensor | None:
    """The integer row (F,) that several rounds have in common; None if they have more or less than one."""
    vectors = torch.tensor([[float(v) for v in line] for kernel in kernels for line in kernel], dtype=torch.float64)
    _, values, directions = torch.linalg.svd(vectors / vectors.norm(dim=1, keepdim=True))
    if len(values) < directions.shape[0] or values[-2] < 1e-6 or values[-1] > 1e-9 or abs(directions[-1, -1]) < 1e-9:
        return None
    return (directions[-1, :-1] / directions[-1, -1] * 2**input_bits).round()


def orthogonal(kernel: Kernel, rows: Tensor, input_bits: int) -> bool:
    """Whether a kernel, as large as it can be, is orthogonal to every true row (B,F) of a batch."""
    extended = [[*line, 2**input_bits] for line in (rows * 2**input_bits).long().tolist()]
    rank = int(flint.fmpz_mat(extended).rank())
    products = [sum(u * x for u, x in zip(line, row, strict=True)) for line in kernel for row in extended]
    return not any(products) and len(kernel) >= len(extended[0]) - max(rank, len(extended))


def found_span(transcript: Transcript, true: Tensor, number: int, total: list[int]) -> bool:
    drawn = sorted(set(batch_places(transcript.session, torch.tensor([number]))[0].tolist()))
    kernel = kernel_of_round(transcript, number, total)
    return bool(kernel) and orthogonal(kernel, true[drawn], transcript.session.network.input_bits)


def row_of_all_rounds(transcript: Transcript, sums: dict[int, list[int]], place: int, most: int) -> Tensor | None:
    """One row from the rounds that use it, up to `most` of them."""
    rounds = [n for n in sorted(sums) if place in batch_places(transcript.session, torch.tensor([n]))[0].tolist()]
    kernels = [kernel_of_round(transcript, number, sums[number]) for number in rounds[:most]]
    return meeting_of(kernels, transcript.session.network.input_bits) if kernels else None


def only_floats(total: list[int]) -> list[int]:
    """The control: sums that are known to 53 bits only."""
    return [int(float(value)) for value in total]


def test_the_span_of_a_batch_of_three_times_the_width(tmp_path: Path) -> None:
    true, labels = random_rows(60, 20, 3, seed=2)
    network = mlp((20, 4, 3), input_bits=4, weight_bits=10)
    settings = {"party": "coordinator", "rounds": 40, "batch_size": 12}
    transcript = recorded_run(tmp_path, network, true, labels, **settings)
    sums = exact_sums(transcript)
    assert all(found_span(transcript, true, number, sums[number]) for number in range(4))
    assert not any(found_span(transcript, true, number, only_floats(sums[number])) for number in range(4))
    place = int(batch_places(transcript.session, torch.tensor([0]))[0, 0])
    row = row_of_all_rounds(transcript, sums, place, most=8)
    assert row is not None
    assert torch.equal(row, true[place].double() * 16)


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits(tmp_path: Path, report) -> None:
    true, labels = digits_rows(1437)
    network = mlp((64, 16, 16, 10), input_bits=4, weight_bits=10)
    settings = {"party": "coordinator", "rounds": 20, "num_clients": 20}
    transcript = recorded_run(tmp_path, network, true, labels, batch_size=48, **settings)
    sums = exact_sums(transcript)
    spans = [found_span(transcript, true, number, total) for number, total in sums.items()]
    control = [found_span(transcript, true, number, only_floats(total)) for number, total in sums.items()]
    report(
        setting="digits, width 16, batch 48: the whole span of a batch",
        found=sum(spans) / len(spans),
        rows=f"{sum(spans)} of {len(spans)} batches",
        control="sums known to 53 bits only",
        control_found=sum(control) / len(control),
    )
    assert all(spans)
    assert not any(control)
