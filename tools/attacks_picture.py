"""Draw docs/open-and-hidden.png from results/attacks.jsonl: rows from weights, the open mode beside the hidden one.

python tools/attacks_picture.py

`make attacks` keeps of some attacks what they computed in the place of ten images. The same ten images are drawn for
the open mode and for the hidden one.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from dresfl.data import load

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).parents[1]
LINES = ROOT / "results" / "attacks.jsonl"
PICTURE = ROOT / "docs" / "open-and-hidden.png"
LEVELS = 16  # pixels are kept as whole steps of 1/16
OPEN = "rows_from_weights", "test_digits_5000_rounds"
HIDDEN = "hidden/rows_from_everything", "test_digits_weights"

Images = Any  # (10,64) in 0..1


def known_before() -> Images:
    """What an attacker expects of each digit: the mean of public images, which no client trains on."""
    test = load("digits", None).test
    rows, labels = np.asarray(test.inputs).reshape(len(test.labels), -1), np.asarray(test.labels)
    return np.stack([rows[labels == k].mean(0) for k in range(10)])


def lines_of(results: list[dict[str, Any]]) -> dict[str, Images]:
    """What is drawn, line by line."""
    found = {(line["attack"], line["test"]): line for line in results}
    opened, hidden = found[OPEN], found[HIDDEN]
    true = opened["sample"]["true"]
    if true != hidden["sample"]["true"]:
        raise SystemExit("the two attacks show other images: run `make attacks` again")
    share = [f"{100 * value:.1f} %" for value in (opened["found"], hidden["found"], hidden["control_found"])]
    return {
        "true rows": np.array(true) / LEVELS,
        "known before": known_before(),
        f"open mode: {share[0]} found": np.array(opened["sample"]["computed"]) / LEVELS,
        f"hidden mode: {share[1]} found": np.array(hidden["sample"]["computed"]) / LEVELS,
        f"hidden mode, masks zero: {share[2]}": np.array(hidden["control_sample"]["computed"]) / LEVELS,
    }


def draw(lines: dict[str, Images], path: Path) -> None:
    columns = len(next(iter(lines.values())))
    figure, axes = pyplot.subplots(len(lines), columns, figsize=(8, 3.2))
    for line, (name, images) in zip(axes, lines.items(), strict=True):
        for axis, image in zip(line, images, strict=True):
            axis.imshow(np.asarray(image).reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
            axis.axis("off")
        line[0].text(-0.3, 0.5, name, ha="right", va="center", transform=line[0].transAxes, fontsize=9)
    figure.subplots_adjust(left=0.31, right=0.995, top=0.99, bottom=0.01, wspace=0.08, hspace=0.08)
    figure.savefig(path, dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    draw(lines_of([json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]), PICTURE)
