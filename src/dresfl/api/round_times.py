"""How long the parts of a round take on this machine, measured with the functions that the parties call.

One thread computes. The parties of a federation compute at the same time, each on a machine of its own. So a round
takes as long as one client's part and the coordinator's part together, and what travels between them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from dresfl.coding import CodeParameters
from dresfl.field import SecretSeed
from dresfl.kernels.threads import torch_threads
from dresfl.masking import Blinding
from dresfl.model import Network, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, coded_gradient, decode_sum
from dresfl.protocol.hidden.plan import make_plan
from dresfl.protocol.hidden.settings import HiddenSettings, Schedule
from dresfl.runtimes.local.hidden import HiddenFederation
from dresfl.runtimes.local.hidden_timing import timed_round

_LARGEST_PLAYED = 200_000  # parameters of a network with which hidden rounds are played
_USUAL = (784, 64, 64, 10)
_ROWS = 8  # of each client in a played round: more would change nothing but the set-up


def open_round(network: Network, code: CodeParameters, mask_seeds: int) -> tuple[float, float]:
    """Seconds of one client (its gradient, blinded) and of the coordinator (decoding) in an open round."""
    session = Session(network, code, (_ROWS * code.num_shards,) * code.num_clients, seed=1)
    field, size = session.field, network.num_parameters
    generator = torch.Generator().manual_seed(1)

    def residues(*shape: int) -> torch.Tensor:
        return field.embed(torch.randint(-(2**30), 2**30, shape, generator=generator))

    weights = network.initial_weights(session.stream)
    coded = residues(1, code.batch_size, session.row_width)
    blinding = Blinding(field, residues(mask_seeds), [SecretSeed.fresh() for _ in range(mask_seeds)])
    answers = residues(session.recovery_threshold, size)
    coefficients = session.code.sum_decoder(range(session.recovery_threshold))

    def client() -> None:
        field.add(coded_gradient(session, weights, coded)[:, 0], blinding.values(b"measured", size))

    with torch_threads(1):
        return _seconds(client), _seconds(lambda: decode_sum(field, coefficients, [answers]))


def _seconds(call: Callable[[], object]) -> float:
    """CPU seconds of one call: the smaller of two, after a first one that warms up."""
    found = []
    for _ in range(3):
        start = time.thread_time()
        call()
        found.append(time.thread_time() - start)
    return min(found[1:])


@final
@dataclass(frozen=True)
class HiddenSpeed:
    """This machine's speed in hidden rounds: seconds for each byte that a client uploads in a round, and …"""

    client: float  # … of a client, in any case
    client_seed: float  # … of a client, for each seed that it expands
    coordinator: float  # … of the coordinator, for each answer

    def seconds(self, upload_bytes: int, seeds: int, answers: int) -> tuple[float, float]:
        """Of one client that uploads so much and holds so many seeds, and of the coordinator, in a round."""
        return upload_bytes * (self.client + self.client_seed * seeds), upload_bytes * self.coordinator * answers


def hidden_speed(network: Network, batch_size: int) -> HiddenSpeed:
    """Measure it: two short runs with few and with many seeds, of this network or, if it is large, of a usual one."""
    if network.num_parameters > _LARGEST_PLAYED:
        network = mlp(_USUAL, input_bits=4, weight_bits=10)
    with torch_threads(1):
        few = _played(network, CodeParameters(6, max_colluders=1, batch_size=batch_size), "S4")
        many = _played(network, CodeParameters(9, max_colluders=2, batch_size=batch_size), "S2")
    per_seed = max(0.0, (many.client - few.client) / (many.seeds - few.seeds))
    return HiddenSpeed(
        client=max(0.0, few.client - per_seed * few.seeds),
        client_seed=per_seed,
        coordinator=(few.coordinator + many.coordinator) / 2,
    )


@final
@dataclass(frozen=True)
class _Played:
    """Seconds for each uploaded byte in a played round, and the seeds that its clients hold."""

    client: float
    coordinator: float  # for each answer
    seeds: int


def _played(network: Network, code: CodeParameters, schedule: Schedule) -> _Played:
    rows = (_ROWS,) * code.num_clients
    optimizer = Optimizer(method="momentum", learning_rate=0.001, schedule="constant")
    settings = HiddenSettings(schedule=schedule, trusted_dealers=True)
    plan = make_plan(network, code, settings, optimizer, 1000, client_rows=rows)
    session = Session(plan.network, code, rows, seed=1, hidden=plan, run=bytes(32))
    zeros = torch.zeros((_ROWS, network.input_size), dtype=torch.int64)
    targets = torch.nn.functional.one_hot(torch.zeros(_ROWS, dtype=torch.int64), network.num_classes)
    federation = HiddenFederation(session, [(zeros, targets)] * code.num_clients)
    federation.clients = federation.clients[: session.answers_needed]
    timed_round(federation)  # warms up
    client, coordinator = timed_round(federation)
    seeds = max(len(session.seed_sets.held_by(index)) for index in range(code.num_clients))
    return _Played(client / plan.upload_bytes, coordinator / (plan.upload_bytes * session.answers_needed), seeds)
