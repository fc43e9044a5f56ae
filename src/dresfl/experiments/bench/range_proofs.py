"""Proofs of ranges: what a client's sums over shared bits cost, and what reading a batch of bits costs in each round.

    python -m dresfl.experiments.bench.range_proofs

prints JSON. One thread; MNIST's rows as bits, seven primes of 24 bits, 20 clients.
"""

import json
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from dresfl.field import Octets, ResidueField, Residues, choose_moduli
from dresfl.model import mlp
from dresfl.protocol import ShareTable
from dresfl.protocol.hidden.bit_layout import BitLayout
from dresfl.protocol.hidden.range_proof import plan_range_proof, range_proof_cost, range_values

from .timing import interleaved

_CLIENTS, _ROWS, _MEASURED, _BATCH = 20, 3000, 64, 64
_BITS = 140  # and headroom: seven primes


@final
class _Repeated(ShareTable):
    """The same uniform residues for every dealer, as a disk would give them."""

    def __init__(self, field: ResidueField, bits: int) -> None:
        generator = np.random.default_rng(1)
        words = np.stack([generator.integers(0, p, (_MEASURED, bits)) for p in field.moduli], 1)  # (rows,M,bits)
        octets = words[..., None] >> (8 * np.arange(field.residue_bytes)) & 255
        self._rows: Octets = octets.astype(np.uint8).reshape(_MEASURED, len(field.moduli), -1)

    def put(self, dealer: int, first_row: int, residues: Residues) -> None:
        raise NotImplementedError

    def rows(self, dealers: Tensor, rows: Tensor) -> Tensor:
        raise NotImplementedError

    def packed_rows(self, dealer: int, first: int, last: int) -> Octets:
        return self._rows[first:last]

    def missing(self, dealer: int) -> list[range]:
        return []

    def put_set_up(self, dealer: int, data: bytes) -> None:
        raise NotImplementedError

    def set_up(self, dealer: int) -> bytes | None:
        return None

    def flush(self) -> None:
        """Nothing to do."""


@final
class _NoMasks:
    """Masks are a few values for each dealer, whatever the rows are: they are left out."""

    def __init__(self, moduli: int) -> None:
        self._moduli = moduli

    def bounded(self, label: bytes, bits: int, count: int, *, total: bool) -> tuple[Tensor, Tensor]:
        zeros = self.zeros(label, count, total=total)
        return zeros, zeros

    def zeros(self, label: bytes, count: int, *, total: bool) -> Tensor:
        return torch.zeros((self._moduli, count), dtype=torch.float64)


def proof(seconds: float) -> dict[str, Any]:
    """A client's sums over the bits of 20 dealers, and its rows of a batch from their bits."""
    moduli = choose_moduli(_BITS, more_than=_CLIENTS + 2)
    field = ResidueField(moduli, len(moduli) - 1)
    layout = BitLayout.of(mlp((784, 64, 64, 10), input_bits=4, weight_bits=10), 0.0, 1.0)
    planned = plan_range_proof(
        moduli, layout, num_clients=_CLIENTS, max_deviating=1, num_masks=_CLIENTS, most_rows=_ROWS, kappa=72
    )
    table, rows, masks = _Repeated(field, layout.num_bits), (_MEASURED,) * _CLIENTS, _NoMasks(len(moduli))
    batch = torch.zeros((len(moduli), _BATCH, layout.num_bits), dtype=torch.float64)
    timings = interleaved(
        {
            "values": lambda: range_values(field, planned, table, rows, bytes(32), masks),
            "collapse": lambda: layout.collapse(field, batch),
        },
        seconds,
    )
    bits, cost = sum(rows) * layout.num_bits, range_proof_cost(field, planned, (_ROWS,) * _CLIENTS)
    return {
        "primes": len(moduli),
        "bits_a_row": layout.num_bits,
        "squares": planned.num_squares,
        "sums": planned.num_sums,
        "factor_bits": planned.factor_bits,
        "ns_per_bit": timings["values"].per(bits).median * 1e9,
        "best_ns_per_bit": timings["values"].per(bits).best * 1e9,
        "seconds_for_3000_rows_a_client": timings["values"].per(bits).median * _CLIENTS * _ROWS * layout.num_bits,
        "planned_seconds": cost.seconds,
        "growth": cost.growth,
        "share_bytes": cost.share_bytes,
        "collapse_ms_a_batch": timings["collapse"].median * 1e3,
    }


def main() -> None:
    """Measure; about ten seconds on one core."""
    torch.set_num_threads(1)
    print(json.dumps(proof(8.0), indent=1))


if __name__ == "__main__":
    main()
