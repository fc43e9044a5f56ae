"""Hidden runs to attack, and all that the coordinator and one client see of them together.

The coordinator sees every published value u = z + r. A client knows all masks whose seeds it holds: with T = 1 all but
one of the n masks in each r. So u less the masks that the client knows is the most that both together have of z.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.masking import HiddenMasks
from dresfl.masking.hidden_masks import mask_sum
from dresfl.model import Network, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session
from dresfl.protocol.hidden import published as publishing
from dresfl.protocol.hidden.client import HiddenClient
from dresfl.protocol.hidden.plan import Hop, make_plan
from dresfl.protocol.hidden.published import opened_integers, split
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.local.hidden import HiddenFederation

Data = list[tuple[Tensor, Tensor]]


def hidden_session(
    network: Network | tuple[int, ...],
    client_rows: Sequence[int],
    *,
    rounds: int,
    batch_size: int,
    num_shards: int = 1,
    max_colluders: int = 1,
    max_liars: int = 0,
    learning_rate: float = 0.05,
    run: bytes = bytes(32),
    **settings: object,
) -> Session:
    """A session of the hidden mode. network: a network, or the sizes of one."""
    if isinstance(network, tuple):
        network = mlp(network, input_bits=4, weight_bits=10)
    parameters = CodeParameters(len(client_rows), num_shards, max_colluders, batch_size, max_liars)
    chosen = HiddenSettings(**{"schedule": "S4", "trusted_dealers": True, **settings})  # type: ignore[arg-type]
    optimizer = Optimizer("momentum", learning_rate, "constant")
    plan = make_plan(network, parameters, chosen, optimizer, rounds, client_rows=client_rows)
    return Session(plan.network, parameters, tuple(client_rows), seed=3, hidden=plan, run=run)


def spread(rows: Tensor, labels: Tensor, num_clients: int, num_classes: int) -> Data:
    """Rows of sixteenths, spread over clients in their order, as integers; and one-hot targets."""
    parts = torch.arange(len(rows)).chunk(num_clients)
    return [((rows[p] * 16).round().long(), torch.nn.functional.one_hot(labels[p], num_classes)) for p in parts]


def federation_of(rows: Tensor, labels: Tensor, sizes: tuple[int, ...], num_clients: int = 6, **settings: object):
    """A federation over these rows (m,F) in 0..1."""
    data = spread(rows, labels, num_clients, sizes[-1])
    session = hidden_session(sizes, [len(inputs) for inputs, _ in data], **settings)  # type: ignore[arg-type]
    return HiddenFederation(session, data)


def without_masks(patch: pytest.MonkeyPatch) -> None:
    """Set all masks to zero: what is published is then z itself. The control of every passive attack."""

    def nothing(self: HiddenMasks, label: bytes, bits: int, count: int, *, total: bool) -> tuple[Tensor, Tensor]:
        share = torch.zeros((len(self.field.moduli), count), dtype=self.field.dtype)
        return share, share

    patch.setattr(HiddenMasks, "bounded", nothing)
    patch.setattr(publishing, "centre", lambda num_masks, shift: 1 << (shift - 1))  # no masks, no mean to take away
    patch.setattr(f"{__name__}.mask_sum", lambda seeds, label, bits, count, shards: [[0] * count] * shards)


# -- what is seen --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeenHop:
    """One published hop: for each item its values u, and the sums of the masks that the client knows in them."""

    round_number: int
    hop: Hop
    values: list[list[int]]  # signed integers
    known: list[list[int]]

    def unmasked(self, item: int) -> list[int]:
        """u less all masks that the client knows."""
        return [u - r for u, r in zip(self.values[item], self.known[item], strict=True)]


@dataclass(frozen=True)
class Seen:
    """All that the coordinator and one client see of a run: hops, the client's shares of the weights, the end."""

    session: Session
    hops: list[SeenHop]
    weight_shares: list[Tensor]  # (M,P) at the beginning of every round
    model: Tensor  # (P,)

    def of(self, place: int) -> list[SeenHop]:
        """The hops number `place` of all rounds but the final one."""
        rounds = self.session.hidden_plan.rounds
        by_round: dict[int, list[SeenHop]] = {}
        for hop in self.hops:
            by_round.setdefault(hop.round_number, []).append(hop)
        return [by_round[number][place] for number in range(rounds)]


def record(federation: HiddenFederation, spy: int = 0) -> Seen:
    """Play a run to its end; all that the coordinator and the client `spy` see of it."""
    session, hops, shares = federation.session, [], []
    size = session.network.num_parameters
    while not federation.ledger.ended:
        client, ledger = federation.clients[spy], federation.ledger
        if ledger.hop == 0:
            shares.append(client._weights[:, 0, :size].clone())
        number, hop, known = ledger.round_number, ledger.current, known_masks(client)
        opened = federation.play_hop()
        hops.append(SeenHop(number, hop, integers_of(session, hop, opened.published), known))
    model = federation.clients[spy].model
    assert model is not None
    return Seen(session, hops, shares, model)


def known_masks(client: HiddenClient) -> list[list[int]]:
    """The sums of those masks of the next hop whose seeds this client holds: for each item, shard after shard."""
    session, ledger, found = client.session, client.ledger, []
    masks, families = client._masks, session.hidden_families
    seeds = [masks.seeds[s] for s in families.mask_seeds if client.index not in families.mask_sets[s]]
    for number, item in enumerate(ledger.current.items):
        shards = 1 if item.total else session.num_shards
        if item.shift is None:
            found.append([0] * (item.count * shards))
            continue
        bits = client._plan.mask_bits(item)
        high, low = (
            list(itertools.chain(*mask_sum(seeds, ledger.label(purpose, number), size, item.count, shards)))
            for purpose, size in ((b"high", bits), (b"low", item.shift))
        )
        found.append([(h << item.shift) + x for h, x in zip(high, low, strict=True)])
    return found


def integers_of(session: Session, hop: Hop, published: bytes) -> list[list[int]]:
    """What a hop published, item by item, as signed integers."""
    residues = publishing.unpack_published(session, hop, published)
    return [opened_integers(session.field, part) for part in split(hop, residues)]
