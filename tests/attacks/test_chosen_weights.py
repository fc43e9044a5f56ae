"""A coordinator that chooses the weights reads the rows of one class out of one round, blinded or not.

It needs two hidden layers, and sends weights with these parts:

- Pairs of first units with equal weights w_j, whose squares enter the second layer with opposite signs. They cancel in
  every output, but each has a gradient of its own.
- Second units in pairs that cancel in the output k. So f = 0, and the error of a row is −y: zero for rows of other
  classes.
- The second units' values are a constant, or linear in s = r·x with public r: (s + c)² − s² = 2cs + c².

The gradient of w_j is then a known multiple of Σ x·(w_j·x)·(Λ + 2c·s) over the rows of class k. As it is exact and Λ is
larger than the rest can be, division by Λ separates M_0 = Σ x·(w_j·x) and M_1 = Σ s·x·(w_j·x). The eigenvectors of
M_1·M_0⁺ are the rows, and the eigenvalues s give their length.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.model import Network, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, Training
from dresfl.runtimes.local import LocalFederation, no_dropouts
from dresfl.storage.transcript import Recording, Transcript

from .least_squares import batch_places
from .runs import digits_rows, exact_sums, first_layer

CONSTANT = 2**20  # the bias of the second units that are constant


def chosen_weights(network: Network, label: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weights (P,) that show the rows of one class, and the direction r (F,)."""
    first, second, third = network.parameters
    generator = torch.Generator().manual_seed(seed)
    inputs, units = first.fan
    direction = torch.randint(1, 2**8, (inputs,), generator=generator)
    w1, b1 = torch.zeros(first.fan, dtype=torch.int64), torch.zeros(units, dtype=torch.int64)
    w2, b2 = torch.zeros(second.fan, dtype=torch.int64), torch.zeros(second.fan[1], dtype=torch.int64)
    w3 = torch.zeros(third.fan, dtype=torch.int64)
    w1[:, 0] = w1[:, 1] = direction
    b1[0] = 1
    w2[0, :2], w2[1, :2] = 1, -1  # second units 0 and 1: (s + c)² − s²
    b2[2:4] = CONSTANT  # second units 2 and 3: a constant
    for unit in range(2, units - 1, 2):
        w1[:, unit] = w1[:, unit + 1] = torch.randint(-1, 2, (inputs,), generator=generator)
        w2[unit, [0, 2]], w2[unit + 1, [0, 2]] = 1, -1
    w3[[0, 2], label], w3[[1, 3], label] = 1, -1
    b3 = torch.zeros(third.fan[1], dtype=torch.int64)
    return torch.cat([w1.flatten(), b1, w2.flatten(), b2, w3.flatten(), b3]), direction


def rows_of_class(network: Network, gradient: list[list[int]], direction: Tensor) -> Tensor:
    """The attack: integer rows (n,F) of the class, from the first layer's part of one round's sum (F+1,H)."""
    shift = 2**network.input_bits
    large = shift**2 + CONSTANT * 2 ** network.parameters[1].place.in_scale  # Λ = c² + a·2^scale
    common = -8 * 2**network.out_scale
    columns = range(2, len(gradient[0]) - 1, 2)
    quotients = [[round_half(line[j] // common, large) for j in columns] for line in gradient[:-1]]
    rests = [
        [(line[j] // common - large * q) / (2 * shift) for j, q in zip(columns, row, strict=True)]
        for line, row in zip(gradient[:-1], quotients, strict=True)
    ]
    zeroth, first = torch.tensor(quotients, dtype=torch.float64), torch.tensor(rests, dtype=torch.float64)  # (F,q)
    left, values, right = torch.linalg.svd(zeroth, full_matrices=False)
    count = int((values > 1e-9 * values[0]).sum()) if float(values[0]) else 0
    if not 0 < count < len(columns):
        return torch.empty((0, len(direction)))
    left, values, right = left[:, :count], values[:count], right[:count]
    lengths, vectors = torch.linalg.eig(left.T @ first @ right.T / values)
    rows = left @ vectors.real  # (F,n)
    return (rows * (lengths.real / (direction.double() @ rows))).round().T


def round_half(value: int, by: int) -> int:
    """value/by to the nearest integer, exactly."""
    return (2 * value + by) // (2 * by)


def play(folder: Path, session: Session, data: list[tuple[Tensor, Tensor]], weights: list[Tensor]) -> Transcript:
    """Rounds with these weights, over simulated clients that follow the protocol; what the coordinator sees."""
    training = Training(session, Optimizer(), len(weights))
    recording = Recording(folder, ["coordinator"], session)
    federation = LocalFederation(session, training, data, no_dropouts(session.num_clients, 0), "coded", recording)
    for chosen in weights:
        training.weights = chosen
        federation.run_round()
    return Transcript(folder / "transcript" / "coordinator.transcript")


def found_by_class(folder: Path, network: Network, count: int, batch_size: int, honest: bool) -> tuple[int, int]:
    """One round for each class of digits: how many rows of the class were found, and how many were in the batch."""
    rows, labels = digits_rows(count)
    integers, targets = (rows * 16).long(), torch.nn.functional.one_hot(labels, 10)
    clients = [(integers[part], targets[part]) for part in torch.arange(count).chunk(10)]
    parameters = CodeParameters(10, batch_size=batch_size)
    session = Session(network, parameters, tuple(len(x) for x, _ in clients), seed=9)
    chosen = [chosen_weights(network, label, seed=label) for label in range(10)]
    sent = [session.network.initial_weights(session.stream)] * 10 if honest else [weights for weights, _ in chosen]
    seen = play(folder, session, clients, sent)
    right = there = 0
    for label, total in exact_sums(seen).items():
        places = batch_places(session, torch.tensor([label]))[0]
        wanted = {tuple(row) for row in integers[places[labels[places] == label]].tolist()}
        got = {tuple(row) for row in rows_of_class(network, first_layer(seen, total), chosen[label][1]).long().tolist()}
        right, there = right + len(wanted & got), there + len(wanted)
    return right, there


def test_one_round_for_each_class(tmp_path: Path) -> None:
    """The control sends the weights that an honest coordinator would."""
    network = mlp((64, 20, 4, 10), input_bits=4, weight_bits=10)
    right, there = found_by_class(tmp_path / "chosen", network, 200, batch_size=30, honest=False)
    assert there > 20
    assert right >= 0.9 * there
    assert found_by_class(tmp_path / "honest", network, 200, batch_size=30, honest=True)[0] == 0


@pytest.mark.attack
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("width", "batch_size"), [(32, 64), (64, 128), (96, 256)])
def test_digits(tmp_path: Path, width: int, batch_size: int, report) -> None:
    network = mlp((64, width, 32, 10), input_bits=4, weight_bits=10)
    right, there = found_by_class(tmp_path / "chosen", network, 1437, batch_size, honest=False)
    control, _ = found_by_class(tmp_path / "honest", network, 1437, batch_size, honest=True)
    report(
        setting=f"digits, width {width}, batch {batch_size}, one round for each class",
        found=right / there,
        rows=f"{right} of {there}",
        control="the weights of an honest coordinator",
        control_found=control / there,
    )
    assert right >= 0.9 * there
    assert control == 0
