"""One client's gradient as a captured graph: the same integers, and never for weights beyond its bound."""

import pytest
import torch

from dresfl.coding import CodeParameters
from dresfl.model import Conv2d, Dense, Flatten, Network, Square, captured, mlp
from dresfl.protocol import Session, coded_gradient

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

NETWORKS = {
    "dense": mlp((20, 16, 10), input_bits=4, weight_bits=8),
    "conv": Network((Conv2d(2, kernel=3), Square(), Flatten(), Dense(3)), (6, 6, 1), 4, 8),
}


def played(network, device, scale=1):
    session = Session(network, CodeParameters(9), (30,) * 9, seed=1, device=device)
    generator = torch.Generator().manual_seed(1)
    weights = network.initial_weights(session.stream) * scale
    found = []
    for _ in range(3):  # the graph is recorded at the first and replayed at the others
        rows = torch.randint(-(2**30), 2**30, (1, session.batch_size, session.row_width), generator=generator)
        found.append(session.field.pack(coded_gradient(session, weights.to(device), session.field.embed(rows))))
        weights += torch.randint(-9, 10, weights.shape, generator=generator)
    return found


@needs_gpu
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
def test_a_gpu_finds_what_a_cpu_finds(network):
    assert played(network, "cuda") == played(network, "cpu")


@needs_gpu
def test_a_client_answers_with_the_graph():
    session = Session(NETWORKS["dense"], CodeParameters(9), (30,) * 9, seed=1, device="cuda")
    rows = session.field.embed(torch.zeros(1, session.batch_size, session.row_width, dtype=torch.int64))
    weights = torch.zeros(session.network.num_parameters, dtype=torch.int64)
    assert len(session.network.answer_parts(session.field, weights, rows[..., :20], rows[..., 20:])) == 1
    assert captured._captured.cache_info().currsize > 0


@needs_gpu
def test_weights_beyond_the_bound_go_step_by_step(monkeypatch):
    monkeypatch.setattr(captured, "_WEIGHT_BOUND", 2**12)
    captured._captured.cache_clear()
    assert played(NETWORKS["dense"], "cuda", scale=2**6) == played(NETWORKS["dense"], "cpu", scale=2**6)
    captured._captured.cache_clear()


def test_no_graph_on_a_cpu():
    session = Session(NETWORKS["dense"], CodeParameters(9), (30,) * 9, seed=1)
    rows = session.field.embed(torch.zeros(1, session.batch_size, session.row_width))
    weights = torch.zeros(NETWORKS["dense"].num_parameters, dtype=torch.int64)
    given = rows[..., :20], rows[..., 20:]
    assert captured.captured_gradient(NETWORKS["dense"].gradient, session.field, weights, *given) is None
