"""The model of a hidden run, played once more in one process, on the same shares and seeds, with others missing."""

import random
from collections.abc import Mapping

from torch import Tensor

from dresfl.protocol import Session, ShareTable, held_set_ups, seeds_of
from dresfl.protocol.hidden.client import HiddenClient
from dresfl.protocol.hidden.coded_rows import TableRows
from dresfl.protocol.hidden.ledger import Ledger
from dresfl.protocol.hidden.opening import HopOpening, loss_of
from dresfl.protocol.hidden.seeds import RunSeeds


def replayed(session: Session, tables: Mapping[int, ShareTable]) -> Tensor:
    """The weights (P,). tables: by client. In every hop as few answer as may, each time others."""
    clients = []
    for index, table in tables.items():
        seeds = RunSeeds.begin(seeds_of(held_set_ups(session, index, table)), session.run)
        client = HiddenClient(session, index, TableRows(session, table), seeds)
        client.start(session.num_clients)
        clients.append(client)
    ledger, generator = Ledger(session.hidden_plan, session.run), random.Random(session.run)
    while not ledger.ended:
        opening, opened = HopOpening(session, ledger), None
        for client in generator.sample(clients, session.answers_needed):
            answer = client.answer()
            assert answer is not None
            opened = opening.add(answer)
        assert opened is not None
        ledger.advance(opened.published, loss_of(session, ledger, opened.published))
        for client in clients:
            client.receive(opened.published)
        values = {c.index: c.check_value for c in clients if c.check_value is not None}
        for client in clients:
            client.confirm(values)
    model = clients[0].model
    assert model is not None
    return model
