"""The check of the dealers, at the coordinator: once after sharing, before the first round.

    waiting --everybody is Ready, or nothing moves any more--> checking --everybody has Checked, or time is up--> judged

Each client committed to its coin in its contribution, before anything was dealt, and shows it when every share is on
its disk. The coins together fix random combinations of all coded rows (protocol/dealer_check.py), and in the hidden
mode the factors of the proofs that rows are in range (protocol/hidden/range_proof.py). Nobody can know them while an
honest client still waits for a share, so no dealer can prepare for them.

A client that is not there when the check begins, or does not answer it, holds up nobody for ever. It is not checked, so
its answers are not wanted in this run.
"""

from collections.abc import Collection, Sequence
from typing import final

from dresfl.errors import MessageError, Refused
from dresfl.protocol import Findings, Session, Verdict, conclude

from .terms import NO_COIN, Terms


@final
class Checking:
    """Coins and check values in, a verdict out."""

    def __init__(self, terms: Terms, session: Session) -> None:
        """terms: with coins, if the check had begun before the coordinator was started again."""
        self._terms, self._session = terms, session
        self._shown: dict[int, bytes] = {}
        self._found: dict[int, Findings] = {}
        self.coins = terms.coins  # what the check is made with, once it has begun
        # the dealer of a seed, and a holder of another one than most hold
        self.different_seeds: tuple[tuple[int, int], ...] = ()

    @property
    def participants(self) -> list[int]:
        """The clients that take part in the check, once it has begun."""
        return [client for client, coin in enumerate(self.coins or ()) if coin != NO_COIN]

    def missing(self) -> list[int]:
        """The clients that are waited for."""
        if self.coins is None:
            return [client for client in range(self._session.num_clients) if client not in self._shown]
        return [client for client in self.participants if client not in self._found]

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
        self._found[client] = Findings.unpack(self._session, client, tuple(hashes), packed)

    def verdict(self) -> Verdict:
        """What those who have answered the check conclude of everybody.

        TooFewAnswers: the ranges of rows cannot be judged by those who have answered, or who do not deviate.
        """
        conclusion = conclude(self._session, self._found)
        self.different_seeds = conclusion.different_seeds
        return conclusion.verdict
