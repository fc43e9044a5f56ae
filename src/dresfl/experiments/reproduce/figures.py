"""Figures from the records alone: test accuracy over rounds, and the share of rounds that were decoded.

Accuracies are drawn by their error, on a logarithmic axis: what is close to 100 % is spread out, and far methods stay
in the picture. Every curve ends in its name and its figures.

Import it where it is used: matplotlib takes half a second.
"""

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from math import log, log10
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dresfl.data import data_set_label
from dresfl.errors import DresError
from dresfl.experiments.published import LIKE, METHOD_LABELS, PAPER
from dresfl.files import write_atomic

from .records import Record, grouped, mean_and_sd
from .tables import LIKE_FOR_LIKE, mean_text, split_note

Curves = dict[str, dict[str, dict[str, Any]]]

# Okabe and Ito's palette, which colour-blind readers can tell apart; ours are the strong ones
_STYLES: dict[str, dict[str, Any]] = {
    "fedavg": {"color": "#e69f00", "linewidth": 1.3},
    "fedavg-is": {"color": "#009e73", "linewidth": 1.3},
    "fedavg-is-unbiased": {"color": "#009e73", "linewidth": 1.0, "linestyle": ":"},
    "scaffold": {"color": "#cc79a7", "linewidth": 1.3},
    "dresfl-paper": {"color": "#56b4e9", "linewidth": 1.8},
    "dresfl": {"color": "#0055a4", "linewidth": 2.2},
    "dresfl-linear": {"color": "#d55e00", "linewidth": 1.6},
    "dresfl-hidden": {"color": "#56b4e9", "linewidth": 1.8},
    "centralised": {"color": "#333333", "linewidth": 1.3, "linestyle": (0, (4, 2))},
}
_NINE_ANSWERS = ("dresfl-paper", "dresfl")  # those that need as many answers, so that a draw decides what is decoded
_LEAST_ERROR = 0.05  # in points: where the axis ends
_SPREAD = 0.12  # a band is drawn where it takes at most this part of a panel's height; else the end says the spread
_GAP = 0.085  # between two labels at the right, as a part of a panel's height
_ACCURACIES = (0, 20, 40, 50, 60, 70, 75, 80, 85, 88, 90, 92, 94, 95, 96, 97, 98, 98.5, 99, 99.3, 99.5, 99.7, 99.9)


def curves(records: Iterable[Record]) -> Curves:
    """{dataset: {method: {rounds, mean, sd, seeds}}}: accuracies in percent at the rounds all seeds evaluated at.

    sd is None where there is one seed.
    """
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
    """Draw figure3, figure4 or decoded into `out` as .svg and .png; return the paths.

    figure3 is two pictures where methods ran like for like: those have one of their own, figure3-like.
    """
    figures = {"figure3": _figure3, "figure4": _figure4, "decoded": _decoded}
    look: Any = {
        "svg.hashsalt": "dresfl",
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#888888",
        "xtick.color": "#444444",
        "ytick.color": "#444444",
    }
    paths = []
    with mpl.rc_context(look):
        for stem, figure in figures[name](records).items():
            for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
                image = BytesIO()
                figure.savefig(image, format=kind, metadata=metadata)
                paths.append(out / f"{stem}.{kind}")
                write_atomic(paths[-1], image.getvalue())
    if not paths:
        raise DresError(f"no finished run belongs to {name}", "run it without --render-only first")
    return paths


def _canvas(panels: int, columns: int, width: float, height: float, caption: str) -> tuple[Figure, list[Axes]]:
    columns = min(columns, panels)
    rows = -(-panels // columns)
    size = max(6.4, width * columns), height * rows + 0.45
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.35 / size[1], 1, 1 - 0.35 / size[1]), wspace=0.02, hspace=0.04)  # type: ignore[union-attr, call-arg]
    figure.text(0.012, 0.012, caption, fontsize=7.5, color="#555555", va="bottom", wrap=True)
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(panels)]


# -- test accuracy ---------------------------------------------------------------------------------------------


