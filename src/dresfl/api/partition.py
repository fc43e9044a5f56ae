"""One data set spread over simulated clients."""

import numpy as np
import numpy.typing as npt

from dresfl.data import DataSet, Partition
from dresfl.data import partition as partition_labels

ClientRows = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64] | npt.NDArray[np.float32]]


def partition(
    rows: DataSet, num_clients: int, how: Partition = "label-sorted", *, alpha: float = 0.5, seed: int = 0
) -> list[ClientRows]:
    """Each client's (inputs, labels), or of a regression (inputs, targets), as `simulate` takes them.

    how: "label-sorted" gives most clients one or two classes, as in the paper; "dirichlet" skews by `alpha`, the
    smaller the more; "iid" does not skew. Rows of a regression are skewed by the tenth in which their target is.

    >>> import dresfl as dr
    >>> clients = partition(dr.load_dataset("digits").train, 20)
    >>> len(clients), sum(len(labels) for _, labels in clients)
    (20, 1437)
    """
    parts = partition_labels(rows.strata, num_clients, how, alpha=alpha, seed=seed)
    wanted = rows.labels if rows.targets is None or not rows.is_regression else rows.targets
    return [(rows.inputs[part], wanted[part]) for part in parts]
