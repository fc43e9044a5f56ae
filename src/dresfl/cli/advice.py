"""`dresfl plan --goal`: the settings that reach a goal, printed and drawn."""

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from . import display

if TYPE_CHECKING:
    from dresfl.api.advice import Choice, Goal
    from dresfl.model import Network

_SHOWN = 8  # settings of each mode
_COLUMNS = ["K", "T", "layers", "B", "R", "answers", "D", "bits", "bytes", "trips", "client", "round"]


def print_advice(
    networks: "Sequence[Network]",
    goal_text: str,
    *,
    num_clients: int,
    batch_size: int,
    rows: int,
    rounds: int,
    round_trip: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Find, print, and draw where asked for. round_trip: seconds."""
    from dresfl.api.advice import Goal, advise

    goal = Goal.parse(goal_text)
    with display.waiting("measuring this machine") as say:
        found = advise(
            networks, num_clients=num_clients, goal=goal, batch_size=batch_size, rows=rows, rounds=rounds,
            round_trip=round_trip, watch=say,
        )  # fmt: skip
    if plot is not None:
        _draw(networks, goal, num_clients, plot)
    if as_json:
        print(json.dumps([choice.to_dict() for choice in found], indent=2))
        return
    for mode in ("open", "hidden"):
        choices = [choice for choice in found if choice.mode == mode]
        if not choices:
            print(f"{mode} mode: no setting reaches the goal")
            continue
        more = f", the first {_SHOWN} of {len(choices)}" if len(choices) > _SHOWN else ""
        display.print_table(f"{mode} mode, best first{more}", _COLUMNS, [_row(choice) for choice in choices[:_SHOWN]])
    print(
        "B: coded rows a round; a step sees B·K rows. D: clients that may be missing. bytes: up and down, a round and "
        f"client. client: its computing. round: all of it, at {1000 * round_trip:g} ms a trip and 100 Mbit/s.\n"
        "Best: the deepest network, then the shortest time for each row. Seconds were measured here, on one thread; "
        "those of the hidden mode are computed from two short runs."
    )
    if plot is not None:
        print(f"wrote {plot}")


def _row(choice: "Choice") -> list[str]:
    schedule = f" ({choice.schedule})" if choice.schedule else ""
    return [
        str(choice.num_shards),
        str(choice.max_colluders),
        "-".join(map(str, choice.layers)),
        str(choice.batch_size),
        str(choice.recovery_threshold),
        str(choice.answers_needed),
        str(choice.max_dropouts),
        f"{choice.bits:.0f}",
        display.bytes_text(choice.upload_bytes + choice.download_bytes),
        f"{choice.trips}{schedule}",
        f"{1000 * choice.client_seconds:.0f} ms",
        f"{choice.seconds:.2f} s",
    ]


def _draw(networks: "Sequence[Network]", goal: "Goal", num_clients: int, path: Path) -> None:
    """D over T for some K, a panel for each degree: the open mode's depths, then the hidden mode's two schedules."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from dresfl.api.advice import frontier
    from dresfl.files import write_atomic

    panels = [(f"open, {len(n.parameters) - 1} hidden layers (degree {n.gradient_degree})", n.gradient_degree)
              for n in networks]  # fmt: skip
    panels += [("hidden, S4 (degree 4, any depth)", 4), ("hidden, S2 (degree 2, any depth)", 2)]
    figure = Figure(figsize=(3.1 * len(panels), 3.6), dpi=120, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for panel, (title, degree) in zip(axes, panels, strict=True):
        for shards, style in ((1, "o-"), (2, "s--"), (4, "^:"), (8, "v-.")):
            points = frontier(num_clients, degree, shards, goal.liars)
            if title.startswith("hidden"):  # without the word of the agreement that clients are honest
                points = [(t, d - max(0, t - 2 * goal.liars)) for t, d in points]
                points = [(t, d) for t, d in points if d >= 0]
            if points:
                panel.plot(*zip(*points, strict=True), style, markersize=4, linewidth=1.3, label=f"K = {shards}")
        panel.plot([goal.colluders], [goal.dropouts], "*", color="black", markersize=12, label="goal", zorder=5)
        panel.set(title=title, xlabel="T, colluders")
        panel.title.set_fontsize(9)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    axes[0].set(ylabel="D, clients that may be missing", ylim=(-0.5, num_clients))
    axes[0].yaxis.set_major_locator(MaxNLocator(integer=True))
    image = BytesIO()
    figure.savefig(image, format=path.suffix.lstrip(".") or "png")
    write_atomic(path, image.getvalue())
