"""The digits that come with scikit-learn."""

from pathlib import Path

import numpy as np

from dresfl.data.dataset import DataSet, Split
from dresfl.data.sources import Source


def _load(folder: Path | None) -> Split:
    """The data set has no split of its own. Every fifth row in label order (ties in scikit-learn's order) is a test
    row, so each class is split four to one.
    """
    from sklearn.datasets import load_digits  # here: it takes a second to import, and only `digits` needs it

    flat, target = load_digits(return_X_y=True)
    inputs = (flat / 16).astype(np.float32).reshape(-1, 8, 8, 1)  # (B,64) -> (B,8,8,1)
    labels = target.astype(np.int64)
    # In file order the digits come in runs of 0 to 9, so every fifth row there would favour some classes.
    is_test = np.zeros(len(labels), np.bool_)
    is_test[np.argsort(labels, kind="stable")[::5]] = True
    train, test = (DataSet(inputs[rows], labels[rows], 10, "digits") for rows in (~is_test, is_test))
    return Split(train=train, test=test)


SOURCE = Source("digits", "digits", _load)
