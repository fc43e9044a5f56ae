"""The diabetes study that comes with scikit-learn: a regression on ten columns of 442 patients."""

from pathlib import Path

import numpy as np

from dresfl.data.dataset import DataSet, Split
from dresfl.data.sources import Source

_LEAST, _MOST = 25, 346  # of the published targets: they are scaled to [-1, 1]
_INPUTS = 5  # times scikit-learn's columns, whose values reach 0.2


def _load(folder: Path | None) -> Split:
    """The data set has no split of its own. Every fifth row in the order of the targets (ties in scikit-learn's order)
    is a test row, so that both parts have targets of every size.
    """
    from sklearn.datasets import load_diabetes  # here: it takes a second to import

    columns, target = load_diabetes(return_X_y=True)
    inputs = (_INPUTS * columns).astype(np.float32)
    targets = (2 * (target - _LEAST) / (_MOST - _LEAST) - 1).astype(np.float32)[:, None]
    is_test = np.zeros(len(targets), np.bool_)
    is_test[np.argsort(target, kind="stable")[::5]] = True
    train, test = (DataSet.regression(inputs[rows], targets[rows], "diabetes") for rows in (~is_test, is_test))
    return Split(train=train, test=test)


SOURCE = Source("diabetes", "diabetes", _load)
