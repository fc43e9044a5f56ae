"""Figures 3 and 4 from the records alone: test accuracy over rounds, mean and spread of the seeds.

Import it where it is used: matplotlib takes half a second.
"""

from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dresfl.data import data_set_label
from dresfl.errors import DresError
from dresfl.experiments.published import METHOD_LABELS, METHODS, PAPER, TABLE_DATASETS
from dresfl.files import write_atomic

from .records import Record, grouped, mean_and_sd
from .tables import mean_text, split_note

Curves = dict[str, dict[str, dict[str, Any]]]

# Okabe and Ito's palette, which colour-blind readers can tell apart; ours are the strong ones
_STYLES: dict[str, dict[str, Any]] = {
    "fedavg": {"color": "#e69f00", "linewidth": 1.3},
    "fedavg-is": {"color": "#009e73", "linewidth": 1.3},
    "fedavg-is-unbiased": {"color": "#009e73", "linewidth": 1.0, "linestyle": ":"},
    "scaffold": {"color": "#cc79a7", "linewidth": 1.3},
    "dresfl-paper": {"color": "#56b4e9", "linewidth": 1.8},
    "dresfl": {"color": "#0055a4", "linewidth": 2.2},
    "centralised": {"color": "#333333", "linewidth": 1.3, "linestyle": (0, (4, 2))},
}
_FAR = 20  # points below the best: such a method would flatten the others, so it is named at the edge instead


def curves(records: Iterable[Record]) -> Curves:
    """{dataset: {method: {rounds, mean, sd, seeds}}}: accuracies in percent at the rounds all seeds evaluated at."""
    return {
        dataset: {method: _curve(runs) for method, runs in methods.items()}
        for dataset, methods in grouped(records).items()
    }


def _curve(runs: Sequence[Record]) -> dict[str, Any]:
    lines = [{line["round"]: 100 * line["test_accuracy"] for line in run.evaluations} for run in runs]
    rounds = sorted(set.intersection(*(set(line) for line in lines)))
    mean, sd = zip(*(mean_and_sd([line[number] for line in lines]) for number in rounds), strict=True)
    return {"rounds": rounds, "mean": list(mean), "sd": list(sd), "seeds": len(runs)}


def draw(name: str, records: Sequence[Record], out: Path) -> list[Path]:
    """Draw figure3 or figure4 into `out`/NAME.svg and .png; return both paths."""
    if not records:
        raise DresError(f"no finished run belongs to {name}", "run it without --render-only first")
    look: Any = {
        "svg.hashsalt": "dresfl",
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#888888",
        "xtick.color": "#444444",
        "ytick.color": "#444444",
    }
    paths = []
    with mpl.rc_context(look):
        figure = _figure3(records) if name == "figure3" else _figure4(records)
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            image = BytesIO()
            figure.savefig(image, format=kind, metadata=metadata)
            paths.append(out / f"{name}.{kind}")
            write_atomic(paths[-1], image.getvalue())
    return paths


def _canvas(panels: int) -> tuple[Figure, list[Axes]]:
    columns = min(3, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(max(5.2, 3.9 * columns), 3.1 * rows + 0.6), dpi=150, layout="constrained")
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(panels)]


def _figure3(records: Sequence[Record]) -> Figure:
    """A panel a data set, a curve a method; the paper's final figures as ticks at the right."""
    found = curves(records)
    figure, panels = _canvas(len(found))
    for axes, (dataset, methods) in zip(panels, found.items(), strict=True):
        last = max(curve["rounds"][-1] for curve in methods.values())
        low, far = _range(methods)
        high = max(max(curve["mean"]) for curve in methods.values())
        # the paper's one figure of DReS-FL belongs to its own recipe, and has its colour
        theirs = dict.fromkeys("dresfl-paper" if method == "dresfl" else method for method in methods)
        means = {method: PAPER[dataset, method][0] for method in theirs if (dataset, method) in PAPER}
        shown = {method: mean for method, mean in means.items() if mean >= low}
        for method, curve in methods.items():
            _plot(axes, method, curve, last)
        for method, mean in shown.items():
            axes.plot([last * 1.045], [mean], "<", markersize=5, color=_STYLES[method]["color"])
        _frame(axes, _title(dataset, records), last, low, max([high, *shown.values()]))
        below = [f"{METHOD_LABELS[method]} {methods[method]['mean'][-1]:.1f} % ↓" for method in far]
        below += [f"{METHOD_LABELS[method]}, the paper: {mean:.1f} % ↓" for method, mean in means.items() if mean < low]
        if below:
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
            axes.text(0.93, 0.03, "\n".join(below), transform=axes.transAxes, ha="right", va="bottom", fontsize=7.5,
                      color="#555555", bbox=box)  # fmt: skip
    handles: list[Line2D | Patch] = [
        Line2D([], [], **_STYLES[method], label=METHOD_LABELS[method])
        for method in METHODS
        if any(method in methods for methods in found.values())
    ]
    if not found.keys().isdisjoint(TABLE_DATASETS):
        handles.append(
            Line2D([], [], linestyle="none", marker="<", color="#777777", markersize=5, label="the paper's figure")
        )
    handles.append(Patch(color="#777777", alpha=0.15, linewidth=0, label="± standard deviation of the seeds"))
    columns = 4 if len(panels) > 1 else 2
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, columnspacing=1.4)
    return figure


