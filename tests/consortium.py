"""A small consortium: everybody's keys, what they agreed on, and the rows each would have."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dresfl.federation import Agreement, make_session
from dresfl.model import Dense, Square, weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import Training
from dresfl.runtimes.grpc_runtime.tls import Credentials
from dresfl.runtimes.local import LocalFederation, no_dropouts
from dresfl.sealing import CertificateAuthority, Identity, Roster, certificate_request

OPTIMIZER = Optimizer(method="momentum", learning_rate=0.05, schedule="constant")


@dataclass
class Consortium:
    """Everybody's keys and rows."""

    folder: Path
    clients: int = 6
    rounds: int = 12
    authority: CertificateAuthority = field(default_factory=CertificateAuthority.create)

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
            rows_can_be_computed="accepted",
        )
        generator = torch.Generator().manual_seed(7)
        self.rows = []
        for i in range(self.clients):
            inputs = torch.rand((9 + i, 5), generator=generator)
            labels = torch.randint(3, (9 + i,), generator=generator)
            targets = torch.nn.functional.one_hot(labels, 3).to(torch.int32)
            self.rows.append((self.agreement.quantizer.integers(inputs), targets))

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
