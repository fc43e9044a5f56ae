"""A client's mask seeds of a hidden run. They move on with every round, and old ones are forgotten.

    the run's seed    derived from the dealt seed and the run digest
    round r + 1       the seed of round r, moved on by a one-way step

Whoever takes over clients after a round cannot make the masks of rounds that are no longer kept, even with what was
recorded of them. A client keeps as many rounds back as a return can need (`KEPT`).
"""

from collections.abc import Mapping
from typing import NoReturn, final

from dresfl.errors import StoreError
from dresfl.field import SecretSeed
from dresfl.masking.hidden_masks import ratcheted_seeds

KEPT = 3  # rounds back: a client that replays the last round needs the weight broadcasts before it


@final
class RunSeeds:
    """The seeds of one run, from a round on."""

    def __init__(self, seeds: Mapping[int, SecretSeed], first_round: int = 0) -> None:
        """seeds: those of the round `first_round`, by number. `begin` makes those of round 0."""
        self.first_round = first_round
        self._rounds = {first_round: dict(seeds)}

    @classmethod
    def begin(cls, dealt: Mapping[int, SecretSeed], run: bytes) -> "RunSeeds":
        """The seeds of a new run, from what was dealt and the run digest."""
        return cls({number: seed.derive(b"hidden run" + run) for number, seed in dealt.items()})

    def __repr__(self) -> str:
        return f"RunSeeds(from round {self.first_round}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("seeds are not pickled")

    def of(self, round_number: int) -> Mapping[int, SecretSeed]:
        """The seeds of a round. StoreError if they are forgotten."""
        if round_number < self.first_round:
            raise StoreError(f"the mask seeds of round {round_number} are forgotten, on purpose")
        last = max(r for r in self._rounds if r <= round_number)
        seeds = self._rounds[last]
        for _ in range(last, round_number):
            seeds = ratcheted_seeds(seeds, b"round")
        self._rounds = {r: held for r, held in self._rounds.items() if r == self.first_round or r > round_number - KEPT}
        self._rounds[round_number] = seeds
        return seeds

    def forget(self, round_number: int) -> None:
        """Forget the seeds of all rounds before this one."""
        if round_number <= self.first_round:
            return
        self.of(round_number)
        self.first_round = round_number
        self._rounds = {r: seeds for r, seeds in self._rounds.items() if r >= round_number}
