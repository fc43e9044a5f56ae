"""A row count that is too large thins out the batches, until a batch holds one honest row.

The rows of all clients, end to end, are cut into B strata, and a batch has one row of each. Who claims very many rows
fills nearly all strata with rows that it knows. It subtracts their part of the sum, and what is left is the gradient of
one honest row. A coordinator that says in the terms that an honest client has more rows than it has is refused by that
client. A client that claims rows of its own must deal them, and nobody can see that they are empty. So the attack below
is the coordinator's together with one client.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from consortium import Consortium
from dresfl.api.simulate import simulate
from dresfl.errors import Refused
from dresfl.federation import Terms
from dresfl.federation.terms import Introduction
from dresfl.model import Network, mlp
from dresfl.protocol import coded_gradient
from dresfl.storage.transcript import Transcript

from .least_squares import batch_places
from .runs import OPTIMIZER, digits_rows, exact_sums, first_layer, random_rows


def rows_left_over(transcript: Transcript, known: Tensor) -> dict[int, Tensor]:
    """The attack: integer rows by their place, if the first rows (n,W) of all are known to the attacker.

    Where a batch has one other row, the sum less the known rows' part is x·dᵀ: every column is that row.
    """
    session, weights = transcript.session, transcript.weights()
    modulus, rows = session.field.modulus, {}
    for number, total in exact_sums(transcript).items():
        places = batch_places(session, torch.tensor([number]))[0]
        others = places[places >= len(known)].tolist()
        if len(others) != 1:
            continue
        residues = session.field.embed(known[places[places < len(known)]]).unsqueeze(1)
        part = session.field.lift_exact(coded_gradient(session, weights[number], residues)[:, 0])
        left = [(a - b + modulus // 2) % modulus - modulus // 2 for a, b in zip(total, part, strict=True)]
        layer = first_layer(transcript, left)
        unit = max(range(len(layer[0])), key=lambda j: abs(layer[-1][j]))
        scale = 2**session.network.input_bits
        if layer[-1][unit]:
            rows[others[0]] = torch.tensor([round(line[unit] * scale / layer[-1][unit]) for line in layer[:-1]])
    return rows


def isolated(folder: Path, network: Network, data: tuple[Tensor, Tensor], claimed: int, **run: Any) -> tuple[int, int]:
    """A run in which client 0 claims empty rows, and others have honest ones: how many were computed, and are right."""
    true, labels = data
    honest = [(true[part], labels[part]) for part in torch.arange(len(true)).chunk(run.pop("others"))]
    empty = torch.zeros((claimed, true.shape[1])), torch.zeros(claimed, dtype=torch.int64)
    simulate(network, [empty, *honest], optimizer=OPTIMIZER, threads=1, record=folder, recorded=["coordinator"], **run)
    known = torch.cat([empty[0], torch.eye(network.num_classes)[empty[1]]], 1).long()
    rows = rows_left_over(Transcript(folder / "transcript" / "coordinator.transcript"), known)
    right = sum(torch.equal(row, (true[place - claimed] * 16).long()) for place, row in rows.items())
    return len(rows), right


@pytest.mark.parametrize(("claimed", "succeeds"), [(300, True), (4, False)])
def test_a_client_with_many_empty_rows_isolates_others(tmp_path: Path, claimed: int, succeeds: bool) -> None:
    """Batch 16, width 6: larger than the span attack allows. The control claims as many rows as the others have."""
    network = mlp((24, 6, 3), input_bits=4, weight_bits=10)
    data = random_rows(20, 24, 3, seed=7)
    computed, right = isolated(tmp_path, network, data, claimed, others=5, rounds=60, batch_size=16)
    assert right == computed
    assert right > 10 if succeeds else right == 0


@pytest.mark.attack
def test_digits(tmp_path: Path, report) -> None:
    network = mlp((64, 32, 32, 10), input_bits=4, weight_bits=10)
    run = {"others": 19, "rounds": 400, "batch_size": 64}
    computed, right = isolated(tmp_path / "many", network, digits_rows(1437), 100_000, **run)
    _, control = isolated(tmp_path / "few", network, digits_rows(1437), 76, **run)
    report(
        setting="digits, one of 20 clients claims 100,000 empty rows, batch 64, width 32, 400 rounds",
        found=right / 1437,
        rows=f"{right} of {computed} tried",
        control="it claims 76 rows, as many as the others have",
        control_found=control / 1437,
    )
    assert right == computed > 200
    assert control == 0


def test_terms_that_misstate_a_clients_rows_are_refused(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    clients = [Introduction(len(inputs), bytes([i]) * 64) for i, (inputs, _) in enumerate(consortium.rows)]
    terms = Terms.settle(clients)
    terms.check_for(consortium.agreement, 2, clients[2].rows, own=True, held_nonces=())
    clients[2] = Introduction(clients[2].rows + 1000, bytes([2]) * 64)
    with pytest.raises(Refused, match="rows"):
        Terms.settle(clients).check_for(consortium.agreement, 2, clients[2].rows - 1000, own=True, held_nonces=())
