"""The check of the dealers, at the coordinator: once after sharing, before the first round.

    waiting --everybody is Ready, or nothing moves any more--> checking --everybody has Checked, or time is up--> judged

Each client committed to its coin in its contribution, before anything was dealt, and shows it when every share is on
its disk. The coins together fix random combinations of all coded rows (protocol/dealer_check.py). Nobody can know them
while an honest client still waits for a share, so no dealer can prepare for them.

A client that is not there when the check begins, or does not answer it, holds up nobody for ever. It is not checked, so
its answers are not wanted in this run.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import final

import torch
from torch import Tensor

from dresfl.errors import MessageError, Refused
from dresfl.protocol import Session, Verdict, fewest_receivers, judge, num_combinations

from .terms import NO_COIN, Terms


def checkers_needed(session: Session) -> int:
    """How many clients must take part in the check of the dealers if it does not wait for the others."""
    return max(session.answers_needed, fewest_receivers(session))


@final
class Checking:
    """Coins and check values in, a verdict out."""

    def __init__(self, terms: Terms, session: Session) -> None:
        """terms: with coins, if the check had begun before the coordinator was started again."""
        self._terms, self._session = terms, session
        self._shown: dict[int, bytes] = {}
        self._values: dict[int, Tensor] = {}  # client -> (M, dealers, t)
        self._hashes: dict[int, dict[int, bytes]] = {}  # client -> number of a set -> hash of its seed
        self.coins = terms.coins  # what the check is made with, once it has begun
        self.different_seeds: list[tuple[int, int]] = []  # dealer of a seed, and holder of another one than most hold

    @property
    def participants(self) -> list[int]:
        """The clients that take part in the check, once it has begun."""
        return [client for client, coin in enumerate(self.coins or ()) if coin != NO_COIN]

    def missing(self) -> list[int]:
        """The clients that are waited for."""
        if self.coins is None:
            return [client for client in range(self._session.num_clients) if client not in self._shown]
        return [client for client in self.participants if client not in self._values]

    def ready(self, client: int, coin: bytes) -> None:
        """A client has every share on its disk, and shows its coin."""
        if not self._terms.is_coin(client, coin):
            raise Refused("the client's coin is not the one that it committed to", "start a new run in a new folder")
        self._shown[client] = coin

    def begin(self, clients: Collection[int]) -> tuple[bytes, ...]:
        """Fix the coins: those of these clients, who have shown them. There is one set of coins for a sharing."""
        if self.coins is None:
            everybody = range(self._session.num_clients)
            self.coins = tuple(self._shown[client] if client in clients else NO_COIN for client in everybody)
        return self.coins

    def checked(self, client: int, hashes: Sequence[bytes], packed: bytes | memoryview) -> None:
        """A client's check values, and its hashes of the mask seeds that it holds."""
        if client not in self.participants:
            raise MessageError("check values came that were not asked for")
        held = self._session.seed_sets.held_by(client)
        if len(hashes) != len(held):
            raise MessageError(f"{len(hashes)} hashes of seeds came, but client {client} holds {len(held)}")
        shape = self._session.num_clients, num_combinations(self._session)
        self._values[client] = self._session.field.unpack(packed, shape)  # (M,N,t)
        self._hashes[client] = dict(zip(held, hashes, strict=True))

    def verdict(self) -> Verdict:
        """What those who have answered the check conclude of everybody.

        A client that holds another seed than most cannot blind with them: it deviates.
        """
        there = sorted(self._values)
        verdict = judge(self._session, torch.stack([self._values[client] for client in there], 3), there)
        seed_sets, self.different_seeds = self._session.seed_sets, []
        for number in range(len(seed_sets.sets)):
            dealer = seed_sets.dealer(number)
            hashes = {c: self._hashes[c][number] for c in seed_sets.holders(number) if c in self._hashes}
            first = [dealer] if dealer in hashes else []  # of equals, the dealer's counts
            counts = Counter(hashes[c] for c in (*first, *(c for c in hashes if c != dealer)))
            most = counts.most_common(1)[0][0] if counts else b""
            self.different_seeds += [(dealer, holder) for holder, found in hashes.items() if found != most]
        deviating = {*verdict.deviating, *(holder for _, holder in self.different_seeds)}
        return Verdict(verdict.excluded, tuple(sorted(deviating)))
