"""Whole runs of the three methods in one process, message by message: what the phases together must come to."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dresfl.baselines import (
    MaskingClient,
    Message,
    Request,
    SumRound,
    client_gradients,
)
from dresfl.errors import DresError
from dresfl.field import SecretSeed
from dresfl.optimizers import Optimizer
from dresfl.protocol import Answer, Client, Share, Task, Training

from .phases import BLOCK_ROWS, Method
from .settings import Setting

Rows = Sequence[tuple[Tensor, Tensor]]  # each client's integer inputs (m,F) and one-hot targets (m,C)


def whole_run(setting: Setting, method: Method, rounds: int) -> dict[str, Any]:
    """Processor time of all participants together, and bytes of each client and of the coordinator.

    What is sent is encoded, and decoded by its receiver. Answers are not blinded, as in the paper.
    """
    generator = torch.Generator().manual_seed(1)
    classes, size = setting.network.num_classes, setting.network.input_size
    data = []
    for _ in range(setting.num_clients):
        labels = torch.randint(classes, (setting.rows_per_client,), generator=generator)
        inputs = torch.randint(17, (setting.rows_per_client, size), generator=generator, dtype=torch.int32)
        data.append((inputs, torch.nn.functional.one_hot(labels, classes).to(torch.int32)))
    runs: dict[Method, Callable[[Setting, int, Rows, Counter[str]], None]] = {
        "fedavg": _fedavg,
        "lightsecagg": _lightsecagg,
        "dresfl": _dresfl,
    }
    count: Counter[str] = Counter()
    start = time.process_time()
    runs[method](setting, rounds, data, count)
    seconds = time.process_time() - start
    clients = setting.num_clients  # all send and receive the same
    return {
        "rounds": rounds,
        "seconds": seconds,
        "client_sent": (count["shares"] + count["answers"]) // clients,
        "client_received": (count["shares"] + count["questions"]) // clients,
        "coordinator_sent": count["questions"],
        "coordinator_received": count["answers"],
    }


def _real_rows(setting: Setting, data: Rows, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each client's b_g/N rows of a round: (N,b,F), (N,b,C)."""
    chosen = torch.randint(setting.rows_per_client, (len(data), setting.own_batch), generator=generator)
    picked = [(inputs[rows], targets[rows]) for (inputs, targets), rows in zip(data, chosen, strict=True)]
    return torch.stack([x for x, _ in picked]) / 16, torch.stack([y for _, y in picked]).to(torch.float32)


def _fedavg(setting: Setting, rounds: int, data: Rows, count: Counter[str]) -> None:
    generator = torch.Generator().manual_seed(2)
    weights = 0.1 * torch.randn(setting.num_parameters, generator=generator)
    for _ in range(rounds):
        count["questions"] += setting.num_clients * weights.nbytes
        found = client_gradients(setting.network, "cross-entropy", weights, *_real_rows(setting, data, generator))
        messages = [gradient.numpy().tobytes() for gradient in found]
        count["answers"] += sum(map(len, messages))
        vectors = [torch.frombuffer(bytearray(message), dtype=torch.float32) for message in messages]
        weights = weights - 0.1 * torch.stack(vectors).mean(0)


def _lightsecagg(setting: Setting, rounds: int, data: Rows, count: Counter[str]) -> None:
    plan, generator = setting.secure_sum, torch.Generator().manual_seed(2)
    weights = 0.1 * torch.randn(setting.num_parameters, generator=generator)
    clients = [MaskingClient(plan, i) for i in range(setting.num_clients)]
    for number in range(rounds):
        count["questions"] += setting.num_clients * weights.nbytes
        dealt = itertools.chain.from_iterable([client.deal(number) for client in clients])
        for message in [share.encode(plan) for share in dealt]:
            count["shares"] += len(message)
            share = Message.decode(message, plan)
            clients[share.receiver].receive(share)
        coordinator, total = SumRound(plan, number), None
        found = client_gradients(setting.network, "cross-entropy", weights, *_real_rows(setting, data, generator))
        for client, gradient in zip(clients, found, strict=True):
            noise = torch.rand(plan.num_values, generator=generator, dtype=torch.float64)
            vector = client.vector(plan.integers(gradient, noise)).encode(plan)
            count["answers"] += len(vector)
            coordinator.receive_vector(Message.decode(vector, plan))
        request = coordinator.close().encode(plan)
        count["questions"] += setting.num_clients * len(request)
        for client in clients:
            answer = client.answer(Request.decode(request, plan)).encode(plan)
            count["answers"] += len(answer)
            last = coordinator.receive_answer(Message.decode(answer, plan))
            total = last if total is None else total
        if total is None:
            raise DresError("all clients answered, and there is no sum")
        weights = weights - 0.1 * (plan.reals(total) / setting.num_clients).to(torch.float32)


def _dresfl(setting: Setting, rounds: int, data: Rows, count: Counter[str]) -> None:
    session = setting.session
    clients = [Client(session, i, SecretSeed.fresh(), *rows) for i, rows in enumerate(data)]
    for dealer in clients:
        for first in range(0, session.coded_rows(dealer.index), BLOCK_ROWS):
            for share in dealer.deal_to(range(session.num_clients), first, BLOCK_ROWS):
                message = share.encode(session)
                count["shares"] += len(message) if share.receiver != dealer.index else 0
                clients[share.receiver].receive(Share.decode(message, session))
    training = Training(session, Optimizer(learning_rate=1e-3), rounds)
    for number in range(rounds):
        task = training.task().encode(session)
        count["questions"] += setting.num_clients * len(task)
        for client in clients:
            answer = client.answer(Task.decode(task, session)).encode(session)
            count["answers"] += len(answer)
            record = training.receive(Answer.decode(answer, session))
            if record is not None and record.outcome != "stepped":
                raise DresError(f"round {number} ended otherwise: {record.reason}")
