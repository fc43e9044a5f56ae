"""Small hidden runs for tests: a session, its clients' rows, and a federation in one process."""

import torch
from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.model import Network, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session
from dresfl.protocol.hidden.plan import make_plan
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.local.hidden import HiddenFederation

Data = list[tuple[Tensor, Tensor]]


def small_session(
    num_clients: int = 6,
    num_shards: int = 1,
    max_colluders: int = 1,
    *,
    sizes: tuple[int, ...] = (6, 5, 3),
    batch_size: int = 4,
    rounds: int = 3,
    max_liars: int = 0,
    rows: int = 6,
    learning_rate: float = 0.05,
    run: bytes = bytes(32),
    network: Network | None = None,
    **settings: object,
) -> Session:
    parameters = CodeParameters(num_clients, num_shards, max_colluders, batch_size, max_liars)
    chosen = HiddenSettings(**{"schedule": "S4", **settings})  # type: ignore[arg-type]
    network = network or mlp(sizes, input_bits=4, weight_bits=10)
    optimizer = Optimizer(method="momentum", learning_rate=learning_rate)
    plan = make_plan(network, parameters, chosen, optimizer, rounds, client_rows=(rows,) * num_clients)
    return Session(plan.network, parameters, (rows,) * num_clients, seed=3, hidden=plan, run=run)


def small_rows(session: Session, seed: int = 1) -> Data:
    """Random integer rows of every client."""
    generator = torch.Generator().manual_seed(seed)
    network, found = session.network, []
    for rows in session.client_rows:
        inputs = torch.randint(0, 2**network.input_bits + 1, (rows, network.input_size), generator=generator)
        labels = torch.randint(0, network.num_classes, (rows,), generator=generator)
        found.append((inputs, torch.nn.functional.one_hot(labels, network.num_classes)))
    return found


def small_federation(**settings: object) -> HiddenFederation:
    session = small_session(**settings)  # type: ignore[arg-type]
    return HiddenFederation(session, small_rows(session))
