"""Masks hide values that stay within their bounds. Masks that are too small, or values that grow, show rows.

The planner refuses masks that are too small for all values of a run. The guards stop a run before values outgrow them.
"""

import math

import pytest
import torch
from torch import Tensor

from dresfl.errors import Diverged, HeadroomAlarm, UsageError
from dresfl.masking.hidden_masks import mask_sum
from dresfl.protocol.hidden import plan as planning
from dresfl.protocol.hidden.plan import Item, planned_bits
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.local.hidden import HiddenFederation

from ..least_squares import batch_places
from . import weakened
from .cheating import INPUTS, WIDTH, black_and_white, first_weights, recovered, victims
from .parser import reals
from .runs import Seen, federation_of, hidden_session, integers_of, record

# -- small masks ----------------------------------------------------------------------------------------------------


def average_rows(seen: Seen) -> Tensor:
    """The attack: rows of zeros and ones from the average of all that was published of the first layer's outputs.

    The weights hardly move in this run, so they are taken to be W_0.
    """
    session = seen.session
    matrix, bias = first_weights(session)
    total, times = torch.zeros((48, WIDTH), dtype=torch.float64), torch.zeros(48, 1, dtype=torch.float64)
    scale = session.network.input_bits + session.network.weight_bits
    for hop in seen.of(0):
        values, item = hop.unmasked(0), hop.hop.items[0]
        mean = (1 << (item.bits + session.hidden_plan.kappa)) // 2
        places = batch_places(session, torch.tensor([hop.round_number]))[0]
        total.index_add_(0, places, reals(values, scale, mean).view(-1, WIDTH) - bias)
        times.index_add_(0, places, torch.ones(len(places), 1, dtype=torch.float64))
    found = torch.linalg.lstsq(matrix.T, (total / times.clamp_min(1)).T).solution.T
    return found.round().clamp(0, 1)


def small_masks(patch: pytest.MonkeyPatch) -> None:
    """Take the planner's rules away: masks of any size, and no margin."""
    patch.setattr(HiddenSettings, "__post_init__", lambda self: None)
    patch.setattr(planning, "_check_security", lambda plan: None)
    patch.setattr(planning, "MARGIN", 0)
    patch.setattr(
        planning.HiddenPlan,
        "_item",
        lambda self, p: Item(p.name, p.elements.shape[2], p.shift, planned_bits(p.magnitude), p.total, p.alike),
    )


def rows_found(kappa: int) -> int:
    rows, labels = black_and_white()
    fixed = {"rounds": 8, "batch_size": 48, "learning_rate": 1e-5, "kappa": kappa, "num_clients": 6}
    seen = record(federation_of(rows, labels, (INPUTS, WIDTH, 3), **fixed))
    return recovered(average_rows(seen), rows)


def test_masks_that_are_no_larger_than_values(monkeypatch) -> None:
    """Trap 4. What a mask of κ bits more lets through is 2^−κ for each value; a run opens many."""
    assert rows_found(kappa=72) <= 1
    small_masks(monkeypatch)
    assert rows_found(kappa=-2) >= 44  # what is planned is more than four times what most values reach


def test_the_planner_refuses_masks_that_are_too_small_for_a_run() -> None:
    """κ − log2(values opened in the whole run) must be at least 40."""
    sizes, rows = (784, 64, 64, 10), (3000,) * 20
    with pytest.raises(UsageError, match="kappa = 40 is too little"):
        hidden_session(sizes, rows, rounds=20_000, batch_size=64, kappa=40)
    plan = hidden_session(sizes, rows, rounds=20_000, batch_size=64, kappa=72).hidden_plan
    assert plan.kappa - math.log2(plan.values_opened) >= 40


# -- values that grow -----------------------------------------------------------------------------------------------


def true_values(federation: HiddenFederation) -> list[list[int]]:
    """What the next hop hides, item by item: from the seeds of all clients, which nobody has. The masks alone first."""
    session, ledger = federation.session, federation.ledger
    masks = [federation.clients[i]._masks for i in (0, 1)]
    seeds = [masks[1 if number == 0 else 0].seeds[number] for number in session.hidden_families.mask_seeds]
    found = []
    for number, item in enumerate(ledger.current.items):
        if item.shift is None:
            found.append([0] * item.count)
            continue
        bits = session.hidden_plan.mask_bits(item)
        (high,), (low,) = (
            mask_sum(seeds, ledger.label(purpose, number), size, item.count, 1)
            for purpose, size in ((b"high", bits), (b"low", item.shift))
        )
        found.append([(h << item.shift) + x for h, x in zip(high, low, strict=True)])
    return found


def diverge(federation: HiddenFederation) -> tuple[float, float]:
    """Play a run that diverges. By how many bits a value outgrew its plan at most, and how u then correlates with z."""
    session, modulus, worst, best = federation.session, federation.session.field.modulus, -math.inf, 0.0
    while not federation.ledger.ended:
        masks, hop = true_values(federation), federation.ledger.current
        published = federation.collect().published
        for item, values, known in zip(hop.items, integers_of(session, hop, published), masks, strict=True):
            if item.shift is None or item.count == 1:
                continue
            hidden = [(u - r + modulus // 2) % modulus - modulus // 2 for u, r in zip(values, known, strict=True)]
            largest = max(map(abs, hidden))
            worst = max(worst, math.log2(max(1, largest)) - item.bits)
            pair = torch.tensor([[float(u) for u in values], [float(z) for z in hidden]], dtype=torch.float64)
            best = max(best, float(torch.corrcoef(pair)[0, 1].abs())) if largest > 2**item.bits else best
        try:
            federation.publish(published)
        except (Diverged, HeadroomAlarm):
            break
    return worst, best


@pytest.mark.parametrize(("rate", "correlation"), [(1.0, 0.0), (5.0, 0.08)])
@pytest.mark.parametrize("schedule", ["S2", "S4"])
def test_a_run_that_diverges(rate, correlation, schedule, monkeypatch) -> None:
    """Trap 11: everybody is honest, and values outgrow their masks. The guards end the run before the first does."""
    settings = {"rounds": 12, "learning_rate": rate, "schedule": schedule}
    worst, best = diverge(victims(**settings))
    assert worst <= 0
    assert best == 0
    weakened.no_guards(monkeypatch)
    worst, best = diverge(victims(**settings))
    assert worst > 10
    assert best > correlation
