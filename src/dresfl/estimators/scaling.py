"""One scaling for all clients: centre, divide by the spread, clip. It is made of totals over the clients alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class Scaling:
    """Real columns (m,F) -> float32 in [-1, 1]: (x − mean) / spread, clipped at ±clip, divided by clip.

    >>> scaling = Scaling(np.array([10.0]), np.array([2.0]), clip=2.0)
    >>> scaling.apply(np.array([[10.0], [12.0], [99.0]])).ravel().tolist() == [0.0, 0.5, 1.0]
    True
    """

    mean: Reals
    spread: Reals
    clip: float

    def apply(self, values: Reals) -> npt.NDArray[np.float32]:
        """The scaled columns. Every client applies it to its own rows, and whoever predicts to new ones."""
        centred = (values - self.mean) / self.spread
        np.clip(centred, -self.clip, self.clip, out=centred)
        return (centred / self.clip).astype(np.float32)


def scaling_of_clients(values: Reals, parts: Sequence[Rows], clip: float) -> Scaling:
    """The scaling by mean and standard deviation over all clients' rows.

    Each client gives the number, the mean and the sum of squared deviations of its own rows. They are combined client
    by client, so that no digits cancel as they would in Σx² − (Σx)²/m. A column that never varies has the spread 1.

    >>> found = scaling_of_clients(np.array([[1.0], [3.0], [8.0]]), [np.array([0, 1]), np.array([2])], clip=2.0)
    >>> found.mean.tolist() == [4.0], np.allclose(found.spread, np.std([1, 3, 8]))
    (True, True)
    """
    count, mean, squares = 0, np.zeros(values.shape[1]), np.zeros(values.shape[1])
    for part in parts:
        if len(part):
            own = values[part].mean(axis=0)
            away = own - mean
            total = count + len(part)
            squares = squares + ((values[part] - own) ** 2).sum(axis=0) + away**2 * (count * len(part) / total)
            count, mean = total, mean + away * (len(part) / total)
    spread = np.sqrt(squares / max(1, count))
    still = spread <= 1e-12 * np.abs(mean)  # what rounding leaves of a constant
    return Scaling(mean, np.where(still | (spread == 0), 1.0, spread), clip)
