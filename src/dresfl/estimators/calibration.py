"""From a network's values to probabilities: one slope, found on rows that were held out."""

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]

# The outputs of squared error are near 0 and 1. With few rows held out the slope stays near this one: log(slope) has
# a normal prior around it, of standard deviation 1.
USUAL_SLOPE = 4.0
_STEPS = 60  # of a search that shrinks an interval by 0.618 each: its end is exact to 1e-12 of its length


def probabilities(outputs: Reals, slope: float) -> Reals:
    """softmax(slope · outputs), rows (m,C). The largest output has the largest probability.

    >>> probabilities(np.array([[0.0, 0.0], [0.0, 1.0]]), slope=4.0).round(3).tolist()
    [[0.5, 0.5], [0.018, 0.982]]
    """
    scaled = slope * (outputs - outputs.max(axis=1, keepdims=True))
    weights = np.exp(scaled)
    found: Reals = weights / weights.sum(axis=1, keepdims=True)
    return found


def fit_slope(outputs: Reals, labels: npt.NDArray[np.int64]) -> float:
    """The slope whose probabilities fit the labels of held-out rows best: a golden-section search on its logarithm.

    >>> fit_slope(np.empty((0, 2)), np.empty(0, np.int64)) == USUAL_SLOPE
    True
    """
    if not len(labels):
        return USUAL_SLOPE

    def cost(logarithm: float) -> float:
        scaled = np.exp(logarithm) * (outputs - outputs.max(axis=1, keepdims=True))
        missed = np.log(np.exp(scaled).sum(axis=1)) - scaled[np.arange(len(labels)), labels]  # −log p(label), finite
        return float(missed.sum() + (logarithm - np.log(USUAL_SLOPE)) ** 2 / 2)

    low, high, ratio = np.log(USUAL_SLOPE) - 6, np.log(USUAL_SLOPE) + 6, (np.sqrt(5) - 1) / 2
    for _ in range(_STEPS):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if cost(left) < cost(right) else (left, high)
    return float(np.exp((low + high) / 2))
