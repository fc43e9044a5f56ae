"""The parts of a round as calls to be timed, and the bare products that are their limit.

Rows and residues are synthetic: no data set is needed, and time does not depend on the values.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.field import ResidueSystem
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, Training, coded_gradient, decode_sum
from dresfl.runtimes.local import LocalFederation, no_dropouts

from .timing import Call

_BLOCK_BYTES = 2**22  # of shares at a time
_BLOCK = 64  # rounds of one call on a GPU, which plays them in blocks

_TWENTY = CodeParameters(num_clients=20)


@final
@dataclass(frozen=True)
class Setting:
    """A federation to be measured. The defaults are the `mnist` preset's sizes."""

    layers: tuple[int, ...] = (784, 64, 64, 10)
    code: CodeParameters = _TWENTY
    rows_per_client: int = 100

    def session(self, device: str) -> Session:
        """The session of this setting, with the field that its network needs."""
        network, code = mlp(self.layers, input_bits=4, weight_bits=10), self.code
        rows = (self.rows_per_client,) * code.num_clients
        return Session(network, code, rows, seed=1, device=device)


def residues(field: ResidueSystem, *shape: int) -> Tensor:
    """Residues (M,*shape) that fill their range, as those of coded values do."""
    generator = torch.Generator().manual_seed(1)
    return field.embed(torch.randint(-(2**30), 2**30, shape, generator=generator))


# -- the parts of a round ------------------------------------------------------------------------------------------


def encode(session: Session, clients: Sequence[int] | None = None) -> Call:
    """The shares of one batch of rows, masks given, for `clients` (all of them if None): (M,N,B,W)."""
    shards = residues(session.field, session.num_shards, session.batch_size, session.row_width)
    masks = residues(session.field, session.max_colluders, session.batch_size, session.row_width)
    return lambda: session.code.encode(shards, masks, clients)


def deal(session: Session) -> Call:
    """The shares of one batch for all N clients, in blocks of rows as a dealer sends them on."""
    code, rows = session.code, session.batch_size
    shards = residues(session.field, session.num_shards, rows, session.row_width)
    masks = residues(session.field, session.max_colluders, rows, session.row_width)
    row_bytes = session.num_clients * shards[:, 0, 0].nbytes
    block = max(1, _BLOCK_BYTES // row_bytes)

    def run() -> None:
        for start in range(0, rows, block):
            code.encode(shards[:, :, start : start + block], masks[:, :, start : start + block])

    return run


def gradient(session: Session) -> Call:
    """One client's gradient on its coded batch: (M,1,P)."""
    weights = session.network.initial_weights(session.stream).to(session.device)
    coded = residues(session.field, 1, session.batch_size, session.row_width)
    return lambda: coded_gradient(session, weights, coded)


def decode(session: Session) -> Call:
    """The summed gradient of R answers, lifted to float64 and checked: (P,)."""
    answers = residues(session.field, session.recovery_threshold, session.network.num_parameters)
    survivors = range(session.recovery_threshold)
    coefficients = session.code.sum_decoder(survivors)  # (M,R)
    return lambda: decode_sum(session.field, coefficients, [answers])


def synthetic_rows(session: Session, density: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    """Integer rows and targets of every client. density: which part of the inputs is not 0."""
    generator = torch.Generator().manual_seed(1)
    classes = session.network.num_classes
    data = []
    for count in session.client_rows:
        inputs = torch.randint(17, (count, session.network.input_size), generator=generator, dtype=torch.int32)
        if density < 1:
            inputs *= torch.rand(inputs.shape, generator=generator) < density
        labels = torch.randint(classes, (count,), generator=generator)
        data.append((inputs, torch.nn.functional.one_hot(labels, classes).to(torch.int32)))
    return data


def federation(session: Session, *, density: float = 1.0, learning_rate: float = 1e-3) -> LocalFederation:
    """All clients, with synthetic rows, and the coordinator in this process; every client answers.

    density: which part of the inputs is not 0.
    """
    data = synthetic_rows(session, density)
    training = Training(session, Optimizer(learning_rate=learning_rate), rounds=10**6)
    return LocalFederation(session, training, data, no_dropouts(session.num_clients, 1), "coded")


def rounds(session: Session) -> tuple[Call, int]:
    """A call that plays whole coded rounds, R answers computed in each; and how many rounds it plays."""
    local = federation(session)
    return lambda: local.run_rounds(_BLOCK), len(local.run_rounds(_BLOCK))


# -- what they are compared with -------------------------------------------------------------------------------------


def bare_gradient(session: Session) -> dict[str, Call]:
    """The float64 products in one client's gradient, and nothing else."""
    return bare_products(lambda: _layers(session, 1), session.device)


def bare_round(session: Session) -> dict[str, Call]:
    """The float64 products of one round: encode, every layer forward and backward, decode."""
    moduli, answers = len(session.field.moduli), session.recovery_threshold
    hidden = session.num_shards + session.max_colluders
    columns, parameters = session.batch_size * session.row_width, session.network.num_parameters

    def pairs() -> list[tuple[Tensor, Tensor]]:
        encoding = _reals(session, moduli, answers, hidden), _reals(session, moduli, hidden, columns)
        decoding = _reals(session, moduli, 1, answers), _reals(session, moduli, answers, parameters)
        return [encoding, *_layers(session, answers), decoding]

    return bare_products(pairs, session.device)


def _layers(session: Session, answers: int) -> list[tuple[Tensor, Tensor]]:
    pairs: list[tuple[Tensor, Tensor]] = []
    for depth, parameters in enumerate(session.network.parameters):
        fan_in, fan_out = parameters.fan
        shape = len(session.field.moduli), answers, session.batch_size
        inputs, deltas = _reals(session, *shape, fan_in), _reals(session, *shape, fan_out)
        weights = _reals(session, fan_in, fan_out)
        pairs += [(inputs, weights), (inputs.swapaxes(-1, -2), deltas)]
        if depth:
            pairs.append((deltas, weights.T))
    return pairs


def _reals(session: Session, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(session.device)


def bare_products(pairs: Callable[[], Sequence[tuple[Tensor, Tensor]]], device: str) -> dict[str, Call]:
    """These products alone, by torch, and on a CPU by NumPy too: which one is faster depends on the CPU.

    pairs: makes the factors, anew for each library.
    """

    def run(multiply: Callable[[Any, Any], Any], factors: Sequence[tuple[Any, Any]]) -> None:
        for left, right in factors:
            multiply(left, right)

    calls: dict[str, Call] = {"torch": functools.partial(run, torch.matmul, pairs())}
    if device == "cpu":
        calls["numpy"] = functools.partial(run, np.matmul, [(left.numpy(), right.numpy()) for left, right in pairs()])
    return calls


def torch_step(setting: Setting, device: str) -> Call:
    """One step of plain SGD in float32 on the ReLU network of the same sizes and batch, as PyTorch users write it."""
    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in zip(setting.layers, setting.layers[1:], strict=False):
        layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.rand(setting.code.batch_size, setting.layers[0]).to(device)
    targets = torch.rand(setting.code.batch_size, setting.layers[-1]).to(device)

    def run() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run
