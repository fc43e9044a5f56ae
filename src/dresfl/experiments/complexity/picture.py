"""The measured costs as a picture: totals over rounds with their crossings above, growth below."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from dresfl.experiments.bench.page import bytes_text
from dresfl.files import write_atomic

from .growth import Record
from .page import QUANTITIES, SWEEPS, cases, compared, crossing_text
from .phases import METHOD_NAMES, Method

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: dict[Method, str] = {"fedavg": "#9aa5b1", "lightsecagg": "#d98b3a", "dresfl": "#1f5fa8"}
_MARKS = {"local update": "o", "coded masks": "s", "coded rows": "s", "aggregation": "^", "sum of mask shares": "v"}
_DRAWN = ("both", "a client's seconds", "the coordinator's seconds")
_ROUNDS = tuple(round(10 ** (step / 8)) for step in range(8, 41))  # 10 to 100,000


def plot(records: Sequence[Record], path: Path) -> None:
    """Draw a PNG: the first case's totals over rounds, and every phase over N, d and K."""
    from matplotlib.figure import Figure  # here, since it takes half a second to import

    figure = Figure(figsize=(13, 8.4), dpi=110, layout="constrained")
    grid = figure.subplots(2, 3)
    name, own = next(iter(cases(records).items()))
    for axes, text in zip(grid[0], _DRAWN, strict=True):
        _over_rounds(axes, own, text)
    for axes, sweep in zip(grid[1], ("clients", "parameters", "shards"), strict=True):
        _over_sizes(axes, records, sweep)
    grid[0][0].legend(fontsize=8, loc="upper left", frameon=False)
    handles, labels = grid[1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(f"Above: {name}, over rounds. Below: seconds of each phase", fontsize=11)
    image = BytesIO()
    figure.savefig(image, format="png")
    write_atomic(path, image.getvalue())


def _over_rounds(axes: "Axes", records: Sequence[Record], text: str) -> None:
    found = compared(records, *QUANTITIES[text])
    for method, colour in _COLOURS.items():
        costs = [found[method].after(rounds) for rounds in _ROUNDS]
        width = 3.6 if method == "lightsecagg" else 1.8  # seen also where the lines lie on each other
        axes.plot(_ROUNDS, costs, color=colour, label=METHOD_NAMES[method], linewidth=width)
    crossing = found["cheaper_after"]
    if isinstance(crossing, int) and _ROUNDS[0] <= crossing <= _ROUNDS[-1]:
        axes.plot([crossing], [found["dresfl"].after(crossing)], "o", color="black", markersize=5)
    said = crossing_text(records, text)
    words = {"alike": "the two cost alike", "never": "DReS-FL never costs less"}.get(said, f"DReS-FL costs less {said}")
    axes.text(0.97, 0.04, words, transform=axes.transAxes, ha="right", fontsize=9)
    title = "bytes a client sends and receives" if text == "both" else text
    axes.set(xscale="log", yscale="log", xlabel="rounds", title=title)
    if text == "both":
        axes.yaxis.set_major_formatter(lambda count, _: bytes_text(count))
    axes.grid(alpha=0.3)


def _over_sizes(axes: "Axes", records: Sequence[Record], sweep: str) -> None:
    lines: dict[tuple[Method, str], dict[int, float]] = {}
    for record in records:
        if record.get("sweep") == sweep and record["phase"] in _MARKS:
            lines.setdefault((record["method"], record["phase"]), {})[record["size"]] = record["seconds"]
    for (method, phase), points in lines.items():
        label = f"{METHOD_NAMES[method]}: {phase}{' (once)' if phase == 'coded rows' else ''}"
        style = f"{_MARKS[phase]}-"
        axes.plot(list(points), list(points.values()), style, color=_COLOURS[method], label=label, markersize=4)
    sizes = sorted({size for points in lines.values() for size in points})
    axes.set(xscale="log", yscale="log", xlabel=SWEEPS[sweep], ylabel="seconds" if sweep == "clients" else "")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