def _figure3(records: Sequence[Record]) -> dict[str, Figure]:
    """A panel a data set, a curve a method: the paper's methods, and those that ran like for like."""
    found = curves(records)
    pictures = {
        "figure3": _chosen(found, lambda method: method == "dresfl" or method not in LIKE_FOR_LIKE),
        "figure3-like": _chosen(found, lambda method: method in LIKE_FOR_LIKE),
    }
    caption = {
        "figure3": "Mean of the seeds ± standard deviation; in brackets the paper's figure. A band shows the deviation "
        "where it is narrow.\nA dotted line goes on from where a shorter run ended.",
        "figure3-like": "All on our features, with our batch size and rounds. Baselines: our network with ReLU, in "
        "floats. Mean of the seeds ± standard deviation.\nA band shows the deviation where it is narrow.",
    }
    return {
        stem: _panels(chosen, records, caption[stem])
        for stem, chosen in pictures.items()
        if any(set(methods) - {"dresfl"} for methods in chosen.values()) or (stem == "figure3" and chosen)
    }


def _chosen(found: Curves, wanted: Any) -> Curves:
    chosen = {
        dataset: {method: curve for method, curve in methods.items() if wanted(method)}
        for dataset, methods in found.items()
    }
    return {dataset: methods for dataset, methods in chosen.items() if methods}


def _panels(found: Curves, records: Sequence[Record], caption: str) -> Figure:
    figure, panels = _canvas(len(found), 2, 6.2, 2.9, caption)
    for axes, (dataset, methods) in zip(panels, found.items(), strict=True):
        last = max(curve["rounds"][-1] for curve in methods.values())
        first = min(curve["rounds"][0] for curve in methods.values())
        _frame(axes, _title(dataset, records), (first, last), [curve["mean"][-1] for curve in methods.values()])
        ends = {}
        for method, curve in methods.items():
            _plot(axes, method, curve, last)
            final = mean_text(curve["mean"][-1], curve["sd"][-1])
            paper = PAPER.get((dataset, method)) if method != "dresfl" else None
            theirs = f" ({paper[0]:.1f})" if paper else ""
            label = METHOD_LABELS.get(method, method).removesuffix(", like for like")  # the caption says it
            ends[method] = curve["mean"][-1], f"{label} {final}{theirs}"
        _label_ends(axes, ends, last)
    return figure


def _figure4(records: Sequence[Record]) -> dict[str, Figure]:
    """A panel a data set: every seed by itself, their mean, and the paper's figure as a band."""
    found = curves(records)
    if not found:
        return {}
    caption = "Thin: single seeds. Thick: their mean. Band: the paper's mean ± standard deviation."
    if any(run.perturbation for run in records):
        caption += " Dotted: a seed again, its first weights changed by 1e-9."
    figure, panels = _canvas(len(found), 1, 7.4, 3.6, caption)
    for axes, (dataset, methods) in zip(panels, found.items(), strict=True):
        names = METHOD_LABELS.get(next(iter(methods)), "") if len(methods) == 1 else f"{len(methods)} methods"
        last = max(curve["rounds"][-1] for curve in methods.values())
        first = min(curve["rounds"][0] for curve in methods.values())
        runs = [run for run in records if run.feasible and run.dataset == dataset and run.method in methods]
        seen = [100 * line["test_accuracy"] for run in runs for line in run.evaluations]
        _frame(axes, f"{names} on {_title(dataset, records)}", (first, last), [min(seen), max(seen)], margin=1.0)
        ends: dict[str, tuple[float, str]] = {}
        for method, curve in methods.items():
            style = _style(method)
            if published := PAPER.get((dataset, method)):
                mean, sd = published
                axes.axhspan(*_errors([mean + sd, mean - sd]), color=style["color"], alpha=0.13, linewidth=0)
                if len(methods) == 1:
                    ends[f"{method} the paper"] = mean, f"the paper: {mean_text(mean, sd)}"
            for run in runs:
                if run.method == method:
                    axes.plot([line["round"] for line in run.evaluations],
                              _errors([100 * line["test_accuracy"] for line in run.evaluations]),
                              color=style["color"], linewidth=0.8, alpha=0.55,
                              linestyle=":" if run.perturbation else "-")  # fmt: skip
                    if len(methods) == 1:
                        again = ", again" * bool(run.perturbation)
                        name = f"{method} {run.seed} {run.perturbation}"
                        ends[name] = run.percent, f"seed {run.seed}{again}: {run.percent:.2f}"
            axes.plot(curve["rounds"], _errors(curve["mean"]), color=style["color"], linewidth=2.4)
            mean, sd = curve["mean"][-1], curve["sd"][-1]
            named = "mean" if len(methods) == 1 else METHOD_LABELS.get(method, method)
            ends[f"{method} mean"] = mean, f"{named}: {mean_text(mean, sd)}"
        _label_ends(axes, ends, last, bold="mean")
    return {"figure4": figure}


