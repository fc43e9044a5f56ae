"""Linear algebra and lattices on what a hidden run publishes: they find no row. Without masks they find them all.

In the open mode the gradient of the first layer shows the span of a batch, and two batches that share one row meet in
it (test_span.py). Lattices do the same for batches that are larger than the layer is wide (test_lattice.py). A hidden
run publishes the step of the weights under a mask. Here the attackers read it as if there were none.
"""

import pytest
import torch
from torch import Tensor

from ..least_squares import batch_places
from ..runs import digits_rows, random_rows
from ..test_lattice import orthogonal, short_kernel
from ..test_span import exactly_right, meeting, pairs_that_share, span
from .runs import Seen, federation_of, record, without_masks

Gradient = list[list[int]]  # (F+1,H): inputs, then bias


def first_gradients(seen: Seen, *, known: bool = True) -> list[Gradient]:
    """The first layer's gradient of every round as integers, read as if masks were zero.

    known: with the masks taken away that the client knows; else what the coordinator has alone.
    """
    session, plan = seen.session, seen.session.hidden_plan
    p, found = session.network.parameters[0], []
    size = p.bias.stop
    weights = before = plan.initial_weights(session.stream).tolist()[:size]
    for number, hop in enumerate(seen.of(-1)):
        step, values = plan.steps(number)[0], hop.unmasked(0) if known else hop.values[0]
        flat = [
            (step.keep * w + step.recall * v - u) // step.multiplier
            for w, v, u in zip(weights, before, values, strict=True)
        ]
        found.append([flat[i : i + p.fan[1]] for i in range(0, size, p.fan[1])])
        before, weights = weights, [(u + (1 << (step.shift - 1))) >> step.shift for u in values]
    return found


def rows_from_spans(seen: Seen, gradients: list[Gradient]) -> tuple[dict[int, Tensor], set[int]]:
    """Integer rows by their place, and the places tried."""
    rounds = torch.arange(len(gradients))
    spans = [span(torch.tensor([[float(v) for v in line] for line in g], dtype=torch.float64)) for g in gradients]
    rows: dict[int, Tensor] = {}
    tried: set[int] = set()
    for i, j, place in pairs_that_share(batch_places(seen.session, rounds)):
        if place in rows:
            continue
        tried.add(place)
        direction = meeting(spans[i], spans[j])
        if direction is not None and abs(float(direction[-1])) > 1e-9:
            rows[place] = (direction[:-1] / direction[-1] * 2**seen.session.network.input_bits).round()
    return rows, tried


def seen_of(true: Tensor, labels: Tensor, sizes: tuple[int, ...], *, masks: bool, **settings: object) -> Seen:
    with pytest.MonkeyPatch.context() as patch:
        if not masks:
            without_masks(patch)
        return record(federation_of(true, labels, sizes, **settings))


def test_spans_of_small_batches() -> None:
    """Trap 5."""
    true, labels = random_rows(60, 30, 3, seed=1)
    settings = {"rounds": 14, "batch_size": 8, "num_clients": 5, "honest_clients": True}
    bare = seen_of(true, labels, (30, 12, 3), masks=False, **settings)
    rows, tried = rows_from_spans(bare, first_gradients(bare))
    assert len(tried) > 5
    assert exactly_right(rows, true) == len(tried)
    hidden = seen_of(true, labels, (30, 12, 3), masks=True, **settings)
    for known in (True, False):
        rows, _ = rows_from_spans(hidden, first_gradients(hidden, known=known))
        assert exactly_right(rows, true) == 0


def spans_found(seen: Seen, true: Tensor, rounds: int) -> int:
    """The lattice attack: in how many rounds the short kernel is orthogonal to every row of the batch."""
    bits, good = seen.session.network.input_bits, 0
    for number, gradient in enumerate(first_gradients(seen)[:rounds]):
        drawn = sorted(set(batch_places(seen.session, torch.tensor([number]))[0].tolist()))
        kernel = short_kernel(gradient, seen.session.network.input_size + 1 - len(drawn))
        good += bool(kernel) and orthogonal(kernel, true[drawn], bits)
    return good


def test_lattices_of_batches_of_twice_the_width() -> None:
    true, labels = random_rows(60, 20, 3, seed=2)
    settings = {"rounds": 4, "batch_size": 12, "num_clients": 5, "honest_clients": True}
    assert spans_found(seen_of(true, labels, (20, 6, 3), masks=False, **settings), true, 4) == 4
    assert spans_found(seen_of(true, labels, (20, 6, 3), masks=True, **settings), true, 4) == 0


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits_spans(report) -> None:
    true, labels = digits_rows(1437)
    settings = {"rounds": 80, "batch_size": 16}
    bare = seen_of(true, labels, (64, 32, 10), masks=False, **settings)
    hidden = seen_of(true, labels, (64, 32, 10), masks=True, **settings)
    control, tried = rows_from_spans(bare, first_gradients(bare))
    rows, _ = rows_from_spans(hidden, first_gradients(hidden))
    report(
        setting="spans: digits, 6 clients, 1,437 rows, width 32, batch 16, 80 rounds of the real protocol",
        found=exactly_right(rows, true) / len(tried),
        rows=f"{exactly_right(rows, true)} of {len(tried)} tried",
        control="masks set to zero",
        control_found=exactly_right(control, true) / len(tried),
    )
    assert exactly_right(control, true) >= 0.9 * len(tried) > 100
    assert exactly_right(rows, true) == 0


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits_lattices(report) -> None:
    true, labels = digits_rows(1437)
    settings = {"rounds": 4, "batch_size": 32}
    control = spans_found(seen_of(true, labels, (64, 16, 10), masks=False, **settings), true, 4)
    hidden = spans_found(seen_of(true, labels, (64, 16, 10), masks=True, **settings), true, 4)
    report(
        setting="lattices: digits, width 16, batch 32, 4 rounds: the whole span of a batch",
        found=hidden / 4,
        rows=f"{hidden} of 4 batches",
        control="masks set to zero",
        control_found=control / 4,
    )
    assert (hidden, control) == (0, 4)
