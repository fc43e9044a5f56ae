"""`dresfl plan --mode hidden`: the plan of a hidden run, printed."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import display

if TYPE_CHECKING:
    from dresfl.api.plan_hidden import HiddenCost
    from dresfl.model import Network

_ROUNDS = 1000  # if neither the command nor a file says


def print_plan(
    network: "Network",
    sizes: Mapping[str, int],
    file: Path | None,
    rounds: int,
    rtt: Sequence[float],
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Plan and print. file: may have [hidden], [optimizer] and rounds. settings: overrides of these, key=value."""
    from dresfl.api.plan_hidden import plan_hidden
    from dresfl.deploy.toml import load_table, override, parse
    from dresfl.optimizers import Optimizer
    from dresfl.protocol.hidden.settings import HiddenSettings

    found = load_table(file) if file is not None else {}
    usual = {"method": "momentum", "learning_rate": 0.02, "schedule": "constant"}
    table: dict[str, Any] = {"hidden": found.get("hidden", {}), "optimizer": found.get("optimizer", usual)}
    override(table, settings)
    planned = plan_hidden(
        network,
        **sizes,
        rounds=rounds or int(found.get("rounds", _ROUNDS)),
        settings=parse(HiddenSettings, table["hidden"], "hidden"),
        optimizer=parse(Optimizer, table["optimizer"], "optimizer"),
        round_trips=[milliseconds / 1000 for milliseconds in rtt],
    )
    if as_json:
        print(json.dumps(planned.to_dict(), indent=2))
    else:
        _print_tables(planned)


def _print_tables(planned: "HiddenCost") -> None:
    clients, proofs = planned.num_clients, planned.range_proofs
    seconds = [f"{value:g} s at {trip} ms" for trip, value in planned.seconds_per_round.items()]
    shown = {
        "schedule": f"{planned.schedule}: {planned.why}",
        "answers needed": f"{planned.answers_needed} of {clients} in every hop ({planned.recovery_threshold} decode)",
        "may be missing": f"{planned.max_dropouts} clients, others in every hop",
        "trips a round": planned.trips,
        "bytes a round": f"{display.bytes_text(planned.upload_bytes)} up, "
        f"{display.bytes_text(planned.download_bytes)} down, of each client",
        "seconds a round": ", ".join(seconds) + " of round trip (computed, at 100 Mbit/s)",
        "field": f"{len(planned.moduli)} primes, {planned.modulus_bits:g} bits; products of up to "
        f"{planned.largest_bits} bits",
        "security": f"kappa {planned.kappa}; {planned.security_bits:g} bits are left after {planned.values_opened:,} "
        "values",
        "learning rate": f"{planned.largest_rate:.3g} at most: up to there guards stop a run that diverges in time",
        "seeds": f"{planned.seeds} of each client; each mask is made of {planned.mask_seeds}",
        "shares": f"{display.bytes_text(planned.share_bytes_per_client)} at each client, for {planned.rows:,} rows",
        "range proofs": "none: dealers are trusted"
        if proofs is None
        else f"shares grow {proofs.growth:.1f} times, {proofs.seconds:.1f} s of each client, once",
        "check": f"{planned.check}: against "
        + (
            "the coordinator together with T clients" if planned.check == "C" else "the coordinator alone, or T clients"
        ),
        "warnings": list(planned.warnings),
    }
    title = f"plan of the hidden mode: {planned.answers_needed} of {clients} clients must answer a hop"
    display.print_pairs(title, shown)
    rows = [[line.against, line.open_mode, line.hidden_mode] for line in planned.protection]
    display.print_table("what is protected", ["against", "open mode", "hidden mode"], rows, words=True)
