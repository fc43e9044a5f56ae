"""The moments of a round's gradient, held against all batches, one by one; the constants, against torch's own."""

import itertools

import pytest
import torch

from dresfl.coding import CodeParameters
from dresfl.errors import UsageError
from dresfl.experiments.convergence.measure import (
    Problem,
    curvature,
    draw_chances,
    least_squares_constants,
    rounding_variance,
    step_curvature,
)
from dresfl.model import mlp
from dresfl.protocol import Session
from dresfl.runtimes.local.plain_rows import PlainRows
from outcomes import Outcomes

ROWS = (1, 3, 2, 2, 1)  # 9 in all: B = 2 does not divide them, nor does K


def problem(sizes=(3, 2), shards=1, batch_size=2, rows=ROWS, twice=False, **more):
    network = mlp(sizes, input_bits=2, weight_bits=4)
    parameters = CodeParameters(len(rows), shards, 1, batch_size)
    session = Session(network=network, parameters=parameters, client_rows=rows, seed=1, **more)
    generator = torch.Generator().manual_seed(2)
    data = [
        (
            torch.randint(0, 5, (m, sizes[0]), generator=generator, dtype=torch.int32),
            torch.randint(0, 2, (m, sizes[-1]), generator=generator, dtype=torch.int32),
        )
        for m in rows
    ]
    if twice:  # each row stands beside a copy of itself
        data = [(x[: len(x) // 2].repeat_interleave(2, 0), y[: len(y) // 2].repeat_interleave(2, 0)) for x, y in data]
    weights = torch.randint(-20, 20, (network.num_parameters,), generator=generator)
    return Problem(session, PlainRows(session, data)), weights, data


def plain_loss(found, reals, data):
    """The mean loss by torch alone, from real weights (P,)."""
    x = torch.cat([inputs for inputs, _ in data]).double() / 4
    y = torch.cat([targets for _, targets in data]).double()
    for depth, p in enumerate(found.session.network.parameters):
        x = (x if depth == 0 else x.square()) @ reals[p.weight].view(p.fan) + reals[p.bias]
    return (x - y).square().sum(1).mean()


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_the_moments_are_those_of_all_batches(shards, batch_size):
    found, weights, _ = problem(shards=shards, batch_size=batch_size)
    gradients = found.row_gradients(weights)  # (c,K,P)
    outcomes, of_batches, of_shards = Outcomes(found.session), [], []
    for draws in itertools.product(range(sum(ROWS)), repeat=batch_size):
        outcomes.draws = draws
        of_batches.append(found.batch_gradient(gradients, 0))
        batch = found.session.batch_rows(0)
        starts = torch.tensor([0, *(found.session.coded_rows(i) for i in range(4))]).cumsum(0)
        of_shards.append(gradients[starts[batch.dealers] + batch.rows].mean(0))  # (K,P)
    every, mean = torch.stack(of_batches), found.expected_gradient(gradients)
    moments = found.moments(weights, gradients)
    torch.testing.assert_close(every.mean(0), mean)
    assert moments.batch_variance == pytest.approx(float((every - mean).square().sum(1).mean()))
    per_shard = (torch.stack(of_shards) - mean).square().sum(2).mean(0)
    assert moments.shard_variance == pytest.approx(float(per_shard.max()))
    # what the page proves: strata and shards never add variance to that of independent single rows
    assert moments.batch_variance <= moments.row_variance / batch_size * (1 + 1e-12)


@pytest.mark.parametrize("sizes", [(3, 2), (3, 2, 2)])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_gradient_is_that_of_the_mean_loss_over_all_rows(sizes, shards):
    rows = ROWS if len(sizes) == 2 else (*ROWS, 1, 2, 1, 1)
    found, weights, data = problem(sizes, shards, rows=rows)
    reals = (weights.double() / 16).requires_grad_()
    loss = plain_loss(found, reals, data)
    (wanted,) = torch.autograd.grad(loss, reals)
    gradients = found.row_gradients(weights)
    moments = found.moments(weights, gradients)
    torch.testing.assert_close(found.expected_gradient(gradients), wanted)
    assert moments.loss == pytest.approx(float(loss.detach()))
    assert moments.squared_gradient == pytest.approx(float(wanted @ wanted))


def test_as_many_draws_as_rows_have_no_variance():
    found, weights, _ = problem(batch_size=sum(ROWS))
    moments = found.moments(weights, found.row_gradients(weights))
    assert moments.batch_variance < 1e-12 * moments.row_variance


def test_shards_that_hold_the_same_rows_do_not_lower_the_variance():
    """The paper's σ²/K needs shards that are independent. But one draw selects the rows of all shards."""
    found, weights, _ = problem(shards=2, rows=(4, 2, 4, 2, 2), twice=True)
    moments = found.moments(weights, found.row_gradients(weights))
    assert moments.batch_variance == pytest.approx(moments.shard_variance)
    assert moments.batch_variance > 0


def test_chances_add_up():
    chances = draw_chances(problem(shards=2, batch_size=4)[0].session).toarray()
    assert chances.sum(1) == pytest.approx(1)


def test_known_constants_are_those_of_the_hessian():
    found, weights, data = problem(shards=2)
    smoothness, least = least_squares_constants(found)
    hessian = torch.autograd.functional.hessian(lambda w: plain_loss(found, w, data), weights.double() / 16)
    assert smoothness == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]))
    start = weights.double() / 16
    slope = torch.autograd.functional.jacobian(lambda w: plain_loss(found, w, data), start)
    best = start - torch.linalg.pinv(hessian) @ slope  # a quadratic's Newton step ends at a minimum
    assert least == pytest.approx(float(plain_loss(found, best, data)), abs=1e-12)
    assert curvature(found, weights, 200) == pytest.approx(smoothness, rel=1e-6)


def test_a_networks_curvature_is_its_hessians():
    found, weights, data = problem((3, 2, 2), rows=(*ROWS, 1))
    hessian = torch.autograd.functional.hessian(lambda w: plain_loss(found, w, data), weights.double() / 16)
    largest = float(torch.linalg.matrix_norm(hessian, 2))
    assert curvature(found, weights, 300) == pytest.approx(largest, rel=1e-4)
    # along a step: the second-order remainder of the loss
    step = torch.zeros_like(weights)
    step[3] = 1
    losses = [float(plain_loss(found, w.double() / 16, data)) for w in (weights, weights - step)]
    slope = found.expected_gradient(found.row_gradients(weights))
    along = step_curvature(found, weights, weights - step, losses[1] - losses[0], slope)
    assert along == pytest.approx(float(hessian[3, 3]), rel=0.2)


def test_constants_of_a_network_with_squares_are_not_known():
    with pytest.raises(UsageError, match="no quadratic"):
        least_squares_constants(problem((3, 2, 2), rows=(*ROWS, 1))[0])


def test_excluded_dealers_are_refused():
    with pytest.raises(UsageError, match="excluded"):
        problem(excluded=(1,))


def test_rounding_is_bounded_by_a_quarter_of_the_grid_and_by_the_update():
    gradient = torch.linspace(-3, 3, 101, dtype=torch.float64)
    for rate in (1e-4, 0.3, 2.0):
        variance = rounding_variance(gradient, rate, 0.25)
        assert 0 < variance <= min(101 * 0.25**2 / 4, 0.25 * rate * float(gradient.abs().sum()))
