"""The model that a run of real participants ends with: the same file at the coordinator and at every client."""

from pathlib import Path

from torch import Tensor

from dresfl.federation import Agreement
from dresfl.protocol import Task
from dresfl.storage.model_file import StoredModel, write_model


def stored_model(agreement: Agreement, weights: Tensor) -> StoredModel:
    """An agreement's network with its final integer weights."""
    return StoredModel(agreement.network, weights, agreement.shift, agreement.input_bound)


def keep_model(path: str, agreement: Agreement, final: Task) -> None:
    """Write the final weights where site.toml wants them; an empty path: nowhere."""
    if path:
        write_model(Path(path), stored_model(agreement, final.weights))
