"""Weights on their way: in full or as differences, the client ends with the coordinator's."""

import zlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.coding import CodeParameters
from dresfl.errors import MessageError
from dresfl.federation.messages import Delta, Done, Request, Wait, Weights, decode
from dresfl.model import mlp
from dresfl.protocol import Session, Task
from dresfl.runtimes.grpc_runtime.weights import WeightReceiver, WeightSender

SESSION = Session(mlp((5, 4, 3), input_bits=4, weight_bits=10), CodeParameters(5, batch_size=4), (4,) * 5, 0)
SIZE = SESSION.network.num_parameters


def weights_message(number: int, weights: torch.Tensor) -> Weights:
    return Weights(Task(number, weights).encode(SESSION))


@given(
    reaches=st.lists(st.sampled_from([1, 100, 200, 40_000, 2**30]), min_size=2, max_size=8),
    skipped=st.sets(st.integers(0, 7)),
)
def test_a_client_follows(reaches: list[int], skipped: set[int]) -> None:
    """Whatever the size of the steps, and whichever rounds a slow client was not sent."""
    sender, receiver = WeightSender(), WeightReceiver()
    generator = torch.Generator().manual_seed(len(reaches))
    base: int | None = None
    for number, reach in enumerate(reaches):
        whole = weights_message(number, torch.randint(-reach, reach, (SIZE,), generator=generator))
        sent, new_base = sender.message(whole, base if number not in skipped else None)
        assert new_base == number
        if number not in skipped:
            base = number
            assert receiver.take(sent.encode()) == whole.encode()


def test_clients_at_different_rounds() -> None:
    """Some are sent the round before again, and some have a base that is long gone: all end with their round's weights.

    A base that the sender keeps no more is replaced by the weights in full.
    """
    sender = WeightSender()
    rounds = [weights_message(number, torch.arange(SIZE) + number) for number in range(12)]
    receivers = {behind: WeightReceiver() for behind in (0, 1, 2, 9)}
    bases: dict[int, int | None] = dict.fromkeys(receivers)
    for number in range(12):
        for behind in (0, 1, 2, 9):
            own = number - behind
            if own < 0 or (behind == 9 and own not in (0, 2)):
                continue
            sent, bases[behind] = sender.message(rounds[own], bases[behind])
            assert receivers[behind].take(sent.encode()) == rounds[own].encode()


def test_the_same_round_again() -> None:
    """A round that is sent again is sent in full, and rounds after it as differences again."""
    sender, receiver = WeightSender(), WeightReceiver()
    base: int | None = None
    kinds = []
    for number in (0, 1, 1, 2):
        whole = weights_message(number, torch.arange(SIZE) + number)
        sent, base = sender.message(whole, base)
        kinds.append(type(sent))
        assert receiver.take(sent.encode()) == whole.encode()
    assert kinds == [Weights, Delta, Weights, Delta]


def test_what_is_no_weights_passes_through() -> None:
    receiver = WeightReceiver()
    for message in (Wait("for somebody"), Request(1, 2), Done(Task(3, torch.zeros(SIZE)).encode(SESSION))):
        assert receiver.take(message.encode()) == message.encode()
    assert receiver.take(b"") == b""


def small_step() -> tuple[WeightReceiver, Delta]:
    sender, receiver = WeightSender(), WeightReceiver()
    weights = torch.randint(-(2**20), 2**20, (SIZE,), generator=torch.Generator().manual_seed(1))
    receiver.take(sender.message(weights_message(0, weights), None)[0].encode())
    delta = sender.message(weights_message(1, weights + 1), 0)[0]
    assert isinstance(delta, Delta)
    return receiver, delta


def test_a_small_step_is_sent_as_a_difference() -> None:
    receiver, delta = small_step()
    assert len(delta.encode()) < SIZE * 4
    whole = decode(receiver.take(delta.encode()), (Weights,))
    assert isinstance(whole, Weights)
    assert Task.decode(whole.task, SESSION).round_number == 1


@pytest.mark.parametrize("task", [b"", bytes(21), bytes(23)], ids=len)
def test_weights_that_are_none(task: bytes) -> None:
    with pytest.raises(MessageError):
        WeightReceiver().take(Weights(task).encode())


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
        receiver.take(replace(delta, **changes).encode())  # type: ignore[arg-type]
