"""A small federation to play with: everybody's keys and rows, the agreement, and the weights that must come out."""

import functools
from typing import Any

import torch
import torch.nn.functional as F

from dresfl.federation import Agreement, make_session
from dresfl.model import Dense, Layer, Square, weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, ShareTable, Training, row_bytes
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.local import LocalFederation, no_dropouts
from dresfl.sealing import Identity, Roster
from hidden_oracle import replayed

from .memory_store import Disk, MemoryStore

OPTIMIZER = Optimizer(method="momentum", learning_rate=0.05, schedule="constant")
SLICE_ROWS = 2
ROW_COUNTS = (3, 2, 5, 2, 4, 3)


class Setting:
    """Keys, rows, agreement. Nothing in it changes, so schedules share it."""

    def __init__(
        self,
        layers: tuple[Layer, ...],
        num_clients: int,
        rounds: int,
        max_liars: int = 0,
        hidden: HiddenSettings | None = None,
        num_shards: int = 1,
        row_counts: tuple[int, ...] = ROW_COUNTS,
        target_bits: int = 0,
    ) -> None:
        self.coordinator = Identity.create("coordinator")
        self.clients = [Identity.create(f"client-{i}") for i in range(num_clients)]
        self.roster = Roster.create(self.coordinator, self.coordinator.card, [client.card for client in self.clients])
        self.agreement = Agreement(
            layers,
            input_shape=(3,),
            num_clients=num_clients,
            rounds=rounds,
            input_bits=3,
            weight_bits=6,
            batch_size=4,
            max_liars=max_liars,
            num_shards=num_shards,
            roster=self.roster.digest,
            rows_can_be_computed="accepted" if hidden is None else "",
            mode="open" if hidden is None else "hidden",
            hidden=hidden,
            optimizer=None if hidden is None else OPTIMIZER,
            target_bits=target_bits,
        )
        generator = torch.Generator().manual_seed(7)
        self.rows = []
        classes = self.agreement.network.num_classes
        for count in row_counts[:num_clients]:
            inputs = torch.randint(0, 9, (count, 3), generator=generator, dtype=torch.int32)
            labels = torch.randint(classes, (count,), generator=generator)
            targets = F.one_hot(labels, classes).to(torch.int32)
            if not self.agreement.network.one_hot:
                limit = self.agreement.network.target_limit
                targets = torch.randint(-limit, limit + 1, (count, classes), generator=generator, dtype=torch.int32)
            self.rows.append((inputs, targets))
        self.session = make_session(self.agreement, tuple(len(inputs) for inputs, _ in self.rows), b"", b"")
        self._states = {} if hidden is not None else {(): self.server().state()}
        self._models: dict[bytes, str] = {}

    @property
    def num_clients(self) -> int:
        return self.agreement.num_clients

    @property
    def rounds(self) -> int:
        return self.agreement.rounds

    @property
    def is_hidden(self) -> bool:
        return self.agreement.mode == "hidden"

    @property
    def slice_bytes(self) -> int:
        """What SLICE_BYTES has to be for slices of SLICE_ROWS rows."""
        return SLICE_ROWS * row_bytes(self.session)

    def server(self, session: Session | None = None) -> Training:
        return Training(session or self.session, OPTIMIZER, self.rounds)

    def weights_after(self, stepped: tuple[bool, ...]) -> str:
        """The weights of an undisturbed run in one process that steps in these rounds and leaves out the others."""
        return weights_sha256(self._state_after(stepped)["weights"])

    def hidden_model(self, session: Session, disks: list[Disk]) -> str:
        """The model of a run in one process, on the shares and seeds of these disks, with others missing each time."""
        if session.run not in self._models:
            tables = dict(enumerate(self._table(session, client, disk) for client, disk in enumerate(disks)))
            everything = range(session.num_clients)
            whole = {  # the others were away when the dealers were checked
                client: table
                for client, table in tables.items()
                if not any(table.missing(dealer) or table.set_up(dealer) is None for dealer in everything)
            }
            self._models[session.run] = weights_sha256(replayed(session, whole))
        return self._models[session.run]

    def _table(self, session: Session, client: int, disk: Disk) -> ShareTable:
        for kept in disk.sharings.values():
            kept.damaged.clear()
        return MemoryStore(disk, self.rows[client], lambda: bytes(16)).table(session, client, look=False)[0]

    def _state_after(self, stepped: tuple[bool, ...]) -> dict[str, torch.Tensor]:
        if stepped not in self._states:
            server = self.server()
            server.restore(self._state_after(stepped[:-1]))
            if stepped[-1]:
                everybody = no_dropouts(self.num_clients, 0)
                LocalFederation(self.session, server, self.rows, everybody, "direct").run_round()
            else:
                server.skip()
            self._states[stepped] = server.state()
        return self._states[stepped]


@functools.cache
def hidden(num_clients: int, *, layers: int = 1, rounds: int = 3, num_shards: int = 1, **settings: Any) -> Setting:
    """A hidden run with S2: three must answer and agree, and one more where clients may lie."""
    network: tuple[Layer, ...] = (Dense(2),) if layers == 1 else (Dense(2), Square(), Dense(2))
    chosen = HiddenSettings(**{"schedule": "S2", "trusted_dealers": True, **settings})
    return Setting(network, num_clients, rounds, hidden=chosen, num_shards=num_shards)


@functools.cache
def linear(rounds: int = 4) -> Setting:
    """Five clients, of whom three must answer."""
    return Setting((Dense(3),), 5, rounds)


@functools.cache
def watched(num_clients: int, rounds: int = 3) -> Setting:
    """Clients of whom five must answer, and one may lie."""
    return Setting((Dense(3),), num_clients, rounds, max_liars=1)


@functools.cache
def squared(rounds: int = 3) -> Setting:
    """Six clients, of whom five must answer."""
    return Setting((Dense(2), Square(), Dense(2)), 6, rounds)
