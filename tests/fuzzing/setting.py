"""The federation that the inputs are of. Its keys are fixed, so that an input stays what it is."""

from dataclasses import replace

import torch
from cryptography.hazmat.primitives.asymmetric import ec

from dresfl.federation import Agreement, Introduction, Terms
from dresfl.model import Dense
from dresfl.optimizers import Optimizer
from dresfl.protocol import Training
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.sealing import Identity, Roster
from five_clients import AGREEMENT, ROWS


def _identity(number: int, name: str) -> Identity:
    tls_key = ec.derive_private_key(number + 1, ec.SECP256R1())
    return Identity(name, bytes([number + 1]) * 32, bytes([number + 101]) * 32, tls_key)


COORDINATOR = _identity(99, "coordinator")
CLIENTS = [_identity(number, f"client-{number}") for number in range(5)]
ROSTER = Roster.create(COORDINATOR, COORDINATOR.card, [client.card for client in CLIENTS])
AGREED = replace(AGREEMENT, roster=ROSTER.digest)
CONTRIBUTIONS = tuple(bytes([number]) * 64 for number in range(5))
TERMS = Terms(b"n" * 32, b"r" * 16, b"o" * 16, ROWS, CONTRIBUTIONS)
SESSION = TERMS.session(AGREED)
INTRODUCTION = Introduction(ROWS[2], b"c" * 64, b"h" * 32)
WEIGHTS = torch.arange(SESSION.network.num_parameters) - 9


def training() -> Training:
    return Training(SESSION, Optimizer(method="momentum", learning_rate=0.05, schedule="constant"), AGREED.rounds)


HIDDEN_AGREED = Agreement(
    layers=(Dense(2),),
    input_shape=(3,),
    num_clients=5,
    rounds=3,
    roster=ROSTER.digest,
    mode="hidden",
    hidden=HiddenSettings(schedule="S2", trusted_dealers=True),
    optimizer=Optimizer(),
)
HIDDEN_SESSION = HIDDEN_AGREED.sample_session()
