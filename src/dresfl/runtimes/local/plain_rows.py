"""The rows of all simulated clients as they are, in one table, and which of them a coded row hides."""

import itertools
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from dresfl.protocol import BatchRows, Session, rows_to_share


@final
class PlainRows:
    """All clients' rows, on the session's device. Only a simulation has such a thing."""

    def __init__(self, session: Session, data: Sequence[tuple[Tensor, Tensor]]) -> None:
        """data: each client's integer inputs (m,F) and targets (m,C)."""
        starts = list(itertools.accumulate((0, *session.client_rows)))
        width = session.network.input_size + session.network.num_classes  # also where bits are dealt in their place
        self.values = torch.empty((starts[-1], width), dtype=torch.int32, device=session.device)  # (m,W)
        for i, client in enumerate(data):  # one at a time: features of many images take gigabytes
            self.values[starts[i] : starts[i + 1]] = rows_to_share(session, i, *client).to(torch.int32)
        hidden = [session.shard_rows(i) + starts[i] for i in range(session.num_clients)]
        self._hidden = torch.cat(hidden).to(session.device)  # (coded rows,K): the rows in every coded row
        self._coded_starts = torch.tensor([0, *map(len, hidden[:-1])]).cumsum(0)

    def hidden_in(self, batch: BatchRows) -> Tensor:
        """Which rows the coded rows (...) of a batch hide: (...,K), as places in the rows of all clients."""
        places = self._coded_starts[batch.dealers] + batch.rows
        return self._hidden[places.to(self._hidden.device)]