def _errors(percents: Iterable[float]) -> list[float]:
    return [max(_LEAST_ERROR, 100 - percent) for percent in percents]


def _style(method: str) -> dict[str, Any]:
    """A method's line; one that runs like for like has that of the paper's method."""
    return _STYLES.get(method.removeprefix(LIKE), {"color": "#777777", "linewidth": 1.2})


def _plot(axes: Axes, method: str, curve: Mapping[str, Any], last: int) -> None:
    style = _style(method)
    rounds, mean, sd = curve["rounds"], curve["mean"], curve["sd"]
    axes.plot(rounds, _errors(mean), **style, zorder=3 if method.startswith("dresfl") else 2)
    axes.plot(rounds[-1:], _errors(mean[-1:]), "o", markersize=3.5, color=style["color"], zorder=4, clip_on=False)
    if rounds[-1] < last:
        axes.plot([rounds[-1], last], _errors(mean[-1:] * 2), linestyle=":", linewidth=1, color=style["color"])
    if curve["seeds"] == 1:
        return
    low, high = (_errors(m + sign * s for m, s in zip(mean, sd, strict=True)) for sign in (-1, 1))
    narrow = [_height(axes, bottom) - _height(axes, top) <= _SPREAD for bottom, top in zip(low, high, strict=True)]
    start = max((number + 1 for number, one in enumerate(narrow) if not one), default=0)  # from there to the end
    axes.fill_between(rounds[start:], low[start:], high[start:], color=style["color"], alpha=0.18, linewidth=0)


