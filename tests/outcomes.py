"""Public randomness whose outcome a test chooses: to try all of them, where a real stream gives one."""

from fractions import Fraction

import torch
from torch import Tensor

from dresfl.field import Domain
from dresfl.protocol import Session


class Outcomes:
    """Takes the place of a session's streams.

    draws: of each draw of the next batch ⌊word·m/2^64⌋, 0 to m − 1; all are equally likely. coin: the rounding noise.
    """

    def __init__(self, session: Session) -> None:
        self.total = sum(session.client_rows)
        self.draws: tuple[int, ...] = ()
        self.coin = Fraction(1, 2)
        for name in ("stream", "device_stream"):
            session.__dict__[name] = self  # both are cached properties

    def words_of(self, domain: Domain, indices: Tensor, count: int) -> Tensor:
        assert (domain, count) == (Domain.BATCH, 2 * len(self.draws))
        words = [self.first_word(x) for x in self.draws]
        halves = [half for word in words for half in (word >> 32, word & (2**32 - 1))]
        return torch.tensor([halves] * len(indices))

    def first_word(self, x: int) -> int:
        """The first of 2^64 words with ⌊word·m/2^64⌋ = x."""
        return -(-x * 2**64 // self.total)

    def uniform_from(self, domain: Domain, index: int, first: int, count: int) -> Tensor:
        assert domain == Domain.ROUNDING
        return torch.full((count,), float(self.coin), dtype=torch.float64)
