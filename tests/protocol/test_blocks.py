"""A large model at the coordinator: answers stay packed, and decoding and stepping in blocks change no bit."""

import tracemalloc

import numpy as np
import pytest
import torch

from dresfl.coding import CodeParameters
from dresfl.field import Domain, PublicStream
from dresfl.model import Dense, Network
from dresfl.optimizers import Optimizer, squared_norm
from dresfl.optimizers.optimizer import squared_norm_of
from dresfl.protocol import Answer, Session, Training, decode_answers, decode_sum, step, step_in_blocks
from dresfl.protocol import round as round_module

SESSION = Session(Network((Dense(30),), (40,), 4, 10), CodeParameters(4, batch_size=5), (3,) * 4, 1)
SIZE = SESSION.network.num_parameters
CLIENTS = (0, 1, 3)


@pytest.fixture
def small_blocks(monkeypatch):
    """So small that the model has many of them, and the last one is not full."""
    monkeypatch.setattr(round_module, "_COLUMNS", 7)
    monkeypatch.setattr(round_module, "_BLOCK", 48)


def integers(seed=0, largest=2**20):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-largest, largest, (SIZE,), generator=generator)


def messages(seed=0):
    """R answers that decode to the same integers: those of a constant polynomial."""
    residues = SESSION.field.embed(integers(seed))
    return {client: Answer(0, client, residues).encode(SESSION) for client in CLIENTS}


def decoded(data):
    return [Answer.decode_from(client, message, SESSION) for client, message in data.items()]


def test_decoding_in_blocks_is_decoding_at_once(small_blocks):
    answers = decoded(messages())
    coefficients = SESSION.code.sum_decoder(CLIENTS)
    tensors = [answer.residues.unpack() for answer in answers]
    wanted, beyond = decode_sum(SESSION.field, coefficients, [torch.stack(tensors, 1)])
    assert torch.equal(wanted, integers().to(torch.float64))
    packed = [answer.residues for answer in answers]
    for form in (packed, tensors, [packed[0], *tensors[1:]]):
        found, exceeded = decode_answers(SESSION.field, coefficients, form)
        assert torch.equal(found, wanted)
        assert int(exceeded) == int(beyond) == 0


def test_values_out_of_range_are_counted_in_every_block(small_blocks):
    data = messages()
    wrong = SESSION.field.embed(integers())
    wrong[0, ::9] += 1
    data[3] = Answer(0, 3, wrong).encode(SESSION)
    packed = [answer.residues for answer in decoded(data)]
    tensors = torch.stack([residues.unpack() for residues in packed], 1)
    coefficients = SESSION.code.sum_decoder(CLIENTS)
    beyond = decode_sum(SESSION.field, coefficients, [tensors])[1]
    assert int(decode_answers(SESSION.field, coefficients, packed)[1]) == int(beyond) == len(range(0, SIZE, 9))


@pytest.mark.parametrize("method", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("more", [{}, {"max_norm": 0.5}, {"max_norm": 1e9, "weight_decay": 0.01}], ids=str)
def test_a_step_in_blocks_is_the_step(small_blocks, method, more):
    optimizer = Optimizer(method=method, learning_rate=0.3, **more)
    weights = SESSION.network.initial_weights(SESSION.stream)
    moments = {name: torch.rand(SIZE, dtype=torch.float64) for name in optimizer.initial_state(SIZE) if name != "steps"}
    values = integers(5, 2**30).to(torch.float64)
    now = SESSION, optimizer, weights, moments, values, optimizer.factors(0.3, 2)
    whole = step(*now, SESSION.stream.uniform(Domain.ROUNDING, 6, SIZE))
    blocks = step_in_blocks(*now, 6)
    for name in ("weights", "peak", "squared_norm", "reach"):
        assert torch.equal(getattr(blocks, name), getattr(whole, name)), name
    assert blocks.weights.dtype == whole.weights.dtype
    assert all(torch.equal(blocks.moments[name], whole.moments[name]) for name in moments)
    assert blocks.moments.keys() == whole.moments.keys()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 63, 64, 65, 1000])
@pytest.mark.parametrize("block", [1, 3, 16, 10**6])
def test_the_norm_of_blocks_has_the_bits_of_the_tree(count, block):
    values = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    found = squared_norm_of(lambda first, last: values[first:last], count, block)
    tree = (values * values).tolist() + [0.0] * ((1 << max(0, (count - 1).bit_length())) - count)
    tree = tree or [0.0]
    while len(tree) > 1:
        half = len(tree) // 2
        tree = [a + b for a, b in zip(tree[:half], tree[half:], strict=True)]
    assert found.item() == squared_norm(values).item() == tree[0]


def test_noise_can_be_made_from_any_block_on():
    stream = PublicStream(3)
    whole = stream.uniform(Domain.ROUNDING, 9, 100)
    for first in (0, 16, 96):
        assert torch.equal(stream.uniform_from(Domain.ROUNDING, 9, first, 100 - first), whole[first:])


def test_a_training_holds_the_messages_and_no_copy_of_them():
    """What it keeps of answers are views of the bytes that came; a refused or late one leaves nothing."""
    training = Training(SESSION, Optimizer(), 2)
    data = messages()
    for client in CLIENTS[:2]:
        training.receive(Answer.decode_from(client, data[client], SESSION))
        kept = training._answers[client]
        assert np.shares_memory(kept.octets, np.frombuffer(data[client], np.uint8))
    record = training.receive(Answer.decode_from(3, data[3], SESSION))
    assert record.outcome == "stepped"
    assert not training._answers


def test_decoding_needs_little_memory_beyond_the_answers():
    """NumPy's and Python's memory is counted; of torch's, `decode_answers` needs the result and one run of columns."""
    session = Session(Network((Dense(600),), (700,), 4, 10), CodeParameters(4, batch_size=5), (3,) * 4, 1)
    size = session.network.num_parameters
    message = Answer(0, 0, session.field.embed(torch.ones(size, dtype=torch.int64))).encode(session)
    data = [message[:18] + (0).to_bytes(4, "little") + bytes([client, 0]) + message[24:] for client in CLIENTS]
    training = Training(session, Optimizer(), 1)
    tracemalloc.start()
    try:
        for client, answer in zip(CLIENTS, data, strict=True):
            training.receive(Answer.decode_from(client, answer, session))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.2 * len(message)
