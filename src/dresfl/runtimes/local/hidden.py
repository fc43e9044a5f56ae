"""All clients of a hidden run in one process: they play the real protocol, hop by hop, with whoever is there.

For tests, attacks and studies. Every share is dealt and kept in memory, so small data alone fits.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, final

from torch import Tensor

from dresfl.errors import TooFewAnswers, UsageError
from dresfl.field import SecretSeed
from dresfl.protocol import Client, MemoryTable, Session, held_set_ups, seeds_of
from dresfl.protocol.hidden.archive import Archive
from dresfl.protocol.hidden.client import HiddenClient
from dresfl.protocol.hidden.coded_rows import TableRows
from dresfl.protocol.hidden.ledger import History, Ledger
from dresfl.protocol.hidden.opening import HopOpening, Opened, loss_of, opened_weights
from dresfl.protocol.hidden.published import final_weights
from dresfl.protocol.hidden.seeds import RunSeeds

Absent = Callable[[int, int], Iterable[int]]  # round and hop -> the clients that do not answer it


@final
class HiddenFederation:
    """N clients and a coordinator that play hidden rounds. `play` opens one hop after another."""

    def __init__(self, session: Session, data: Sequence[tuple[Tensor, Tensor]]) -> None:
        """data: each client's integer inputs (m,F) and targets (m,C)."""
        self.session = session
        self.tables = _share(session, data)
        self.dealt = [seeds_of(held_set_ups(session, i, table)) for i, table in enumerate(self.tables)]
        self.restart()

    def restart(self) -> None:
        """Begin the same run again, with the same seeds. Real clients never do that: it is for studies."""
        self.clients = [self.new_client(i) for i in range(self.session.num_clients)]
        self.ledger = Ledger(self.session.hidden_plan, self.session.run)
        self.published: list[Opened] = []
        self._archive = Archive()
        self.model: Tensor | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a HiddenFederation holds its clients' secrets and is not pickled")

    def new_client(self, index: int) -> HiddenClient:
        """A client as it is at the start of the run."""
        session, table = self.session, self.tables[index]
        seeds = RunSeeds.begin(self.dealt[index], session.run)
        client = HiddenClient(session, index, TableRows(session, table), seeds)
        client.start(session.num_clients)
        return client

    def play(self, absent: Absent = lambda round_number, hop: ()) -> Tensor:
        """Play to the end; the opened weights (P,). absent: who does not answer which hop."""
        while not self.ledger.ended:
            self.play_hop(absent(*self.ledger.position.order))
        model = self.clients[0].model
        if model is None:
            raise UsageError("this run is a trial: it opens no weights")
        return model

    def play_hop(self, absent: Iterable[int] = ()) -> Opened:
        """Open the next hop with the answers of all clients that are not absent. Everybody hears what is published."""
        opened = self.collect(absent)
        self.publish(opened.published)
        self.published.append(opened)
        return opened

    def collect(self, absent: Iterable[int] = ()) -> Opened:
        """The answers to the next hop, opened."""
        missing, opening = set(absent), HopOpening(self.session, self.ledger)
        for client in self.clients:
            answer = None if client.index in missing else client.answer()
            opened = None if answer is None else opening.add(answer)
            if opened is not None:
                return opened
        raise TooFewAnswers(
            f"{len(opening.answered)} of {self.session.num_clients} clients answered, "
            f"{self.session.answers_needed} that agree are needed"
        )

    def publish(self, published: bytes) -> None:
        """Let everybody hear what was opened, and confirm it to each other where check C is asked for."""
        self.note(published)
        for client in self.clients:
            client.receive(published)
        if self.session.hidden_plan.settings.check == "C":
            values = {c.index: c.check_value for c in self.clients if c.check_value is not None}
            for client in self.clients:
                client.confirm(values)

    def note(self, published: bytes) -> None:
        """Move the coordinator's own ledger on."""
        ledger, loss = self.ledger, loss_of(self.session, self.ledger, published)
        if ledger.final and self.session.hidden_plan.settings.model_for == "everybody":
            self.model = final_weights(self.session, opened_weights(self.session, ledger, published))
        self._archive.note(ledger, published)
        ledger.advance(published, loss)

    def history(self, *, long: bool = False) -> History:
        """What a client that was away needs, and no more."""
        return self._archive.history(self.ledger, long=long)


def _share(session: Session, data: Sequence[tuple[Tensor, Tensor]]) -> list[MemoryTable]:
    """Every client deals its rows and set-up values to everybody."""
    tables = [MemoryTable(session) for _ in data]
    dealers = [Client(session, i, SecretSeed.fresh(), *rows, tables[i]) for i, rows in enumerate(data)]
    everybody = range(session.num_clients)
    for dealer in dealers:
        for share in dealer.deal_to(everybody):
            dealers[share.receiver].receive(share)
        for receiver, values in zip(everybody, dealer.deal_set_up(everybody), strict=True):
            dealers[receiver].receive_set_up(dealer.index, values)
    return tables
