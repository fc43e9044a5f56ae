"""A small consortium: everybody's keys, what they agreed on, and the rows each would have."""

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dresfl.federation import Agreement, make_session
from dresfl.model import Dense, Square, weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, Training
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.grpc_runtime.tls import Credentials
from dresfl.runtimes.local import LocalFederation, no_dropouts
from dresfl.sealing import CertificateAuthority, Identity, Roster, certificate_request
from dresfl.storage import ShareStore, data_digest
from dresfl.storage.hidden_state import Allowance
from hidden_oracle import replayed

OPTIMIZER = Optimizer(method="momentum", learning_rate=0.05, schedule="constant")


@dataclass
class Consortium:
    """Everybody's keys and rows."""

    folder: Path
    clients: int = 6
    rounds: int = 12
    authority: CertificateAuthority = field(default_factory=CertificateAuthority.create)
    hidden: HiddenSettings | None = None  # of the hidden mode; None: the open mode

    def __post_init__(self) -> None:
        self.coordinator = Identity.create("coordinator")
        self.clients_keys = [Identity.create(f"site-{i}") for i in range(self.clients)]
        cards = [site.card for site in self.clients_keys]
        self.roster = Roster.create(self.coordinator, self.coordinator.card, cards)
        self.agreement = Agreement(
            layers=(Dense(4), Square(), Dense(3)),
            input_shape=(5,),
            num_clients=self.clients,
            rounds=self.rounds,
            batch_size=8,
            roster=self.roster.digest,
            rows_can_be_computed="accepted" if self.hidden is None else "",
            mode="open" if self.hidden is None else "hidden",
            hidden=self.hidden,
            optimizer=None if self.hidden is None else OPTIMIZER,
        )
        generator = torch.Generator().manual_seed(7)
        self.rows = []
        for i in range(self.clients):
            inputs = torch.rand((9 + i, 5), generator=generator)
            labels = torch.randint(3, (9 + i,), generator=generator)
            targets = torch.nn.functional.one_hot(labels, 3).to(torch.int32)
            self.rows.append((self.agreement.quantizer.integers(inputs), targets))

    @property
    def allowance(self) -> Allowance | None:
        """How many runs the clients' stores allow, in the hidden mode."""
        allowed = self.hidden
        return None if allowed is None else Allowance(allowed.runs, allowed.trials, allowed.trial)

    def hidden_model(self, session: Session, stores: dict[int, Path], roster: str = "") -> str:
        """The model of a hidden run, played again in this process, from clients' stores that have their seeds."""
        with contextlib.ExitStack() as stack:
            tables = {}
            for index, folder in stores.items():
                digest = data_digest(*self.rows[index])
                store = stack.enter_context(ShareStore.open(folder, digest, roster, allowance=self.allowance))
                tables[index], damage = store.table(session, index)
                assert not damage
            return weights_sha256(replayed(session, tables))

    def credentials(self, identity: Identity, **changes: Any) -> Credentials:
        hosts = ["127.0.0.1"] if identity is self.coordinator else []
        certificate = self.authority.sign(certificate_request(identity), server=hosts)
        own = Credentials(identity, certificate, self.authority.certificate_pem(), self.roster)
        return replace(own, **changes)

    def expected(self) -> str:
        """The weights of an undisturbed run in one process."""
        session = make_session(self.agreement, tuple(len(x) for x, _ in self.rows), b"", b"")
        server = Training(session, OPTIMIZER, self.rounds)
        federation = LocalFederation(session, server, self.rows, no_dropouts(self.clients, 0), "coded")
        while not server.done:
            federation.run_round()
        return weights_sha256(server.weights)