def _frame(axes: Axes, title: str, rounds: tuple[int, int], finals: Sequence[float], margin: float = 1.5) -> None:
    """Axes from the first to the last round, and from the best error to somewhat beyond the worst."""
    first, last = rounds
    place = axes.get_subplotspec()
    axes.set(title=title, xlabel="round", ylabel="test accuracy (%)" if place and place.is_first_col() else "")
    axes.set_xscale("log")
    axes.set_xlim(first, last * 1.001 if last > first else last + 1)
    axes.xaxis.set_major_locator(FixedLocator([m * 10**e for e in range(int(log10(last)) + 1) for m in (1, 2, 5)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x < 1000 else f"{x / 1000:,.0f}k"))
    worst, best = _errors([min(finals), max(finals)])
    worst, best = min(100.0, worst * margin), max(_LEAST_ERROR, best * 0.8)
    axes.set_yscale("log")
    axes.set_ylim(max(worst, best * 1.3), best)  # upside down: the best is at the top
    shown = [accuracy for accuracy in _ACCURACIES if best <= 100 - accuracy <= worst]
    kept: list[float] = []
    for accuracy in shown:  # not closer than a line of text
        if not kept or abs(_height(axes, 100 - accuracy) - _height(axes, 100 - kept[-1])) > 0.08:
            kept.append(accuracy)
    axes.yaxis.set_major_locator(FixedLocator([100 - accuracy for accuracy in kept]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda error, _: f"{100 - error:.3g}"))
    axes.grid(alpha=0.25, linewidth=0.6)


def _height(axes: Axes, error: float) -> float:
    """Where an error lies in a panel: 0 at the top, 1 at the bottom; what is outside is at the edge."""
    bottom, top = axes.get_ylim()
    return min(1.0, max(0.0, log(error / top) / log(bottom / top)))


def _label_ends(axes: Axes, ends: Mapping[str, tuple[float, str]], last: int, bold: str = "dresfl") -> None:
    """Write each curve's name and figures at the right, one below the other, each with a line to its end."""
    order = sorted(ends, key=lambda name: ends[name][0], reverse=True)
    wanted = [_height(axes, _errors([ends[name][0]])[0]) for name in order]
    gap = min(_GAP, 1 / len(ends))
    places: list[float] = []
    for height in wanted:
        places.append(max(height, places[-1] + gap) if places else height)
    over = places[-1] - 1.0
    for number in reversed(range(len(places))):  # what went over the bottom moves up again
        limit = 1.0 if number == len(places) - 1 else places[number + 1] - gap
        if over > 0:
            places[number] = min(places[number], limit)
    for name, height, place in zip(order, wanted, places, strict=True):
        color = _style(name.split(" ")[0])["color"]
        axes.annotate(
            ends[name][1],
            xy=(1.0, 1 - height),
            xytext=(1.06, 1 - place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=color,
            fontsize=8,
            fontweight="bold" if name == bold or name.endswith(f" {bold}") else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.6,
                "shrinkA": 1,
                "shrinkB": 2,
                "relpos": (0, 0.5),
            },
        )


# -- decoded rounds --------------------------------------------------------------------------------------------


def _decoded(records: Sequence[Record]) -> dict[str, Figure]:
    """A small panel a dropout draw: of the rounds since the evaluation before, the share that was decoded."""
    draws: dict[tuple[bool, int], list[Record]] = {}
    for record in records:
        if record.method in _NINE_ANSWERS and not record.perturbation:
            draws.setdefault((not record.feasible, int(record.header["dropout_seed"])), []).append(record)
    if not draws:
        return {}
    caption = (
        "One panel a dropout draw, one line a run of DReS-FL (all data sets, the paper's recipe and ours): "
        "of the rounds between two evaluations, the share\nthat had enough answers. The figure is the share of all "
        "rounds. All runs of a draw lose the same clients, so their lines lie together."
    )
    figure, panels = _canvas(len(draws), 3, 3.6, 1.9, caption)
    for axes, ((infeasible, draw), runs) in zip(panels, sorted(draws.items()), strict=True):
        reliable = runs[0].result.get("reliable_clients")
        for run in runs:
            rounds, decoded = _shares(run)
            axes.plot([number / run.header["rounds"] for number in rounds], [100 * share for share in decoded],
                      color=_style(run.method)["color"], linewidth=0.8, alpha=0.6)  # fmt: skip
        whole = [100 * float(run.result["decoded_share"]) for run in runs]
        shares = " to ".join(dict.fromkeys(f"{share:.1f}" for share in (min(whole), max(whole))))
        axes.text(0.98, 0.5 if infeasible else 0.16, f"{shares} %", transform=axes.transAxes,
                  ha="right", va="center", fontsize=11, fontweight="bold", color="#333333")  # fmt: skip
        axes.set_title(f"draw {draw}: {reliable} of 20 clients are reliable" + ", too few" * infeasible, fontsize=8.5)
        place = axes.get_subplotspec()
        axes.set(xlim=(0, 1), ylim=(-3, 104), ylabel="rounds decoded (%)" if place and place.is_first_col() else "")
        axes.xaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda part, _: ["start", "half", "end"][round(2 * part)]))
        axes.yaxis.set_major_locator(FixedLocator([0, 50, 100]))
        axes.grid(alpha=0.25, linewidth=0.6)
    return {"decoded": figure}


def _shares(run: Record) -> tuple[list[int], list[float]]:
    """At each evaluation: which round, and of the rounds since the one before, the share that was decoded."""
    rounds, shares, before, lost_before = [], [], 0, 0
    for line in run.evaluations:
        lost = line.get("skipped_rounds", 0) + line.get("alarms", 0)
        rounds.append(line["round"])
        shares.append(1 - (lost - lost_before) / (line["round"] - before))
        before, lost_before = line["round"], lost
    return rounds, shares


def _title(dataset: str, records: Sequence[Record]) -> str:
    other = any(split_note(record) for record in records if record.dataset == dataset)
    return data_set_label(dataset) + (" (not the official split)" if other else "")
