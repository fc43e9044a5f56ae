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
    found = []
    for case, runs in by_case(records).items():
        points = sides(case, runs)
        found.append({**_settings(case, runs), **points[-1], "late": _late(points)})
    return found


def _late(points: Sequence[Row]) -> float | None:
    """The mean of ‖∇ℓ‖² over the second half of the steps; None if the curve has no point in the middle."""
    if len(points) < 2 or 2 * points[-2]["steps"] != points[-1]["steps"]:
        return None
    return float(2 * points[-1]["measured"] - points[-2]["measured"])


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
    """The table as Markdown, and below it what it shows."""
    lines = [list(COLUMNS), ["---"] * len(COLUMNS), *table(records)]
    shown = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return shown + "\n" + "".join(f"- {line}\n" for line in findings(records))


def findings(records: Sequence[Record]) -> list[str]:
    """What the rows show, in sentences."""
    rows = results(records)
    held = [row["measured"] / row["bound_along"] for row in rows]
    broken = sum(row["paper_without_gamma"] < row["measured"] for row in rows)
    silent = sum(row["paper_with_gamma"] is None for row in rows)
    gamma = [row["gamma_squared"] for row in rows]
    lines = [
        f"The bound that holds is met in {sum(share <= 1 for share in held)} of {len(rows)} rows. The measured mean is "
        f"{100 * min(held):.0f} % to {100 * max(held):.0f} % of the bound along the run.",
        f"The printed bound without rounding (γ = 0) is below the measured mean in {broken} of {len(rows)} rows.",
        f"With the γ that the runs met, the printed bound says nothing (Ψ ≤ 0) in {silent} of {len(rows)} rows. "
        f"Its γ² would be {min(gamma):.2g} in one row and {max(gamma):.3g} in another.",
    ]
    for row in rows:
        if row["num_shards"] > 1:
            share = row["batch_variance"] * row["batch_size"] * row["num_shards"] / row["row_variance"]
            lines.append(
                f"With {row['num_shards']} shards at rate {row['learning_rate']:g}, V is {share:.2f} times σ₁²/(bK), "
                f"σ₁² being the variance of one row."
            )
    for bits in dict.fromkeys(row["weight_bits"] for row in rows if row["group"] == "rate and steps"):
        late = ", ".join(
            f"{number(row['late'])} (τ = {row['steps']})"
            for row in rows
            if (row["group"], row["weight_bits"]) == ("rate and steps", bits) and row["late"] is not None
        )
        lines.append(f"With {bits} weight bits and η = 0.16/√τ, the mean over the second half of the steps is {late}.")
    return lines


def number(value: float) -> str:
    """Three digits.

    >>> number(0.01234), number(12.34), number(1234.5)
    ('0.0123', '12.3', '1234')
    """
    return f"{value:.0f}" if value >= 1000 else f"{value:#.3g}".rstrip(".")


def _judged(value: float | None, measured: float) -> str:
    if value is None:
        return "Ψ ≤ 0"
    return number(value) + (" **fails**" if value < measured else "")
