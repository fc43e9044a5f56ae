"""What the paper reports and the names it gives: Table 1 (mean ± sd of five runs, in percent), appendix B.

This module is cheap to import: `dresfl reproduce --help` lists the names.
"""

from importlib import resources
from typing import Final, Literal, get_args

Method = Literal[
    "fedavg", "fedavg-is", "fedavg-is-unbiased", "scaffold", "dresfl-paper", "dresfl", "centralised",
    "like-fedavg", "like-fedavg-is", "like-scaffold", "like-centralised", "dresfl-linear", "dresfl-hidden",
]  # fmt: skip

METHODS: Final[tuple[Method, ...]] = get_args(Method)
METHOD_LABELS: Final[dict[str, str]] = {
    "fedavg": "FedAvg",
    "fedavg-is": "FedAvg-IS",
    "fedavg-is-unbiased": "FedAvg-IS, unbiased",
    "scaffold": "SCAFFOLD",
    "dresfl-paper": "DReS-FL, the paper's recipe",
    "dresfl": "DReS-FL, our recipe",
    "centralised": "centralised",
    "like-fedavg": "FedAvg, like for like",
    "like-fedavg-is": "FedAvg-IS, like for like",
    "like-scaffold": "SCAFFOLD, like for like",
    "like-centralised": "centralised, like for like",
    "dresfl-linear": "DReS-FL, one layer (L = 0)",
    "dresfl-hidden": "DReS-FL, hidden mode",
}
LIKE: Final = "like-"
"""Begins the names of baselines with the network, features, optimiser and rounds of `dresfl`: with ReLU, in reals."""

TABLE_DATASETS: Final = ("mnist", "fashion", "emnist", "cifar10", "cifar100", "svhn")

_ROWS: Final[dict[str, tuple[tuple[float, float], ...]]] = {
    "fedavg": ((96.17, 0.05), (81.20, 0.07), (71.50, 0.28), (89.54, 0.09), (67.71, 0.26), (83.82, 0.20)),
    "fedavg-is": ((97.06, 0.10), (85.94, 0.16), (77.09, 0.34), (89.83, 0.07), (68.92, 0.14), (85.27, 0.09)),
    "scaffold": ((71.89, 3.92), (55.22, 1.83), (55.15, 5.95), (54.17, 9.13), (29.97, 1.73), (51.27, 3.43)),
    "dresfl": ((97.38, 0.08), (86.60, 0.32), (78.04, 0.29), (90.31, 0.19), (69.15, 0.27), (86.04, 0.15)),
    "centralised": ((97.99, 0.04), (89.02, 0.11), (82.45, 0.23), (90.37, 0.12), (71.12, 0.09), (86.18, 0.03)),
}
# The paper has one row of each; it stands beside both of ours.
_SAME_ROW: Final = {"dresfl-paper": "dresfl", "fedavg-is-unbiased": "fedavg-is"}

PAPER: Final[dict[tuple[str, str], tuple[float, float]]] = {
    (dataset, method): _ROWS[_SAME_ROW.get(method, method)][column]
    for column, dataset in enumerate(TABLE_DATASETS)
    for method in (*_ROWS, *_SAME_ROW)
}
"""PAPER[dataset, method]: mean and standard deviation, of the methods that the paper has."""

ROWS: Final[dict[str, tuple[int, int]]] = {
    "mnist": (60_000, 10_000),
    "fashion": (60_000, 10_000),
    "emnist": (112_800, 18_800),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "svhn": (73_257, 26_032),
}
"""Training and test rows of the official splits, which the paper used."""


def recipes() -> list[str]:
    """The data sets that have a recipe, the paper's first and in its order."""
    folder = resources.files(__package__) / "reproduce" / "recipes"
    names = {entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")}
    return [*TABLE_DATASETS, *sorted(names - set(TABLE_DATASETS))]
