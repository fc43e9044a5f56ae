"""Where the shares of rows that a hidden run computes on come from: a client's table, batch by batch."""

from functools import cached_property
from typing import final

from torch import Tensor

from ..session import BatchRows, Session
from ..shares import ShareTable


@final
class TableRows:
    """A client's shares of rows, from the table of what it was dealt."""

    def __init__(self, session: Session, table: ShareTable) -> None:
        self._session, self._table = session, table

    def batch(self, round_number: int) -> tuple[Tensor, Tensor]:
        """The rows of a round: inputs (M,1,B,F), targets (M,1,B,C)."""
        return self._coded(self._session.batch_rows(round_number))

    def validation(self) -> tuple[Tensor, Tensor]:
        """The rows that are held out for validation, in the same form."""
        return self._held_out

    @cached_property
    def _held_out(self) -> tuple[Tensor, Tensor]:
        return self._coded(self._session.validation_rows())

    def _coded(self, places: BatchRows) -> tuple[Tensor, Tensor]:
        session, size = self._session, self._session.network.input_size
        rows = self._table.rows(places.dealers, places.rows).unsqueeze(1)  # (M,1,B,W)
        rows = rows.to(session.device, session.field.dtype)
        if session.bit_layout is not None:
            rows = session.bit_layout.collapse(session.field, rows)
        return rows[..., :size].contiguous(), rows[..., size:].contiguous()
