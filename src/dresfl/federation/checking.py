"""The check of the dealers, at the coordinator: once after sharing, before the first round.

    waiting --every client's Ready, with its coin--> checking --every client's Checked--> judged

Each client committed to its coin in its contribution, before anything was dealt, and shows it when every share is on
its disk. The coins together fix random combinations of all coded rows (protocol/dealer_check.py). Nobody can know them
while an honest client still waits for a share, so no dealer can prepare for them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from dresfl.errors import MessageError, Refused
from dresfl.protocol import Session, Verdict, judge, num_combinations

from .terms import Terms


@final
class Checking:
    """Coins and check values in, a verdict out."""

    def __init__(self, terms: Terms, session: Session) -> None:
        self._terms, self._session = terms, session
        self._coins: dict[int, bytes] = {}
        self._values: dict[int, Tensor] = {}  # client -> (M, dealers, t)
        self._hashes: dict[int, dict[int, bytes]] = {}  # client -> number of a set -> hash of its seed
        self.different_seeds: list[tuple[int, int]] = []  # dealer of a seed, and holder of another one than most hold

    @property
    def coins(self) -> tuple[bytes, ...] | None:
        """Everybody's coins, once they are all known."""
        if len(self._coins) < self._session.num_clients:
            return None
        return tuple(self._coins[client] for client in range(self._session.num_clients))

    def missing(self) -> list[int]:
        """The clients that are waited for."""
        come = self._coins if self.coins is None else self._values
        return [client for client in range(self._session.num_clients) if client not in come]

    def ready(self, client: int, coin: bytes) -> None:
        """A client has every share on its disk, and shows its coin."""
        if not self._terms.is_coin(client, coin):
            raise Refused("the client's coin is not the one that it committed to", "start a new run in a new folder")
        self._coins[client] = coin

    def checked(self, client: int, hashes: Sequence[bytes], packed: bytes | memoryview) -> Verdict | None:
        """A client's check values, and its hashes of the mask seeds that it holds; the last one's give the verdict."""
        if self.coins is None:
            raise MessageError("check values came before the coins were known")
        held = self._session.mask_family.held_by(client)
        if len(hashes) != len(held):
            raise MessageError(f"{len(hashes)} hashes of seeds came, but client {client} holds {len(held)}")
        shape = self._session.num_clients, num_combinations(self._session)
        self._values[client] = self._session.field.unpack(packed, shape)  # (M,N,t)
        self._hashes[client] = dict(zip(held, hashes, strict=True))
        return self._judged() if len(self._values) == self._session.num_clients else None

    def _judged(self) -> Verdict:
        """The verdict on everybody. A client that holds another seed than most cannot blind with them: it deviates."""
        clients = range(self._session.num_clients)
        verdict = judge(self._session, torch.stack([self._values[client] for client in clients], 3))
        family = self._session.mask_family
        for number in range(len(family.sets)):
            dealer, hashes = family.dealer(number), {c: self._hashes[c][number] for c in family.holders(number)}
            counts = Counter([hashes[dealer], *hashes.values()])  # of equals, the dealer's counts
            most = counts.most_common(1)[0][0]
            self.different_seeds += [(dealer, holder) for holder, found in hashes.items() if found != most]
        deviating = {*verdict.deviating, *(holder for _, holder in self.different_seeds)}
        return Verdict(verdict.excluded, tuple(sorted(deviating)))
