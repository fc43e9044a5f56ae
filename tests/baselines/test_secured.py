"""FedAvg with LightSecAgg takes FedAvg's steps, up to the rounding of the sum."""

import pytest
import torch

from dresfl.baselines import (
    Answers,
    Problem,
    SecuredFedAvg,
    SecureSum,
    initial_state,
    next_state,
    shares,
    torch_weights,
)
from dresfl.errors import HeadroomAlarm, TooFewAnswers, UsageError
from dresfl.field import PublicStream
from dresfl.model import mlp
from dresfl.optimizers import Optimizer

NETWORK = mlp((4, 5, 2), input_bits=4, weight_bits=10)
ROWS = [40, 10, 30, 20]
SGD = Optimizer("sgd", learning_rate=0.1, schedule="constant")
MOMENTUM = Optimizer("momentum", learning_rate=0.1)


def problem(optimizer=SGD, method="fedavg"):
    return Problem(NETWORK, method, "cross-entropy", optimizer, 4)


def plan(**changed):
    numbers = {"num_clients": 4, "max_colluders": 1, "recovery_threshold": 3, "num_values": NETWORK.num_parameters}
    return SecureSum(**{**numbers, "fraction_bits": 20, **changed})


def answers(who, number):
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(4, 3, 4, dtype=torch.float64, generator=generator)
    targets = torch.nn.functional.one_hot(torch.randint(2, (4, 3), generator=generator), 2).double()
    counted = torch.tensor(shares("fedavg", who, ROWS, [0.0] * 4), dtype=torch.float64)
    return Answers(inputs[who], targets[who], torch.tensor(who), counted)


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM])
def test_the_steps_are_those_of_fedavg(optimizer):
    asked = problem(optimizer)
    plain = initial_state(asked, torch_weights(asked.network, PublicStream(1)))
    secured = SecuredFedAvg(asked, plain, plan(), ROWS, seed=1)
    for number, who in enumerate([[0, 1, 2, 3], [3, 1, 0], [0, 2, 3], [1, 2, 3]]):
        plain = next_state(asked, plain, 0.1, answers(who, number))
        found = secured.play(0.1, answers(who, number))
        assert found.steps == plain.steps == number + 1
        assert 0 < (found.weights - plain.weights).abs().max() < 1e-5  # rounded to 2^-20, and not the same bits


def test_a_round_with_too_few_clients_changes_nothing():
    secured = SecuredFedAvg(
        problem(), initial_state(problem(), torch_weights(problem().network, PublicStream(1))), plan(), ROWS, seed=1
    )
    before = secured.state
    with pytest.raises(TooFewAnswers, match="2 of 4 vectors came, 3 needed"):
        secured.play(0.1, answers([0, 1], 0))
    assert secured.state is before
    secured.play(0.1, answers([0, 1, 2], 0))
    assert secured.state.steps == 1


def test_a_gradient_beyond_the_limit_is_refused():
    secured = SecuredFedAvg(
        problem(),
        initial_state(problem(), torch_weights(problem().network, PublicStream(1))),
        plan(limit=1e-4),
        ROWS,
        seed=1,
    )
    with pytest.raises(HeadroomAlarm):
        secured.play(0.1, answers([0, 1, 2], 0))
    assert secured.state.steps == 0


def test_what_does_not_fit_is_refused():
    state = initial_state(problem(), torch_weights(problem().network, PublicStream(1)))
    with pytest.raises(UsageError, match="not scaffold"):
        SecuredFedAvg(problem(method="scaffold"), state, plan(), ROWS, seed=1)
    for wrong, rows in ((plan(num_values=3), ROWS), (plan(), ROWS[:3])):
        with pytest.raises(UsageError, match="does not fit"):
            SecuredFedAvg(problem(), state, wrong, rows, seed=1)
