"""Both sides of the bounds from the records alone: the seeds' means, as numbers and as a table."""

import statistics
from collections.abc import Sequence
from typing import Any

from .bounds import Constants, bound, bound_along, paper_bound
from .cases import Case
from .records import Record, by_case

Row = dict[str, Any]


def results(records: Sequence[Record]) -> list[Row]:
    """One row for each case: what was measured after its last step, and the bounds."""
    return [{**_settings(case, runs), **sides(case, runs)[-1]} for case, runs in by_case(records).items()]


def sides(case: Case, runs: Sequence[Record]) -> list[Row]:
    """Both sides at every point of the curves, as means over the seeds.

    measured: the mean of ‖∇ℓ‖² over the steps so far. `bound` has the constants of the theorem, the largest values that
    any seed met. `bound_along` has the variances of the run itself. `paper` is the printed Theorem 2, once without its
    γ and once with the γ that the run shows; None where it says nothing.
    """
    known = constants(case, runs)
    shard_variance = max(run["max_shard_variance"] for run in runs)
    gamma_squared = max(run["max_gamma_squared"] for run in runs)
    found = []
    for points in zip(*(run["curve"] for run in runs), strict=True):
        steps = points[0]["steps"]
        means = {name: statistics.fmean(point[name] for point in points) for name in points[0] if name != "steps"}
        shown = [
            paper_bound(
                known, steps, shard_variance=shard_variance, gamma_squared=gamma,
                batch_size=case.batch_size, num_shards=case.num_shards,
            )
            for gamma in (0.0, gamma_squared)
        ]  # fmt: skip
        found.append(
            {
                "steps": steps,
                "measured": means["mean_squared_gradient"],
                "bound": bound(known, steps),
                "bound_along": bound_along(known, steps, means["mean_batch_variance"], means["mean_rounding_variance"]),
                "paper_without_gamma": shown[0],
                "paper_with_gamma": shown[1],
                "batch_variance": means["mean_batch_variance"],
                "row_variance": means["mean_row_variance"],
                "rounding_variance": means["mean_rounding_variance"],
                "loss": means["loss"],
            }
        )
    return found


def constants(case: Case, runs: Sequence[Record]) -> Constants:
    """The constants of a case: the largest that any of its seeds met, and the mean start."""
    return Constants(
        start_gap=statistics.fmean(run["start_loss"] - run["least_loss"] for run in runs),
        smoothness=max(run["smoothness"] for run in runs),
        rate=case.learning_rate,
        grid=runs[0]["grid"],
        num_weights=runs[0]["num_weights"],
        batch_variance=max(run["max_batch_variance"] for run in runs),
        absolute_gradient=max(run["max_absolute_gradient"] for run in runs),
    )


def _settings(case: Case, runs: Sequence[Record]) -> Row:
    return {
        "group": case.group,
        "case": case.name,
        "weight_bits": case.weight_bits,
        "batch_size": case.batch_size,
        "num_shards": case.num_shards,
        "learning_rate": case.learning_rate,
        "seeds": len(runs),
        "smoothness": max(run["smoothness"] for run in runs),
        "constants": runs[0]["constants"],
        "gamma_squared": max(run["max_gamma_squared"] for run in runs),
        "skipped_rounds": sum(run["skipped_rounds"] for run in runs),
    }


COLUMNS = (
    "run", "weight bits", "b × K", "rate", "steps", "measured", "bound along the run", "bound with constants",
    "the paper's, γ = 0", "the paper's, γ as met",
)  # fmt: skip


def table(records: Sequence[Record]) -> list[list[str]]:
    """The rows for people, under `COLUMNS`."""
    return [
        [
            row["group"],
            str(row["weight_bits"]),
            f"{row['batch_size']} × {row['num_shards']}",
            f"{row['learning_rate']:g}",
            str(row["steps"]),
            number(row["measured"]),
            number(row["bound_along"]),
            number(row["bound"]),
            *(_judged(row[name], row["measured"]) for name in ("paper_without_gamma", "paper_with_gamma")),
        ]
        for row in results(records)
    ]


def markdown(records: Sequence[Record]) -> str:
    """The table as Markdown."""
    lines = [list(COLUMNS), ["---"] * len(COLUMNS), *table(records)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def number(value: float) -> str:
    """Three digits.

    >>> number(0.01234), number(12.34), number(1234.5)
    ('0.0123', '12.3', '1234')
    """
    return f"{value:.0f}" if value >= 1000 else f"{value:#.3g}".rstrip(".")


def _judged(value: float | None, measured: float) -> str:
    if value is None:
        return "says nothing (Ψ ≤ 0)"
    return number(value) + (" **fails**" if value < measured else "")
