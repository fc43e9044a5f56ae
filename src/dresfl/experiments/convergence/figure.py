"""Both sides of the bounds over the steps, from the records alone. Import it where it is used: matplotlib is slow."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dresfl.errors import DresError
from dresfl.files import write_atomic

from .cases import Case
from .records import Record, by_case
from .tables import sides

# Okabe and Ito's palette, which colour-blind readers can tell apart
_LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "bound": ("the bound that holds, with constants", {"color": "#56b4e9", "linewidth": 1.3}),
    "bound_along": ("the bound that holds, along the run", {"color": "#0055a4", "linewidth": 1.8}),
    "measured": ("measured", {"color": "#222222", "linewidth": 2.2}),
    "paper_without_gamma": ("Theorem 2 as printed, γ = 0", {"color": "#d55e00", "linewidth": 1.8, "linestyle": "--"}),
}
_TITLES = {
    "batch noise": "Least squares, batch noise",
    "rounding": "Least squares, rounding alone",
    "network": "One hidden layer of squares",
}


def draw(records: Sequence[Record], out: Path) -> list[Path]:
    """Draw `out`/convergence.svg and .png; return both paths."""
    found = by_case(records)
    if not found:
        raise DresError("there is no finished run", "run it without --render-only first")
    look: Any = {"svg.hashsalt": "dresfl", "font.size": 9, "axes.titlesize": 9.5, "axes.spines.top": False,
                 "axes.spines.right": False, "axes.edgecolor": "#888888"}  # fmt: skip
    paths = []
    with mpl.rc_context(look):
        figure = _figure(found)
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            image = BytesIO()
            figure.savefig(image, format=kind, metadata=metadata)
            paths.append(out / f"convergence.{kind}")
            write_atomic(paths[-1], image.getvalue())
    return paths


def _figure(found: dict[Case, list[Record]]) -> Figure:
    figure = Figure(figsize=(9.6, 7.0), dpi=150, layout="constrained")
    panels = figure.subplots(2, 2)
    for axes, group in zip((panels[0, 0], panels[0, 1], panels[1, 1]), _TITLES, strict=True):
        cases = [case for case in found if case.group == group]
        if cases:
            _steps_panel(axes, cases[0], found[cases[0]])
    _horizons_panel(panels[1, 0], {case: runs for case, runs in found.items() if case.group == "rate and steps"})
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _steps_panel(axes: Axes, case: Case, runs: Sequence[Record]) -> None:
    """Both sides of one case, over its steps."""
    points = sides(case, runs)
    for name, (label, style) in _LINES.items():
        shown = [(point["steps"], point[name]) for point in points if point[name] is not None]
        axes.plot(*zip(*shown, strict=True), label=label, **style)
    title = f"{_TITLES[case.group]}: {case.weight_bits} weight bits, η = {case.learning_rate:g}"
    _frame(axes, title, "steps τ")


def _horizons_panel(axes: Axes, found: dict[Case, list[Record]]) -> None:
    """Where runs of different lengths end if η falls as 1/√τ: on a fine grid they fall, on a coarse one they do not."""
    for bits, marker in zip(dict.fromkeys(case.weight_bits for case in found), "os", strict=False):
        ends = [sides(case, runs)[-1] for case, runs in found.items() if case.weight_bits == bits]
        for name in ("bound_along", "measured", "paper_without_gamma"):
            style = _LINES[name][1]
            axes.plot([end["steps"] for end in ends], [end[name] for end in ends], marker=marker, markersize=4, **style)
        last = ends[-1]
        axes.annotate(f"{bits} bits", (last["steps"], last["measured"]), xytext=(4, 4), textcoords="offset points")
    _frame(axes, "Least squares, η = 0.16/√τ: where runs of τ steps end", "steps τ of the whole run")


def _frame(axes: Axes, title: str, label: str) -> None:
    axes.set(title=title, xlabel=label, ylabel="mean of ‖∇ℓ‖² over the steps", xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.25, linewidth=0.6)
