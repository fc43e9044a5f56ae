"""deg(g) is 2^(L+1): enough answers decode, one fewer does not."""

import random

import pytest
import torch

from dresfl.coding import CodeParameters
from dresfl.coding.lagrange import lagrange_matrix
from dresfl.errors import InfeasiblePlan
from dresfl.field import SecretSeed
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool, mlp
from dresfl.protocol import Session, encode_rows
from reference import integer_gradient

STACKS = {
    "dense": ((Dense(2),), (3,), 2),
    "two dense": ((Dense(3), Dense(2)), (3,), 2),
    "one square": ((Dense(2), Square(), Dense(2)), (3,), 4),
    "one quadratic": ((Dense(2), Quadratic(), Dense(2)), (3,), 4),
    "square first": ((Square(), Dense(2)), (3,), 4),
    "square last": ((Dense(2), Square()), (3,), 4),
    "two squares": ((Dense(2), Square(), Dense(2), Square(), Dense(2)), (2,), 8),
    "squares in a row": ((Dense(2), Square(), Quadratic(), Dense(2)), (2,), 8),
    "conv": ((Conv2d(2, 2), Flatten(), Dense(2)), (3, 3, 1), 2),
    "conv and square": ((Conv2d(2, 2, padding=1), Square(), SumPool(2), Flatten(), Dense(2)), (3, 3, 1), 4),
    "conv, two squares": ((Conv2d(1, 2, 2), Square(), Flatten(), Dense(2), Square(), Dense(2)), (4, 4, 1), 8),
}


@pytest.mark.parametrize("squares", range(6))
def test_degree_is_two_to_the_squares_plus_one(squares):
    assert mlp([2] * (squares + 2), input_bits=0, weight_bits=1).gradient_degree == 2 ** (squares + 1)


@pytest.mark.parametrize(("shards", "colluders"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("name", STACKS)
def test_degree_is_sufficient_and_tight(name, shards, colluders):
    layers, shape, degree = STACKS[name]
    network = Network(layers, shape, input_bits=2, weight_bits=4)
    assert network.gradient_degree == degree
    needed = degree * (shards + colluders - 1) + 1
    session = Session(network, CodeParameters(needed, shards, colluders, 2), (4,) * needed, seed=1)
    assert session.recovery_threshold == needed

    rng = random.Random(name)
    weights = torch.tensor([rng.choice((-1, 1)) * rng.randint(1, 15) for _ in range(network.num_parameters)])
    rows = torch.tensor([rng.randint(1, 4) for _ in range(2 * shards * session.row_width)])
    rows = rows.view(2, shards, session.row_width)
    keys = SecretSeed(bytes(range(32))).mask_key(b"").expand(2, 8)
    shares = encode_rows(session, keys, torch.arange(2), rows)
    size = network.input_size
    answers = network.gradient(session.field, weights, shares[..., :size], shares[..., size:])  # (M,N,P)

    flat = rows.flatten(0, 1).tolist()
    inputs, targets = [row[:size] for row in flat], [row[size:] for row in flat]
    expected = integer_gradient.gradient(layers, shape, 2, 4, weights.tolist(), inputs, targets)
    assert session.field.lift_exact(session.code.decode_sum(answers, range(needed))) == expected

    # through one point fewer passes another polynomial
    fewer = lagrange_matrix(session.field, session.code.client_points[:-1], session.code.data_points)
    wrong = session.field.sum(session.field.matmul(fewer, answers[:, :-1]), 1)
    assert session.field.lift_exact(wrong) != expected


def test_one_client_too_few_is_infeasible():
    network = mlp((3, 2, 2), input_bits=2, weight_bits=4)
    Session(network, CodeParameters(9, 2, 1, 2), (4,) * 9, seed=1)
    with pytest.raises(InfeasiblePlan, match="need 9 answers") as caught:
        Session(network, CodeParameters(8, 2, 1, 2), (4,) * 8, seed=1)
    assert caught.value.hint
