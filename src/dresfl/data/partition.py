"""Who holds which rows: ways to cut one data set into N clients' shares, for experiments.

Each way returns N ascending int64 arrays of row numbers, none empty, in which every row stands exactly once.
Notation: N clients, B rows, n rows of one class.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from dresfl.errors import DataError, UsageError

Rows = npt.NDArray[np.int64]
Partition = Literal["label-sorted", "dirichlet", "iid"]


def partition(
    labels: npt.NDArray[np.int64], num_clients: int, how: Partition, *, alpha: float = 0.5, seed: int = 0
) -> list[Rows]:
    """Which rows of a training set each client gets, by the name of the way. alpha is of "dirichlet" alone.

    - label-sorted, the paper's: rows sorted by label (ties keep their order), then cut into N runs, one per client.
      Runs differ by at most one row, so most clients see one or two classes. Nothing in it is random.
    - iid: every client a uniformly random share. Sizes differ by at most one row.
    - dirichlet: each class dealt to the clients in proportions drawn from Dirichlet(α, ..., α). Small α, skewed shares.

    >>> [rows.tolist() for rows in partition(np.array([1, 0, 2, 0]), 2, "label-sorted")] == [[1, 3], [0, 2]]
    True
    """
    if num_clients < 1:
        raise UsageError(f"{num_clients} clients, wanted at least 1", hint="raise the number of clients")
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"labels are {labels.dtype} of {labels.ndim} axes, wanted integers of 1",
            hint="pass the labels of a DataSet",
        )
    if num_clients > len(labels):
        raise DataError(
            f"{len(labels)} rows for {num_clients} clients, wanted at least one row each",
            hint="lower the number of clients or use a larger data set",
        )
    if how == "label-sorted":
        parts = np.array_split(np.argsort(labels, kind="stable"), num_clients)
    elif how == "iid":
        parts = np.array_split(np.random.default_rng(seed).permutation(len(labels)), num_clients)
    else:
        parts = _dirichlet(labels, num_clients, alpha, np.random.default_rng(seed))
    return [np.sort(part).astype(np.int64, copy=False) for part in parts]


def _dirichlet(labels: npt.NDArray[np.int64], num_clients: int, alpha: float, rng: np.random.Generator) -> list[Rows]:
    """Each class dealt in proportions drawn from Dirichlet(α, ..., α).

    A client that the draw leaves without rows then takes one from the largest share. For small α some draw
    nearly always does, so drawing again would not end; one row moved for such a client is the least change.
    """
    if not 0 < alpha * num_clients < np.inf:
        raise UsageError(
            f"alpha is {alpha}, wanted a positive finite number",
            hint="0.1 gives very different clients, 100 nearly equal ones",
        )
    dealt: list[list[Rows]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))  # (n,)
        cuts = np.cumsum(rng.dirichlet(np.full(num_clients, alpha)))[:-1] * len(rows)  # (N-1,)
        for held, part in zip(dealt, np.split(rows, cuts.astype(np.int64)), strict=True):
            held.append(part)
    shares = [np.concatenate(held) for held in dealt]
    for client in range(num_clients):
        if len(shares[client]) == 0:
            # B ≥ N: while some share is empty, another holds at least two rows.
            largest = max(range(num_clients), key=lambda other: len(shares[other]))
            shares[client], shares[largest] = shares[largest][-1:], shares[largest][:-1]
    return shares
