"""The paper's cost tables as formulas, the growth that was measured, and after how many rounds which method is cheaper.

Notation: N clients, K shards, T colluders, R answers needed, d d_w (parameters), b b_g (rows of a round). A formula of
the paper has its constants left out, so that only its growth can be compared: the exponent e of size^e over the
measured sizes. Logarithms are to base 2, and log log is taken to be at least 1: for K + T = 2 it would be 0.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from dresfl.experiments.bench.timing import growth_exponent

from .phases import EXTRAS, Method

Record = Mapping[str, Any]
Quantity = Literal["seconds", "sent", "received"]


@final
@dataclass(frozen=True)
class Cost:
    """N, K, T, R, d and b of a setting, for formulas."""

    clients: int
    shards: int
    colluders: int
    answers: int
    parameters: int
    batch: int

    @classmethod
    def of(cls, record: Record) -> "Cost":
        """The numbers of a record; R is that of the record's own method."""
        setting = record["setting"]
        answers = "mask_answers" if record["method"] == "lightsecagg" else "recovery_threshold"
        names = ("num_clients", "num_shards", "max_colluders", answers, "num_parameters", "global_batch")
        return cls(*(setting[name] for name in names))


Formula = Callable[[Cost], float]


@final
@dataclass(frozen=True)
class Entry:
    """A cell of the paper's tables: what it counts, its formula, and the formula of what this code does."""

    table: Literal["computation", "communication"]
    method: Method
    phase: str
    quantity: Quantity
    column: str  # the paper's
    counted: Literal["each client", "all clients", "coordinator", "R clients"]
    paper_text: str
    paper: Formula
    code_text: str
    code: Formula

    def value(self, record: Record) -> float:
        """What was measured, for as many participants as the paper's formula counts."""
        cost = Cost.of(record)
        times = {"each client": 1, "coordinator": 1, "all clients": cost.clients, "R clients": cost.answers}
        return float(record[self.quantity]) * times[self.counted]


def _log(x: float) -> float:
    return math.log2(max(2.0, x))


def _log_log(x: float) -> float:
    return max(1.0, math.log2(_log(x)))


def _fast(x: int) -> float:
    """log² x · log log x."""
    return _log(x) ** 2 * _log_log(x)


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "computation", "dresfl", "coded rows", "seconds", "Lagrange coding", "all clients",
        "N² log²(K+T) log log(K+T)", lambda c: c.clients**2 * _fast(c.shards + c.colluders),
        "N² (K+T+1) / K", lambda c: c.clients**2 * (c.shards + c.colluders + 1) / c.shards,
    ),
    Entry(
        "computation", "lightsecagg", "coded masks", "seconds", "coded masks", "all clients",
        "d N² log N / (R−T)", lambda c: c.parameters * c.clients**2 * _log(c.clients) / (c.answers - c.colluders),
        "d N (NR + N + R) / (R−T)",
        lambda c: (
            c.parameters
            * c.clients
            * (c.clients * c.answers + c.clients + c.answers)
            / (c.answers - c.colluders)
        ),
    ),
    Entry(
        "computation", "fedavg", "local update", "seconds", "local update", "each client",
        "d b / N", lambda c: c.parameters * c.batch / c.clients,
        "d (b/N + 1)", lambda c: c.parameters * (c.batch / c.clients + 1),
    ),
    Entry(
        "computation", "lightsecagg", "local update", "seconds", "local update", "each client",
        "d b / N", lambda c: c.parameters * c.batch / c.clients,
        "d (b/N + 1)", lambda c: c.parameters * (c.batch / c.clients + 1),
    ),
    Entry(
        "computation", "dresfl", "local update", "seconds", "local update", "each client",
        "d b / K", lambda c: c.parameters * c.batch / c.shards,
        "d (b/K + 1)", lambda c: c.parameters * (c.batch / c.shards + 1),
    ),
    Entry(
        "computation", "fedavg", "aggregation", "seconds", "aggregation", "coordinator",
        "N d", lambda c: c.clients * c.parameters, "N d", lambda c: c.clients * c.parameters,
    ),
    Entry(
        "computation", "lightsecagg", "aggregation", "seconds", "aggregation", "coordinator",
        "d R log R / (R−T)", lambda c: c.parameters * c.answers * _log(c.answers) / (c.answers - c.colluders),
        "d (N + R)", lambda c: c.parameters * (c.clients + c.answers),
    ),
    Entry(
        "computation", "dresfl", "aggregation", "seconds", "aggregation", "coordinator",
        "d R log² R log log R", lambda c: c.parameters * c.answers * _fast(c.answers),
        "d R", lambda c: c.parameters * c.answers,
    ),
    Entry(
        "communication", "dresfl", "coded rows", "sent", "data sharing", "all clients",
        "N² / K", lambda c: c.clients**2 / c.shards,
        "N (N−1) / K", lambda c: c.clients * (c.clients - 1) / c.shards,
    ),
    Entry(
        "communication", "lightsecagg", "coded masks", "sent", "coded masks, sharing", "all clients",
        "N² d / (R−T)", lambda c: c.clients**2 * c.parameters / (c.answers - c.colluders),
        "N (N−1) d / (R−T)",
        lambda c: c.clients * (c.clients - 1) * c.parameters / (c.answers - c.colluders),
    ),
    *(
        Entry(
            "communication", method, "local update", "sent", "local model, uploading", "each client",
            "d", lambda c: c.parameters, "d", lambda c: c.parameters,
        )
        for method in ("fedavg", "lightsecagg", "dresfl")
    ),
    Entry(
        "communication", "lightsecagg", "sum of mask shares", "sent", "coded masks, uploading", "R clients",
        "d R / (R−T)", lambda c: c.parameters * c.answers / (c.answers - c.colluders),
        "d R / (R−T)", lambda c: c.parameters * c.answers / (c.answers - c.colluders),
    ),
    *(
        Entry(
            "communication", method, "local update", "received", "global model, downloading", "all clients",
            "N d", lambda c: c.clients * c.parameters, "N d", lambda c: c.clients * c.parameters,
        )
        for method in ("fedavg", "lightsecagg", "dresfl")
    ),
)  # fmt: skip
"""The cells of the paper's two tables, τ left out: all of them but the preparation count once a round."""


