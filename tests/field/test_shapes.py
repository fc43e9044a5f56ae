"""Shapes alone, and integers of any size, against the arithmetic of reals."""

import pytest
import torch

from dresfl.field import Integers, Outline, PublicMatrix, Reals, Shapes
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool

NETWORK = Network((Conv2d(2, 3, 1, 1), Square(), SumPool(2), Quadratic(), Flatten(), Dense(3)), (6, 4, 2), 3, 6)


def test_shapes_are_those_of_reals():
    weights, left, right = (torch.ones(s, dtype=torch.float64) for s in ((3, 2), (2, 2, 4, 3), (2, 1, 3, 5)))
    reals, shapes = Reals(), Shapes()
    a, b = Outline(tuple(left.shape)), Outline(tuple(right.shape))
    assert shapes.matmul(a, b).shape == tuple(reals.matmul(left, right).shape)
    assert shapes.sum(a, 2).shape == tuple(reals.sum(left, 2).shape)
    assert shapes.concat([a, a], 1).shape == tuple(reals.concat([left, left], 1).shape)
    index = torch.tensor([[0, -1], [2, 1]])
    assert shapes.take(a, index).shape == tuple(reals.take(left, index).shape)
    assert shapes.matmul_public(a, PublicMatrix(Outline((3, 2)))).shape == tuple(
        reals.matmul_public(left, reals.public(weights)).shape
    )
    assert a[:, :1, 1:].reshape(2, -1).shape == tuple(left[:, :1, 1:].reshape(2, -1).shape)


def test_shapes_that_do_not_fit_are_refused():
    shapes = Shapes()
    with pytest.raises(ValueError, match="cannot be multiplied"):
        shapes.matmul(Outline((1, 2, 3)), Outline((1, 2, 3)))
    with pytest.raises(ValueError, match="do not fit"):
        shapes.add(Outline((1, 2)), Outline((1, 3)))
    with pytest.raises(ValueError, match="different axes"):
        shapes.mul(Outline((1, 2)), Outline((2,)))
    with pytest.raises(ValueError, match="cannot become"):
        Outline((2, 3)).reshape(4, -1)


def test_integers_compute_a_networks_gradient_as_reals_do():
    generator = torch.Generator().manual_seed(1)
    weights = torch.randint(-40, 40, (NETWORK.num_parameters,), generator=generator)
    inputs = torch.randint(0, 9, (1, 3, 48), generator=generator)
    targets = torch.nn.functional.one_hot(torch.tensor([[0, 2, 1]]), 3)
    exact, about = Integers(), Reals()
    found = NETWORK.gradient(exact, weights, exact.embed(inputs), exact.embed(targets))
    reals = NETWORK.gradient(about, weights, about.embed(inputs), about.embed(targets))
    assert found.shape == tuple(reals.shape)
    assert torch.allclose(torch.tensor(found.astype(float)), reals, rtol=1e-12)
