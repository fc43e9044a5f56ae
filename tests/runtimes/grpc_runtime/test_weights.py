"""Weights on their way: in full or as differences, the site ends with the coordinator's."""

import zlib

import pytest
import torch
from dresfl.runtimes.grpc_runtime.frames import Delta, Weights, decode
from hypothesis import given
from hypothesis import strategies as st

from dresfl.coding import CodeParameters
from dresfl.errors import MessageError
from dresfl.model import mlp
from dresfl.protocol import Session, Task
from dresfl.runtimes.grpc_runtime.weights import WeightReceiver, WeightSender

SESSION = Session(mlp((5, 4, 3), input_bits=4, weight_bits=10), CodeParameters(5, batch_size=4), (4,) * 5, 0)
SIZE = SESSION.network.num_parameters


@given(
    reaches=st.lists(st.sampled_from([1, 100, 200, 40_000, 2**30]), min_size=2, max_size=8),
    skipped=st.sets(st.integers(0, 7)),
)
def test_a_site_follows(reaches: list[int], skipped: set[int]) -> None:
    """Whatever the size of the steps, and whichever rounds a slow site was not sent."""
    sender, receiver = WeightSender(SESSION), WeightReceiver(SESSION)
    generator = torch.Generator().manual_seed(len(reaches))
    base: int | None = None
    for number, reach in enumerate(reaches):
        weights = torch.randint(-reach, reach, (SIZE,), generator=generator)
        sender.publish(Task(number, weights))
        if number in skipped:
            continue
        task = receiver.take(decode(sender.frame(base), Weights, Delta))
        base = number
        assert task.round_number == number
        assert torch.equal(task.weights, weights)


def small_step() -> tuple[WeightReceiver, Delta]:
    sender, receiver = WeightSender(SESSION), WeightReceiver(SESSION)
    weights = torch.randint(-(2**20), 2**20, (SIZE,), generator=torch.Generator().manual_seed(1))
    sender.publish(Task(0, weights))
    receiver.take(decode(sender.frame(None), Weights))
    sender.publish(Task(1, weights + 1))
    return receiver, decode(sender.frame(0), Delta)


def test_a_small_step_is_sent_as_a_difference() -> None:
    receiver, delta = small_step()
    assert len(delta.encode()) < SIZE * 4
    assert receiver.take(delta).round_number == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"base_round": 7},
        {"width": 3},
        {"packed": b"not zlib"},
        {"packed": zlib.compress(bytes(10**6))},
        {"packed": zlib.compress(bytes(SIZE))},
        {"digest": bytes(32)},
    ],
    ids=str,
)
def test_differences_that_do_not_fit(changes: dict[str, object]) -> None:
    receiver, delta = small_step()
    with pytest.raises(MessageError):
        receiver.take(Delta(**{**vars(delta), **changes}))  # type: ignore[arg-type]