@final
@dataclass(frozen=True)
class Growth:
    """Exponents of one cell over one sweep: as measured, by the paper's formula, by the formula of this code."""

    measured: float
    paper: float
    code: float


def growth(records: Iterable[Record], entry: Entry, sweep: str) -> Growth | None:
    """How a cell grows over a sweep; None if it was not measured there at two sizes."""
    found = {
        record["size"]: record
        for record in records
        if record.get("sweep") == sweep and (record["method"], record["phase"]) == (entry.method, entry.phase)
    }
    if len(found) < 2:
        return None

    def fitted(value: Callable[[Record], float]) -> float:
        return growth_exponent({str(size): value(record) for size, record in found.items()})

    return Growth(
        fitted(entry.value),
        fitted(lambda record: entry.paper(Cost.of(record))),
        fitted(lambda record: entry.code(Cost.of(record))),
    )


# -- totals over rounds ----------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Total:
    """What a method costs one participant: once, and in every round."""

    once: float
    per_round: float

    def after(self, rounds: int) -> float:
        """The cost of a run of so many rounds."""
        return self.once + rounds * self.per_round


def total(
    records: Sequence[Record], method: Method, party: str, quantities: Sequence[Quantity], *, extras: bool = False
) -> Total:
    """The cost of one participant of a method in one case's records. extras: with what this package adds."""
    own = [
        record
        for record in records
        if record.get("method") == method and record["party"] == party and (extras or record["phase"] not in EXTRAS)
    ]
    sums = {
        per: sum(float(record[quantity]) for record in own if record["per"] == per for quantity in quantities)
        for per in ("once", "round")
    }
    return Total(sums["once"], sums["round"])


def cheaper_after(ours: Total, theirs: Total) -> int | None:
    """From how many rounds on ours costs less; None: never.

    >>> cheaper_after(Total(100, 2), Total(0, 5)), cheaper_after(Total(1, 5), Total(0, 5))
    (34, None)
    """
    saved, ahead = theirs.per_round - ours.per_round, ours.once - theirs.once
    if ahead < 0:
        return 0 if saved >= 0 else None
    return math.floor(ahead / saved) + 1 if saved > 0 else None
