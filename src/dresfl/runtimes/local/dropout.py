"""Who answers in a simulated round. The draws depend on the seed and the round only, so every method sees the same."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import Domain, PublicStream

PAPER_HIGH_RATE = 0.99
PAPER_LOW_RATES = 0.1


@final
@dataclass(frozen=True)
class Dropouts:
    """Each client misses each round with its own rate; or a recorded trace says who answered.

    >>> sorted(Dropouts(rates=(0.0, 1.0, 0.0), seed=0).answering(5)) == [0, 2]
    True
    """

    rates: tuple[float, ...]
    seed: int
    trace: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if any(not 0 <= rate <= 1 for rate in self.rates):
            raise UsageError("dropout rates must lie in 0..1")

    @cached_property
    def _rates(self) -> Tensor:
        return torch.tensor(self.rates, dtype=torch.float64)

    @property
    def num_reliable(self) -> int:
        """How many clients answer more often than not."""
        return sum(rate < 0.5 for rate in self.rates)

    def answering(self, round_number: int) -> list[int]:
        """The clients that answer in a round, in order of arrival."""
        return self.answering_in(range(round_number, round_number + 1))[0]

    def answering_in(self, rounds: range) -> list[list[int]]:
        """`answering` for several rounds at once."""
        if self.trace:
            return [list(self.trace[number % len(self.trace)]) for number in rounds]
        stream, numbers, count = PublicStream(self.seed), torch.tensor(rounds), len(self.rates)
        alive = stream.uniform_of(Domain.DROPOUTS, numbers, count) >= self._rates
        arrivals = stream.words_of(Domain.ARRIVALS, numbers, count)
        order = torch.where(alive, arrivals, 2**32).argsort(dim=1, stable=True)  # the absent come last
        return [row[:living] for row, living in zip(order.tolist(), alive.sum(1).tolist(), strict=True)]


def no_dropouts(num_clients: int, seed: int) -> Dropouts:
    """Everybody answers always."""
    return bernoulli(num_clients, 0.0, seed)


def bernoulli(num_clients: int, rate: float, seed: int) -> Dropouts:
    """Every client misses a round with the same probability.

    >>> bernoulli(2, 0.25, seed=0).rates == (0.25, 0.25)
    True
    """
    return Dropouts((rate,) * num_clients, seed)


def paper(num_clients: int, seed: int) -> Dropouts:
    """The paper's: a client's rate is 0.99 with probability ½, else uniform in [0, 0.1]; drawn once per client.

    >>> all(rate == 0.99 or rate <= 0.1 for rate in paper(20, seed=1).rates)
    True
    """
    draws = PublicStream(seed).uniform(Domain.DROPOUT_RATES, 0, 2 * num_clients).tolist()
    rates = (
        PAPER_HIGH_RATE if coin < 0.5 else PAPER_LOW_RATES * level
        for coin, level in zip(draws[::2], draws[1::2], strict=True)
    )
    return Dropouts(tuple(rates), seed)


def first_feasible_seed(num_clients: int, needed: int, start: int = 0) -> tuple[int, list[int]]:
    """The first seed from `start` whose paper draw leaves `needed` reliable clients, and those passed over."""
    passed: list[int] = []
    if needed > num_clients:
        raise UsageError(f"{num_clients} clients never leave {needed} reliable ones", "use more clients")
    for seed in range(start, start + 10_000):
        if paper(num_clients, seed).num_reliable >= needed:
            return seed, passed
        passed.append(seed)
    raise UsageError(f"{num_clients} clients hardly ever leave {needed} reliable ones", "use more clients")


def from_trace(path: Path, num_clients: int, seed: int) -> Dropouts:
    """A recorded trace: a JSON list of client indices a line, one line a round; it starts over at its end.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+") as file:
    ...     _ = file.write("[0, 2]\\n[1]\\n")
    ...     file.flush()
    ...     from_trace(Path(file.name), 3, seed=0).answering_in(range(3)) == [[0, 2], [1], [0, 2]]
    True
    """
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        rounds = [_answering(json.loads(line), num_clients) for line in lines]
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"cannot read the trace {path}: {error}",
            "each line is a JSON list of client indices, e.g. [0, 3, 7]",
        ) from error
    if not rounds:
        raise UsageError(f"the trace {path} is empty")
    missed = [sum(j not in answering for answering in rounds) for j in range(num_clients)]
    return Dropouts(tuple(count / len(rounds) for count in missed), seed, tuple(rounds))


def _answering(line: Sequence[object], num_clients: int) -> tuple[int, ...]:
    if not isinstance(line, list) or any(type(j) is not int or not 0 <= j < num_clients for j in line):
        raise ValueError(f"{line!r} is not a list of client indices below {num_clients}")
    return tuple(dict.fromkeys(line))