def _figure4(records: Sequence[Record]) -> Figure:
    """A panel a data set: every seed by itself, their mean, and the paper's figure as a band."""
    found = curves(records)
    figure, panels = _canvas(len(found))
    for axes, (dataset, methods) in zip(panels, found.items(), strict=True):
        for method, curve in methods.items():
            style = _STYLES[method]
            if published := PAPER.get((dataset, method)):
                mean, sd = published
                axes.axhspan(mean - sd, mean + sd, color=style["color"], alpha=0.13, linewidth=0)
                axes.axhline(mean, color=style["color"], linestyle=":", linewidth=1.2,
                             label=f"{METHOD_LABELS[method]}, the paper: {mean:.2f} ± {sd:.2f} %")  # fmt: skip
            for run in records:
                if run.feasible and (run.dataset, run.method) == (dataset, method):
                    axes.plot([line["round"] for line in run.evaluations],
                              [100 * line["test_accuracy"] for line in run.evaluations],
                              color=style["color"], linewidth=0.7, alpha=0.45)  # fmt: skip
            seeds = curve["seeds"]
            final = f"{mean_text(curve['mean'][-1], curve['sd'][-1], seeds)} % ({seeds} seed{'s' * (seeds > 1)})"
            label = f"{METHOD_LABELS[method]}: {final}"
            axes.plot(curve["rounds"], curve["mean"], color=style["color"], linewidth=2.2, label=label)
        title = ", ".join(METHOD_LABELS[method] for method in methods) + " on " + _title(dataset, records)
        _frame(axes, title, max(curve["rounds"][-1] for curve in methods.values()), 0, 100)
        axes.legend(loc="lower right", frameon=False, fontsize=8)
    return figure


def _plot(axes: Axes, method: str, curve: dict[str, Any], last: int) -> None:
    style = _STYLES[method]
    rounds, mean, sd = curve["rounds"], curve["mean"], curve["sd"]
    axes.plot(rounds, mean, **style, zorder=3 if method.startswith("dresfl") else 2)
    axes.plot(rounds[-1:], mean[-1:], "o", markersize=3.5, color=style["color"], zorder=4)
    if rounds[-1] < last:  # a shorter run: where it ended, to compare with
        axes.plot([rounds[-1], last], [mean[-1]] * 2, linestyle=":", linewidth=1, color=style["color"], alpha=0.8)
    low, high = ([m + sign * s for m, s in zip(mean, sd, strict=True)] for sign in (-1, 1))
    axes.fill_between(rounds, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _range(methods: dict[str, dict[str, Any]]) -> tuple[float, list[str]]:
    """The lowest accuracy to show, and the methods that end below it."""
    finals = {method: curve["mean"][-1] for method, curve in methods.items()}
    best = max(finals.values())
    far = [method for method, final in finals.items() if final < best - _FAR]
    if len(far) > 1:
        return 0.0, []
    near = min(final for method, final in finals.items() if method not in far)
    low = max(0.0, near - max(4.0, 1.2 * (best - near)))
    return low, [method for method in far if finals[method] < low]


def _frame(axes: Axes, title: str, last: int, low: float, high: float) -> None:
    place = axes.get_subplotspec()
    axes.set(title=title, xlabel="round", ylabel="test accuracy (%)" if place and place.is_first_col() else "")
    axes.set_xlim(0, last * 1.07)
    axes.set_ylim(low, min(100.0, high + 0.06 * (high - low)) if high < 100 else 100)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.grid(alpha=0.25, linewidth=0.6)


def _title(dataset: str, records: Sequence[Record]) -> str:
    other = any(split_note(record) for record in records if record.dataset == dataset)
    return data_set_label(dataset) + (" (not the official split)" if other else "")
