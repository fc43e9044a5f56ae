"""A coordinator sends two sets of weights to two halves of the clients, and sees one batch twice in one round.

Each client answers a round for one set of weights, and no client sees what others are sent. If N is at least 2R, each
half decodes by itself, blinded or not: the masks are keyed by the weights, so those of a half belong together. Then two
gradients span batches of twice the first layer's width. If N is below 2R, one half has too few answers.
"""

import torch
from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.field import SecretSeed, unpacked
from dresfl.model import mlp
from dresfl.protocol import Answer, Client, Session, Task, encoded_answer
from dresfl.protocol.set_up import blinding_of
from dresfl.protocol.shares import MemoryAnswers, MemoryTable

from .least_squares import batch_places
from .runs import random_rows
from .test_span import exactly_right, meeting, pairs_that_share, span

ROUNDS = 14


class Clients:
    """Real clients that have dealt their rows, hold seeds, and answer what they are asked, blinded."""

    def __init__(self, session: Session, rows: Tensor, labels: Tensor) -> None:
        self.session, everybody = session, range(session.num_clients)
        self._tables = [MemoryTable(session) for _ in everybody]
        self._answered = [MemoryAnswers() for _ in everybody]
        targets = torch.nn.functional.one_hot(labels, session.network.num_classes)
        for i, part in enumerate(torch.arange(len(rows)).chunk(session.num_clients)):
            dealer = Client(session, i, SecretSeed.fresh(), (rows[part] * 16).long(), targets[part])
            for share in dealer.deal_to(everybody):
                self._tables[share.receiver].put(i, 0, share.residues)
        family = session.mask_family
        seeds = [SecretSeed.fresh() for _ in family.sets]
        held = [{number: seeds[number] for number in family.seed_sets.held_by(i)} for i in everybody]
        self._blinding = [blinding_of(session, i, held[i]) for i in everybody]

    def answer(self, client: int, task: Task) -> Answer:
        mine = self._tables[client], self._answered[client]
        message = encoded_answer(self.session, client, *mine, task, self._blinding[client])
        return Answer.decode_from(client, message, self.session)


def first_gradients(clients: Clients, number: int, groups: list[tuple[range, Tensor]]) -> Tensor:
    """The attack on one round: the first layer's part of each group's sum, side by side (F+1,·).

    groups: clients, and the weights that they are sent.
    """
    session = clients.session
    parts, p = [], session.network.parameters[0]
    for members, weights in groups:
        answers = [clients.answer(j, Task(number, weights)) for j in members][: session.recovery_threshold]
        residues = torch.stack([unpacked(answer.residues) for answer in answers], 1)
        total = session.field.lift(session.code.decode_sum(residues, [answer.client for answer in answers]))
        parts.append(total[p.weight.start : p.bias.stop].view(p.fan[0] + 1, p.fan[1]))
    return torch.cat(parts, 1)


def rows_of(clients: Clients, groups: list[tuple[range, Tensor]]) -> dict[int, Tensor]:
    """Integer rows by their place, from rounds that share one row."""
    session = clients.session
    spans = [span(first_gradients(clients, number, groups)) for number in range(ROUNDS)]
    rows = {}
    for i, j, place in pairs_that_share(batch_places(session, torch.arange(ROUNDS))):
        direction = meeting(spans[i], spans[j])
        if direction is not None and abs(float(direction[-1])) > 1e-9:
            rows[place] = (direction[:-1] / direction[-1] * 2**session.network.input_bits).round()
    return rows


def test_two_halves_give_rows_that_one_set_of_weights_hides() -> None:
    """Batch 14, width 8, N = 10, R = 5. The control sends the same weights to both halves."""
    true, labels = random_rows(90, 40, 3, seed=4)
    network = mlp((40, 8, 3), input_bits=4, weight_bits=10)
    session = Session(network, CodeParameters(10, batch_size=14), (9,) * 10, seed=0)
    one = network.initial_weights(session.stream)
    other = one + torch.randint(-99, 100, one.shape, generator=torch.Generator().manual_seed(0))
    rows = rows_of(Clients(session, true, labels), [(range(5), one), (range(5, 10), other)])
    assert len(rows) > 10
    assert exactly_right(rows, true) == len(rows)
    assert not rows_of(Clients(session, true, labels), [(range(5), one), (range(5, 10), one)])
