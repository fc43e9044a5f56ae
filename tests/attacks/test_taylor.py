"""The coordinator and one client together compute the batch of one round, if answers are not blinded.

A client's answer is G(α_j) = g(u(α_j)), with g the gradient and u(z) the coded batch of degree K+T−1. R answers fix
the polynomial G. The client c knows u_0 = u(α_c). Write u(α_c + h) = u_0 + u_1·h + u_2·h² + … The coefficient of h in
G(α_c + h) is ∇g(u_0)·u_1: linear in the unknown u_1. The coefficient of h² is ∇g(u_0)·u_2 plus what u_0 and u_1
decide, and so on. Each step solves one linear system modulo one prime. Then u is known, and its values at the
data points are the rows.

Blinding ends this: the answers are then those of G + ζ, with a random ζ that has sum zero over the data points. The
client knows some of the seeds. It takes off what they explain. What is left of ζ vanishes at α_c and is random
elsewhere.
"""

import pytest
import torch
from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.field import SecretSeed
from dresfl.model import mlp, weights_sha256
from dresfl.protocol import Client, Session, Task, answer_from_shares, coded_gradient
from dresfl.protocol.set_up import blinding_of, opening_label
from dresfl.protocol.shares import MemoryAnswers, MemoryTable

from .runs import random_rows

flint = pytest.importorskip("flint")


class OnePrime:
    """The session's arithmetic in its first prime alone, as the attacker uses it."""

    def __init__(self, session: Session, weights: Tensor) -> None:
        self.session, self.weights, self.p = session, weights, session.field.moduli[0]

    def gradient(self, rows: Tensor) -> list[list[int]]:
        """g of some batches: integers (n,B,W) modulo p -> (n,P)."""
        answers = coded_gradient(self.session, self.weights, self.session.field.embed(rows))
        return (answers[0].long() % self.p).tolist()

    def coefficients(self, points: list[int], values: list[list[int]]) -> list[list[int]]:
        """The polynomials through values (n,P) at n points, lowest coefficient first: (n,P)."""
        p = self.p
        powers = flint.nmod_mat([[pow(x, k, p) for k in range(len(points))] for x in points], p)
        return [[int(v) for v in line] for line in powers.solve(flint.nmod_mat(values, p)).tolist()]


def jacobian(prime: OnePrime, at: Tensor) -> list[list[int]]:
    """∇g at a coded batch (B,W): one line for each of the B·W values, one column for each of the P parameters."""
    degree = prime.session.network.gradient_degree
    size, width = at.shape
    lines = []
    for row in range(size):  # g is a sum over rows: only this row's part changes
        moved = at[row].repeat(width, degree + 1, 1)  # (W,d+1,W)
        for step in range(degree + 1):
            moved[:, step] += step * torch.eye(width, dtype=torch.int64)
        values = prime.gradient((moved % prime.p).view(-1, 1, width))
        for i in range(width):
            along = values[i * (degree + 1) : (i + 1) * (degree + 1)]
            lines.append(prime.coefficients(list(range(degree + 1)), along)[1])
    return lines


