"""Which rows belong to which client, and which of them a client holds out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import column_or_1d

from dresfl.errors import EstimatorError

Rows = npt.NDArray[np.int64]


def deal_rows(
    num_rows: int, clients: npt.ArrayLike | None, num_clients: int, generator: np.random.Generator
) -> tuple[npt.NDArray[Any], list[Rows]]:
    """The clients, and the rows of each: by their keys (m,), or by chance if there are none."""
    if clients is None:
        return np.arange(num_clients), parts_by_chance(num_rows, num_clients, generator)
    keys = column_or_1d(clients)
    if len(keys) != num_rows:
        raise EstimatorError(
            f"inconsistent numbers of rows: {num_rows} rows came with {len(keys)} clients", "give each row its client"
        )
    return parts_by_key(keys)


def parts_by_key(keys: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], list[Rows]]:
    """The clients of a column of keys (m,), sorted, and the rows of each.

    >>> names, parts = parts_by_key(np.array(["b", "a", "b"]))
    >>> names.tolist(), [part.tolist() for part in parts]
    (['a', 'b'], [[1], [0, 2]])
    """
    names, places = np.unique(keys, return_inverse=True)
    order = np.argsort(places, kind="stable").astype(np.int64)
    return names, np.split(order, np.cumsum(np.bincount(places))[:-1])


def parts_by_chance(num_rows: int, num_clients: int, generator: np.random.Generator) -> list[Rows]:
    """Rows dealt to the clients by chance; how many they get differs by at most one. Each gets at least one."""
    if num_rows < num_clients:
        raise EstimatorError(
            f"n_samples={num_rows}: {num_clients} clients need a row each",
            "give more rows, or fewer num_clients, or say with `clients` whose rows these are",
        )
    return [np.sort(part) for part in np.array_split(generator.permutation(num_rows), num_clients)]


def hold_out(parts: Sequence[Rows], share: float, generator: np.random.Generator) -> tuple[list[Rows], list[Rows]]:
    """Each client's rows for training, and those that it holds out: `share` of them on average, never its last one."""
    kept: list[Rows] = []
    held: list[Rows] = []
    for part in parts:
        count = min(int(len(part) * share + generator.random()), max(0, len(part) - 1))
        mixed = generator.permutation(part)
        kept.append(np.sort(mixed[count:]))
        held.append(np.sort(mixed[:count]))
    return kept, held
