"""What a site keeps of a run: the final weights."""

from pathlib import Path

from dresfl.federation import Agreement
from dresfl.files import save_tensors
from dresfl.model import weights_sha256
from dresfl.protocol import Task


def keep_model(path: str, agreement: Agreement, final: Task) -> None:
    """Write the final weights where site.toml wants them; an empty path: nowhere."""
    if path:
        digest = weights_sha256(final.weights)
        description = {"format": "dresfl model 1", "agreement": agreement.to_dict(), "weights_sha256": digest}
        save_tensors(Path(path), agreement.network.tensors(final.weights), description)
