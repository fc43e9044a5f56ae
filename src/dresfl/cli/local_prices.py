"""`dresfl plan --local-steps`: what several local steps cost, printed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dresfl.errors import UsageError

from . import display

if TYPE_CHECKING:
    from dresfl.api.plan import Plan
    from dresfl.optimizers import Optimizer


def chosen_optimizer(file: Path | None, settings: Sequence[str]) -> "Optimizer":
    """Plain gradient descent, unless a file's [optimizer] or overrides, key=value, say otherwise."""
    from dresfl.deploy.toml import load_table, override, parse
    from dresfl.optimizers import Optimizer

    found = load_table(file) if file is not None else {}
    table: dict[str, Any] = {"optimizer": found.get("optimizer", {"schedule": "constant"})}
    override(table, settings)
    if set(table) != {"optimizer"}:
        raise UsageError(
            "with local steps --set takes keys of [optimizer] alone", "e.g. --set optimizer.learning_rate=0.03125"
        )
    return parse(Optimizer, table["optimizer"], "optimizer")


def print_table(planned: "Plan") -> None:
    """One line for each number of local steps up to the plan's; nothing if there is one step."""
    if not planned.local_prices:
        return
    rows = [
        [
            str(price.local_steps),
            str(price.gradient_degree),
            f"{price.answers_needed} of {planned.num_clients}"
            if price.feasible
            else f"{price.answers_needed}: too many",
            f"{price.needed_bits:.0f} in {price.num_moduli} primes",
            display.bytes_text(price.upload_bytes),
            display.bytes_text(round(price.upload_bytes / price.local_steps)),
            display.bytes_text(price.share_bytes_per_client),
        ]
        for price in planned.local_prices
    ]
    columns = ["local steps", "degree", "answers needed", "bits", "upload a round", "upload a step", "shares, once"]
    display.print_table("what local steps cost each client", columns, rows)
