"""The results as a picture, from the dictionary alone: times next to their limits and peers, and growth."""

from io import BytesIO
from pathlib import Path
from typing import Any

from dresfl.errors import UsageError
from dresfl.files import write_atomic

from .page import time_text

_FORMATS = ("png", "svg", "pdf")
_COLOURS = {"exact": "#1f5fa8", "limit": "#9aa5b1", "peer": "#d98b3a"}


def bars(results: dict[str, Any]) -> list[tuple[str, str, float]]:
    """(label, kind, seconds) of everything that has a limit or a peer; kinds are exact, limit and peer."""
    products, gradient = "float64 products", results["gradient"]
    compared: list[tuple[str, dict[str, Any], str, dict[str, float]]] = [  # name, row, its limit, its peers
        *(
            (shape, gemm, products, {name: peer["seconds"] for name, peer in gemm["peers"].items()})
            for shape, gemm in results["gemm"].items()
        ),
        *((f"int8 {shape}", row, "vendor", {}) for shape, row in results["int8"].items()),
        ("gradient", gradient, products, {"PyTorch fp32": gradient["torch_fp32_seconds"]}),
        ("round", results["round"], products, {}),
    ]
    found: list[tuple[str, str, float]] = []
    for name, row, limit, peers in compared:
        found += [(f"{name}: dresfl", "exact", row["seconds"]), (f"{name}: {limit}", "limit", row["limit_seconds"])]
        found += [(f"{name}: {peer}", "peer", seconds) for peer, seconds in peers.items()]
    return found


def picture_format(path: Path) -> str:
    """png, svg or pdf, by the file's name; UsageError for any other."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in _FORMATS:
        raise UsageError(f"{path.name} is no picture that can be drawn", f"end its name in .{', .'.join(_FORMATS)}")
    return kind


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw the results into a PNG, SVG or PDF file."""
    kind = picture_format(path)
    from matplotlib.figure import Figure  # here, since it takes half a second to import

    rows = bars(results)
    growth = results["growth"]
    figure = Figure(figsize=(13, 3.2 + 0.24 * len(rows)), dpi=110, layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=[0.24 * len(rows), 3.2])
    below = grid[1].subgridspec(1, len(growth))
    axes = figure.add_subplot(grid[0])
    colours = [_COLOURS[kind] for _, kind, _ in rows]
    drawn = axes.barh([label for label, _, _ in rows], [seconds for _, _, seconds in rows], color=colours)
    axes.bar_label(drawn, fmt=time_text, padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="seconds")
    axes.margins(x=0.12)
    place = results["machine"]["gpu"] if results["device"] == "cuda" else results["machine"]["cpu"]
    axes.set_title(f"dresfl bench: {place}, CPU threads: {results['threads']}", loc="left", fontsize=10)
    for index, (name, fitted) in enumerate(growth.items()):  # legends name each stage's exponent
        panel = figure.add_subplot(below[index])
        for stage, points in fitted["points"].items():
            sizes = [int(size) for size in points]
            panel.plot(sizes, list(points.values()), "o-", markersize=3, label=f"{stage}: {fitted[stage]:.2f}")
        panel.set(xscale="log", yscale="log", xlabel=name)
        panel.set_xticks([int(size) for size in next(iter(fitted["points"].values()))], minor=False)
        panel.set_xticks([], minor=True)
        panel.xaxis.set_major_formatter(lambda size, _: f"{size:.0f}")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
        if index == 0:
            panel.set_ylabel("seconds")
    image = BytesIO()
    figure.savefig(image, format=kind)
    write_atomic(path, image.getvalue())
