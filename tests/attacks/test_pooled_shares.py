"""T + 1 clients pool their shares and have the rows, by design. T clients have nothing, whatever they compute.

K shards and T masks make a polynomial of degree K+T−1. So K+T clients can interpolate it for any rows. For K = 1
that is T + 1. T clients of them see masks alone: each of their views is equally likely for all rows.
"""

import itertools
from collections import Counter

import pytest
import torch
from torch import Tensor

from dresfl.coding import CodeParameters, LagrangeCode
from dresfl.field import ResidueField, SecretSeed
from dresfl.model import mlp
from dresfl.protocol import Client, Session

from .runs import random_rows

flint = pytest.importorskip("flint")


def rows_from_shares(session: Session, shares: dict[int, Tensor]) -> Tensor:
    """The attack: rows (K·rows,W) of a dealer from its shares (M,rows,W) for some clients, in the first prime alone.

    It solves for shards and masks if the clients suffice. If not, it takes the missing masks for zero.
    """
    p = session.field.moduli[0]
    clients = sorted(shares)
    unknown = min(len(clients), session.num_shards + session.max_colluders)
    matrix = session.code.encoding_matrix[0][clients[:unknown], :unknown]  # (n,K+T)
    flat = torch.stack([shares[client][0].flatten() for client in clients[:unknown]])
    left = flint.nmod_mat([[int(v) % p for v in line] for line in matrix.tolist()], p)
    right = flint.nmod_mat([[int(v) % p for v in line] for line in flat.tolist()], p)
    solved = left.solve(right).tolist()[: session.num_shards]
    signed = [[int(v) - p if int(v) > p // 2 else int(v) for v in line] for line in solved]
    count, width = shares[clients[0]].shape[1:]
    return torch.tensor(signed).view(-1, count, width).swapaxes(0, 1).flatten(0, 1)


@pytest.mark.parametrize(("num_shards", "max_colluders"), [(1, 1), (1, 2), (2, 1)])
def test_enough_clients_have_the_rows_and_fewer_do_not(num_shards: int, max_colluders: int) -> None:
    rows, labels = random_rows(6, 5, 3, seed=6)
    parameters = CodeParameters(13, num_shards, max_colluders, batch_size=4)
    session = Session(mlp((5, 4, 3), input_bits=4, weight_bits=8), parameters, (6,) * 13, seed=1)
    inputs, targets = (rows * 16).long(), torch.nn.functional.one_hot(labels, 3)
    dealer = Client(session, 0, SecretSeed.fresh(), inputs, targets)
    enough = num_shards + max_colluders
    pool = {client: dealer.deal(client).residues for client in range(3, 3 + enough)}
    assert torch.equal(rows_from_shares(session, pool), torch.cat((inputs, targets), 1))
    fewer = {client: pool[client] for client in list(pool)[:max_colluders]}
    guess = rows_from_shares(session, fewer)
    assert not (guess.unsqueeze(1) == torch.cat((inputs, targets), 1)).all(2).any()


@pytest.mark.parametrize("pooled", [1, 2, 3])
def test_every_view_of_t_clients_is_equally_likely_for_all_rows(pooled: int) -> None:
    """All masks modulo 11, N = 4, T = 2: what some clients hold together has one distribution, up to T of them."""
    field = ResidueField((11,), num_value_moduli=1)
    code = LagrangeCode(field, num_clients=4, num_shards=1, max_colluders=2, degree=1)
    seen = []
    for row in (0, 3, 10):
        views: Counter[tuple[float, ...]] = Counter()
        for masks in itertools.product(range(11), repeat=2):
            shards = field.embed(torch.tensor([[row]])).view(1, 1, 1, 1)
            coded = code.encode(shards, field.embed(torch.tensor([masks])).view(1, 2, 1, 1), list(range(pooled)))
            views[tuple((coded.flatten() % 11).tolist())] += 1
        seen.append(views)
    assert (seen[0] == seen[1] == seen[2]) == (pooled <= 2)
