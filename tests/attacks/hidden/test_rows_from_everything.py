"""The coordinator and one client compute rows from all that they see in a hidden run: they find what they knew before.

The attacks are those that find nearly all rows in the open mode: from the weights of all rounds, from the sums of all
rounds. A third one is new: from the first layer's outputs, which a hidden run opens under masks. The attackers subtract
all masks that the client knows. The control is the same run with its masks set to zero, read by the same parser.
"""

import pytest
import torch
from torch import Tensor

from dresfl.protocol.hidden.plan import HiddenPlan

from ..least_squares import Prior, batch_places, error, found, rows_from_gradients, sample
from ..runs import digits_rows, random_rows
from ..test_rows_from_sums import rounded
from ..test_rows_from_weights import public_digits, shown_digits
from .parser import Views, read_gradients, read_outputs, rows_from_outputs
from .runs import Seen, federation_of, record, without_masks


def rows_from_weights(seen: Seen, targets: Tensor, prior: Prior, view: str = "published", **settings: float) -> Tensor:
    """Rows (m,F) from the weights of all rounds, as one client reads them."""
    weights, gradients, noise = read_gradients(seen, sums=False, view=view)
    return fitted(seen, weights, gradients, noise, targets, prior, **settings)


def rows_from_sums(seen: Seen, targets: Tensor, prior: Prior, view: str = "published", **settings: float) -> Tensor:
    """Rows (m,F) from the published sums of all rounds, rounded to 8 bits."""
    weights, gradients, _ = read_gradients(seen, sums=True, view=view)
    return fitted(seen, weights, *rounded(seen.session.network, gradients, 8), targets, prior, **settings)


def fitted(
    seen: Seen, weights: Tensor, gradients: Tensor, noise: Tensor, targets: Tensor, prior: Prior, **settings: float
) -> Tensor:
    places = batch_places(seen.session, torch.arange(len(weights)))
    data = weights.float(), gradients.float(), noise.float().clamp_min(1e-3), places, targets, prior
    rows = rows_from_gradients(seen.session.network, *data, **settings)[0]  # type: ignore[arg-type]
    assert rows.isfinite().all()  # an attack that fails for its arithmetic shows nothing
    return rows


def rows_from_first_layer(seen: Seen, prior: Prior) -> Tensor:
    """Rows (m,F) from the first layer's outputs of all rounds."""
    network, (weights, _, _) = seen.session.network, read_gradients(seen, sums=False)
    p = network.parameters[0]
    first = weights[:, p.weight.start : p.bias.stop].reshape(len(weights), p.fan[0] + 1, p.fan[1])
    places = batch_places(seen.session, torch.arange(len(weights)))
    return rows_from_outputs(first, read_outputs(seen), places, prior.mean.double(), prior.spread.double())


def pair_of_runs(rows: Tensor, labels: Tensor, sizes: tuple[int, ...], **settings: object) -> tuple[Seen, Seen]:
    """What is seen of a run, and of the same run with its masks set to zero."""
    hidden = record(federation_of(rows, labels, sizes, **settings))
    with pytest.MonkeyPatch.context() as patch:
        without_masks(patch)
        return hidden, record(federation_of(rows, labels, sizes, **settings))


# -- short ------------------------------------------------------------------------------------------------------------

SHORT = {"epochs": 80, "learning_rate": 0.02, "together": 6}
SHORTER = {**SHORT, "epochs": 20}


@pytest.fixture(scope="module")
def small() -> tuple[Tensor, Tensor, Prior, Seen, Seen]:
    true, labels = random_rows(30, 10, 3, seed=5)
    settings = {"rounds": 48, "batch_size": 6, "num_clients": 5, "honest_clients": True}
    prior = Prior(torch.full_like(true, 0.5), torch.full_like(true, 0.3))
    return true, torch.eye(3)[labels], prior, *pair_of_runs(true, labels, (10, 8, 3), **settings)


def test_the_weights_of_all_rounds(small) -> None:
    true, targets, prior, hidden, bare = small
    assert found(rows_from_weights(bare, targets, prior, **SHORT), true) >= 0.9
    for view in Views:
        assert found(rows_from_weights(hidden, targets, prior, view, **SHORTER), true) <= 0.2