def batch_from_answers(
    session: Session, weights: Tensor, answers: dict[int, Tensor], colluder: int, own: Tensor
) -> Tensor:
    """The attack: the rows (B·K,W) of one round's batch, from R answers (M,P) and the colluder's shares (B,W) of it.

    ValueError if the answers are not those of any batch that agrees with the shares.
    """
    prime, code = OnePrime(session, weights), session.code
    p, degree = prime.p, session.num_shards + session.max_colluders - 1
    clients = sorted(answers)[: session.recovery_threshold]
    here = code.client_points[colluder]
    known = [(answers[client][0].long() % p).tolist() for client in clients]
    taylor = prime.coefficients([(code.client_points[client] - here) % p for client in clients], known)  # of G(α_c + h)
    lines = jacobian(prime, own)  # (BW,P)
    system = flint.nmod_mat(lines, p).transpose()
    curve = [own]  # u_0, u_1, …
    for order in range(1, degree + 1):
        points = list(range(session.network.gradient_degree * degree + 1))
        along = torch.stack([sum(u * pow(h, k, p) for k, u in enumerate(curve)) % p for h in points])
        decided = prime.coefficients(points, prime.gradient(along))[order]
        wanted = [(a - b) % p for a, b in zip(taylor[order], decided, strict=True)]
        curve.append(torch.tensor(solved(system, wanted, p)).view_as(own))
    shards = [sum(u * pow(beta - here, k, p) for k, u in enumerate(curve)) % p for beta in code.data_points]
    rows = torch.stack(shards, 1).flatten(0, 1)  # (B·K,W)
    return torch.where(rows > p // 2, rows - p, rows)


def solved(system: "flint.nmod_mat", wanted: list[int], p: int) -> list[int]:
    """The one solution x of system·x = wanted modulo p. ValueError if there is none, or more than one."""
    lines, unknowns = system.nrows(), system.ncols()
    whole = flint.nmod_mat([[*map(int, line), w] for line, w in zip(system.tolist(), wanted, strict=True)], p)
    reduced, rank = whole.rref()
    if rank != unknowns or lines < unknowns or int(reduced[unknowns - 1, unknowns - 1]) != 1:
        raise ValueError("no batch, or more than one, explains the answers")
    return [int(reduced[i, unknowns]) for i in range(unknowns)]


class Round:
    """One round with real clients: rows dealt, a task answered."""

    def __init__(self, num_shards: int, max_colluders: int) -> None:
        network = mlp((5, 8, 2), input_bits=4, weight_bits=8)
        needed = network.gradient_degree * (num_shards + max_colluders - 1) + 1
        count = needed + 2
        self.session = session = Session(
            network, CodeParameters(count, num_shards, max_colluders, batch_size=3), (4,) * count, seed=8
        )
        self.rows = []
        tables = [MemoryTable(session) for _ in range(count)]
        for i in range(count):
            inputs, labels = random_rows(4, 5, 2, seed=i)
            rows = (inputs * 16).long(), torch.nn.functional.one_hot(labels, 2)
            self.rows.append(torch.cat(rows, 1))
            dealer = Client(session, i, SecretSeed.fresh(), *rows)
            for share in dealer.deal_to(range(count)):
                tables[share.receiver].put(i, 0, share.residues)
        self.weights = network.initial_weights(session.stream)
        task = Task(0, self.weights)
        self.answers = {
            i: answer_from_shares(session, i, tables[i], MemoryAnswers(), task).residues for i in range(count)
        }
        batch = session.batch_rows(0)
        self.shares = tables[1].rows(batch.dealers, batch.rows)[0].long() % session.field.moduli[0]  # client 1's, (B,W)
        pairs = zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)
        self.true = torch.cat([self.rows[d][session.shard_rows(d)[r]] for d, r in pairs])

    def blinded(self, known_to: int) -> dict[int, Tensor]:
        """The answers as clients blind them, less what one client's seeds explain."""
        session, family = self.session, self.session.mask_family
        seeds = {number: SecretSeed.fresh() for number in range(len(family.sets))}
        label = opening_label(session, 0, bytes.fromhex(weights_sha256(self.weights)))
        held, answers = set(family.seed_sets.held_by(known_to)), {}
        for client, answer in self.answers.items():
            unknown = {number: seeds[number] for number in family.seed_sets.held_by(client) if number not in held}
            mask = blinding_of(session, client, unknown).values(label, answer.shape[1])
            answers[client] = session.field.add(answer, mask)
        return answers


@pytest.mark.parametrize(("num_shards", "max_colluders"), [(1, 1), (2, 1), (1, 2)])
def test_all_rows_of_one_round_and_none_with_blinding(num_shards: int, max_colluders: int) -> None:
    one = Round(num_shards, max_colluders)
    rows = batch_from_answers(one.session, one.weights, one.answers, 1, one.shares)
    assert torch.equal(rows, one.true)
    blinded = one.blinded(known_to=1)
    survivors = list(range(one.session.recovery_threshold))
    before, after = (torch.stack([answers[j] for j in survivors], 1) for answers in (one.answers, blinded))
    decode = one.session.code.decode_sum
    assert torch.equal(decode(before, survivors), decode(after, survivors))  # the sum is the same
    with pytest.raises(ValueError, match="no batch"):
        batch_from_answers(one.session, one.weights, blinded, 1, one.shares)


@pytest.mark.attack
@pytest.mark.parametrize(("num_shards", "max_colluders"), [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3)])
def test_any_shards_and_colluders(num_shards: int, max_colluders: int, report) -> None:
    one = Round(num_shards, max_colluders)
    rows = batch_from_answers(one.session, one.weights, one.answers, 1, one.shares)
    with pytest.raises(ValueError, match="no batch"):
        batch_from_answers(one.session, one.weights, one.blinded(known_to=1), 1, one.shares)
    report(
        setting=f"one round, coordinator and one client, K = {num_shards}, T = {max_colluders}, answers not blinded",
        found=float((rows == one.true).all(1).double().mean()),
        control="answers blinded",
        control_found=0.0,
    )
    assert torch.equal(rows, one.true)
