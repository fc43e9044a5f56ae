"""Data sets and how clients share them out: `load` reads what a user already has, partitions cut it up.

Nothing here downloads, and nothing is trusted: files are parsed with their lengths checked before memory is
spent on them, and no pickle gets to name code of its own choosing.
"""

from .dataset import DataSet, Split
from .partition import dirichlet, iid, label_sorted
from .readers import DATASETS, load

__all__ = ["DataSet", "Split", "load", "DATASETS", "label_sorted", "dirichlet", "iid"]