def test_the_sums_of_all_rounds(small) -> None:
    true, targets, prior, hidden, bare = small
    assert found(rows_from_sums(bare, targets, prior, **SHORT), true) >= 0.9
    for view in Views[:2]:
        assert found(rows_from_sums(hidden, targets, prior, view, **SHORTER), true) <= 0.2


def test_the_first_layers_outputs(small) -> None:
    true, _, prior, hidden, bare = small
    assert found(rows_from_first_layer(bare, prior), true) == 1.0
    assert found(rows_from_first_layer(hidden, prior), true) <= 0.2


def test_nothing_is_in_the_clear_but_quotients_and_the_end(small) -> None:
    """All that a run publishes without a mask: one small integer for each guard and round, and the final weights."""
    _, _, _, hidden, _ = small
    plan: HiddenPlan = hidden.session.hidden_plan
    largest: dict[
        str, tuple[int, int]
    ] = {}  # of each item opened under a mask, in all rounds: value, middle of the masks
    for hop in hidden.hops:
        for item, values in zip(hop.hop.items, hop.values, strict=True):
            if item.shift is None and hop.round_number < plan.rounds:
                assert item.name.endswith(" quotient")
                assert len(values) == 1
                assert abs(values[0]) < 2**10
            elif item.shift is not None:
                before, _ = largest.get(item.name, (0, 0))
                largest[item.name] = max(before, *values), 1 << (item.bits + plan.kappa - 1)
    for name, (value, middle) in largest.items():
        assert value > middle, name  # the masks are there: one of 48 or more is in the upper half, but for 2^-48


# -- full -------------------------------------------------------------------------------------------------------------

FULL = {"epochs": 300, "learning_rate": 0.008, "together": 20}
BRIEF = {"epochs": 40, "learning_rate": 0.008, "together": 20}
SETTING = "digits, 6 clients, 1,437 rows, 64-32-10, 300 rounds of the real protocol; labels known"


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor, Prior, Seen, Seen]:
    true, labels = digits_rows(1437)
    runs = pair_of_runs(true, labels, (64, 32, 10), rounds=300, batch_size=64)
    return true, torch.eye(10)[labels], Prior.of_classes(*public_digits(), labels), *runs


def compare(report, attack: str, true: Tensor, prior: Prior, hidden: dict[str, Tensor], bare: Tensor) -> None:
    """Report the best of all views of the hidden run, and the control; assert what must come of it."""
    views = {view: found(rows, true) for view, rows in hidden.items()}
    best = max(views, key=lambda view: views[view])
    report(
        setting=f"{attack}: {SETTING}",
        found=views[best],
        error=error(hidden[best], true),
        prior_found=found(prior.mean, true),
        prior_error=error(prior.mean, true),
        control="masks set to zero",
        control_found=found(bare, true),
        control_error=error(bare, true),
        views=views,
        sample=sample(shown_digits(), hidden[best], true),
        control_sample=sample(shown_digits(), bare, true),
    )
    assert found(bare, true) >= 0.9
    assert max(views.values()) <= found(prior.mean, true) + 0.01


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits_weights(digits, report) -> None:
    true, targets, prior, hidden, bare = digits
    views = {view: FULL if view == "published" else BRIEF for view in Views}
    rows = {view: rows_from_weights(hidden, targets, prior, view, **settings) for view, settings in views.items()}
    compare(report, "weights", true, prior, rows, rows_from_weights(bare, targets, prior, **FULL))


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits_sums(digits, report) -> None:
    true, targets, prior, hidden, bare = digits
    views = {"published": FULL, "differences": BRIEF}
    rows = {view: rows_from_sums(hidden, targets, prior, view, **settings) for view, settings in views.items()}
    compare(report, "sums", true, prior, rows, rows_from_sums(bare, targets, prior, **FULL))


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits_outputs(digits, report) -> None:
    true, _, prior, hidden, bare = digits
    rows = {"published": rows_from_first_layer(hidden, prior)}
    compare(report, "first layer's outputs", true, prior, rows, rows_from_first_layer(bare, prior))
