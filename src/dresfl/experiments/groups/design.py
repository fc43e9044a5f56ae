"""How large groups must be: colluders that a random group holds, answers that it needs, bytes that it moves.

Notation: N clients in all, of which C collude; groups of n; G groups. Clients are put into groups at random, after it
is decided who colludes. A group's number of colluders X is hypergeometric, and T must hold for all groups at once:

    P(some group has more than T) ≤ G·P(X > T) ≤ 2^−40

A committee is one group of n that computes for all N: the same with G = 1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from dresfl.coding import CodeParameters, recovery_threshold
from dresfl.errors import InfeasiblePlan, UsageError
from dresfl.masking import zero_sum_family
from dresfl.model import Network, mlp
from dresfl.protocol import Answer, choose_field

SECURITY_BITS = 40
_RARE = 1e-6  # how often a group may fail to decode a round
_NETWORK = (784, 64, 64, 10)
_BATCH = 128  # twice the first layer's width: a smaller batch shows its span
_NEGLIGIBLE = 1e-30  # terms below this share of a sum are left out


@final
@dataclass(frozen=True)
class Opening:
    """What decides how many answers are needed: degree·(K+T−1) + 1, and T more where lies are to be found."""

    name: str
    degree: int
    against_lies: bool

    def answers(self, shards: int, colluders: int) -> int:
        """How many clients of a group must answer."""
        return self.degree * (shards + colluders - 1) + 1 + (colluders if self.against_lies else 0)


OPENINGS = (
    Opening("open mode, two hidden layers", 8, False),
    Opening("open mode, one hidden layer", 4, False),
    Opening("open mode, no hidden layer", 2, False),
    Opening("hidden mode, S4", 4, True),
    Opening("hidden mode, S2", 2, True),
)


@final
@dataclass(frozen=True)
class Population:
    """All clients: how many, which share of them colludes, how often one of them is away, how many rows each has."""

    clients: int
    colluding_share: float
    away: float = 0.1
    rows: int = 60

    def __post_init__(self) -> None:
        if self.clients < 1 or self.rows < 1 or not 0 <= self.colluding_share < 1 or not 0 <= self.away < 1:
            raise UsageError(f"{self} is no population", "shares lie in 0..1, and there is a client with a row")

    @property
    def colluding(self) -> int:
        """C."""
        return round(self.clients * self.colluding_share)


def more_than(limit: int, clients: int, colluding: int, size: int) -> float:
    """P(X > limit), X the colluders in a random group: Σ C(C,x)·C(N−C,n−x)/C(N,n).

    >>> abs(more_than(0, clients=10, colluding=2, size=5) - (1 - 2 / 9)) < 1e-12
    True
    """

    def log_choose(a: int, b: int) -> float:
        return math.lgamma(a + 1) - math.lgamma(b + 1) - math.lgamma(a - b + 1)

    def log_probability(x: int) -> float:
        return log_choose(colluding, x) + log_choose(clients - colluding, size - x) - log_choose(clients, size)

    low, high = max(limit + 1, size - (clients - colluding)), min(size, colluding)
    return _tail(math.exp(log_probability(x)) for x in range(low, high + 1))


def fewer_than(needed: int, size: int, away: float) -> float:
    """P(fewer than `needed` of a group answer), each client away by itself with probability `away`.

    >>> abs(fewer_than(2, size=2, away=0.1) - (1 - 0.9**2)) < 1e-12
    True
    """
    if needed > size:
        return 1.0
    if away == 0:
        return 0.0
    log_there, log_away = math.log1p(-away), math.log(away)

    def probability(x: int) -> float:
        choose = math.lgamma(size + 1) - math.lgamma(x + 1) - math.lgamma(size - x + 1)
        return math.exp(choose + x * log_there + (size - x) * log_away)

    return _tail(probability(x) for x in range(needed - 1, -1, -1))


def _tail(terms: Iterator[float]) -> float:
    """The sum of terms that grow and then shrink, to where they no longer matter."""
    total, before = 0.0, 0.0
    for term in terms:
        total += term
        if term < before and term < _NEGLIGIBLE * total:
            break
        before = term
    return min(1.0, total)


def least_colluders(population: Population, size: int, groups: int, bits: float = SECURITY_BITS) -> int:
    """T: the least number that no group exceeds, but with probability 2^−bits over all groups; at least 1.

    >>> least_colluders(Population(1_000_000, 0.01), size=1000, groups=1000)
    44
    """
    bound = 2.0**-bits / groups
    clients, colluding = population.clients, population.colluding
    return next(t for t in range(1, size + 1) if t == size or more_than(t, clients, colluding, size) <= bound)


@final
@dataclass(frozen=True)
class Design:
    """One way to let a population train: what each group needs and moves. Bytes are of one client, or say whose."""

    clients: int
    colluding_share: float
    away: float
    way: str  # "groups" or "committee"
    size: int
    groups: int
    opening: str
    colluders: int  # T
    shards: int  # K: the most with which a group seldom fails; 0: not feasible
    answers: int
    may_be_away: int
    failure: float  # probability that a group cannot decode a round
    stored_bytes: int
    sent_bytes: int
    upload_bytes: int
    rows_in_a_sum: int  # what one decoded sum mixes: the rows of one group's batch

    @property
    def feasible(self) -> bool:
        """Whether groups of this size can decode at all."""
        return self.shards > 0

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "feasible": self.feasible}


def design(population: Population, size: int, opening: Opening, way: str = "groups") -> Design:
    """What groups of a size, or a committee of it, need so that T holds and rounds decode."""
    if way not in ("groups", "committee"):
        raise UsageError(f"the way {way!r} is not known", "use groups or committee")
    if not 1 <= size <= population.clients:
        raise UsageError(f"no groups of {size} among {population.clients} clients")
    groups = population.clients // size if way == "groups" else 1
    colluders = least_colluders(population, size, groups)
    shards, answers, failure = _most_shards(population, size, opening, colluders)
    dealt = population.rows * (size if way == "groups" else population.clients)  # rows that a client gets shares of
    network = mlp(_NETWORK, input_bits=4, weight_bits=10)
    value_bytes, upload = _bytes(network, size, max(1, shards), colluders) if shards else (0, 0)
    coded = -(-dealt // max(1, shards))
    width = network.input_size + network.num_classes
    own = -(-population.rows // max(1, shards))
    return Design(
        clients=population.clients,
        colluding_share=population.colluding_share,
        away=population.away,
        way=way,
        size=size,
        groups=groups,
        opening=opening.name,
        colluders=colluders,
        shards=shards,
        answers=answers,
        may_be_away=max(0, size - answers),
        failure=failure,
        stored_bytes=coded * width * value_bytes,
        sent_bytes=own * width * value_bytes * size,
        upload_bytes=upload,
        rows_in_a_sum=_BATCH * shards,
    )


def _most_shards(population: Population, size: int, opening: Opening, colluders: int) -> tuple[int, int, float]:
    """The most shards with which a group seldom fails, the answers they need, and how often it fails."""
    found = 0, opening.answers(1, colluders), fewer_than(opening.answers(1, colluders), size, population.away)
    for shards in range(1, min(population.rows, size) + 1):
        answers = opening.answers(shards, colluders)
        failure = fewer_than(answers, size, population.away)
        if failure > _RARE:
            break
        found = shards, answers, failure
    return found


def _bytes(network: Network, size: int, shards: int, colluders: int) -> tuple[int, int]:
    """Bytes of one coded value, and of an answer in the open mode."""
    field = choose_field(network, CodeParameters(size, shards, colluders, _BATCH))
    return len(field.moduli) * field.residue_bytes, Answer.size(field, network.num_parameters)


def blinding(clients: int, colluders: int, degree: int) -> dict[str, Any]:
    """Whether answers of one group can be blinded with a certificate today: seeds of a client, or why not. K = 1."""
    network = mlp(_NETWORK, input_bits=4, weight_bits=10)
    threshold = recovery_threshold(degree, 1, colluders)
    moduli = choose_field(network, CodeParameters(clients, 1, colluders, _BATCH)).moduli
    sizes = {"clients": clients, "colluders": colluders, "answers": threshold}
    try:
        family = zero_sum_family(moduli, clients, 1, colluders, threshold)
    except InfeasiblePlan as error:
        return {**sizes, "seeds": None, "reason": str(error)}
    return {**sizes, "seeds": max(len(family.seed_sets.held_by(client)) for client in range(clients)), "reason": ""}
