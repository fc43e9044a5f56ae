"""Test vectors of the network: an agreement, its terms and identities, and every message of SPEC.md once.

Bytes are hexadecimal. Keys and nonces are hashes of published strings: for testing and for nothing else.
"""

import struct
import zlib
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from dresfl.federation import Agreement, Introduction, Terms, messages, sharing_nonce
from dresfl.federation.enrolment import signed_begin
from dresfl.field import SecretSeed
from dresfl.model import Dense, Square, weights_sha256
from dresfl.protocol import (
    Client,
    MemoryAnswers,
    MemoryTable,
    Session,
    Task,
    Verdict,
    blinding_of,
    coin_commitment,
    combine_shares,
    common_coins,
    encoded_answer,
    held_set_ups,
    num_combinations,
    num_slices,
    seed_hashes,
    seeds_of,
    slice_range,
)
from dresfl.sealing import Roster, SealContext
from dresfl.sealing.envelope import seal_with_ephemeral

from .sealing_vectors import fixed_identity, fixed_secret

_CLIENTS = ("alice", "bob.example", "carol", "dave", "erin")
_ROWS = (2, 3, 1, 2, 2)
_ROUND = 3
_DEALER, _RECEIVER = 0, 1
_HELD = (0, 9, 64)


def make_network_vectors() -> dict[str, Any]:
    """A coordinator and five clients: what they agree on, and one message of each kind.

    Where a message belongs to one client, that is client 1.
    """
    coordinator, clients = fixed_identity("coordinator"), [fixed_identity(name) for name in _CLIENTS]
    roster = Roster.create(coordinator, coordinator.card, [client.card for client in clients])
    agreement = Agreement(
        layers=(Dense(2), Square(), Dense(2, weight_bits=5, init=0.25)),
        input_shape=(3,),
        num_clients=len(clients),
        rounds=10,
        input_bits=2,
        weight_bits=4,
        shift=0.5,
        input_bound=1.5,
        batch_size=3,
        seed=7,
        roster=roster.digest,
        rows_can_be_computed="accepted",
    )
    own_bytes, run_nonce = fixed_secret("own bytes")[:16], fixed_secret("run nonce")[:16]
    coins = tuple(fixed_secret(f"coin {name}") for name in _CLIENTS)
    contributions = tuple(
        fixed_secret(f"contribution {name}") + coin_commitment(coin) for name, coin in zip(_CLIENTS, coins, strict=True)
    )
    terms = Terms(sharing_nonce(own_bytes, contributions), run_nonce, own_bytes, _ROWS, contributions)
    session = terms.session(agreement)
    challenge = fixed_secret("challenge")[:16]
    introduction = Introduction(_ROWS[_RECEIVER], contributions[_RECEIVER])
    share, context, task, later = _messages(session)
    members, table = _sharing(session)
    dealt = [table.set_up(dealer) or b"" for dealer in range(len(clients))]
    set_ups = held_set_ups(session, _RECEIVER, table)
    seeds = seeds_of(set_ups)
    answer = encoded_answer(session, _RECEIVER, table, MemoryAnswers(), task, blinding_of(session, _RECEIVER, seeds))
    common = common_coins(coins)
    values = [combine_shares(session, table, dealer, common, held.check) for dealer, held in enumerate(set_ups)]
    checked = messages.Checked(tuple(seed_hashes(session, seeds)), session.field.pack(torch.stack(values, 1)))
    content = share + members[_DEALER].deal_set_up([_RECEIVER])[0]
    ephemeral = X25519PrivateKey.from_private_bytes(fixed_secret("ephemeral network"))
    sealed = seal_with_ephemeral(ephemeral, clients[_DEALER], clients[_RECEIVER].member, context, content)
    made: dict[str, messages.Message] = {
        "Hello": messages.Hello(introduction, challenge, agreement.encode(), b"instance"),
        "Holding": messages.Holding(_DEALER, sum(1 << number for number in _HELD)),
        "Holding nothing": messages.Holding(_DEALER, 0),
        "Ready": messages.Ready(session.sharing_id, coins[_RECEIVER]),
        "Slice": messages.Slice(_RECEIVER, 0, sealed),
        "Ack": messages.Ack(_DEALER, 0),
        "Reject": messages.Reject(_DEALER, 0, "it does not open"),
        "Answered": messages.Answered(_ROUND, answer),
        "Informed": messages.Informed(agreement.rounds),
        "Declined": messages.Declined(1, "round 1 was answered for other weights"),
        "Checked": checked,
        "Wait": messages.Wait("2 of 5 clients are missing"),
        "Begin": signed_begin(coordinator, roster, _RECEIVER, challenge, terms),
        "Request": messages.Request(_RECEIVER, 0),
        "Relayed": messages.Relayed(_DEALER, 0, sealed),
        "Weights": messages.Weights(task.encode(session)),
        "Delta": _delta(task, later),
        "Done": messages.Done(Task(agreement.rounds, later.weights).encode(session)),
        "Check": messages.Check(coins),
        "Judged": messages.Judged(Verdict((2,), (0, 4))),
        "Judged clean": messages.Judged(Verdict()),
    }
    encoded = {name: message.encode() for name, message in made.items()}
    return {
        "clients": list(_CLIENTS),
        "roster_sha256": roster.digest,
        "agreement": agreement.encode().decode("ascii"),
        "agreement_sha256": agreement.digest.hex(),
        "client_rows": list(_ROWS),
        "own_bytes": own_bytes.hex(),
        "contributions": [contribution.hex() for contribution in contributions],
        "nonce": terms.nonce.hex(),
        "run_nonce": run_nonce.hex(),
        "moduli": [str(p) for p in session.field.moduli],
        "recovery_threshold": session.recovery_threshold,
        "sharing_digest": session.sharing_digest.hex(),
        "sharing_id": session.sharing_id.hex(),
        "session_id": session.session_id.hex(),
        "challenge": challenge.hex(),
        "challenged": _RECEIVER,
        "mask_secrets": [fixed_secret(f"masks {i}").hex() for i in range(len(clients))],
        "mask_sets": [list(members) for members in session.seed_sets.sets],
        "seed_dealers": [session.seed_sets.dealer(number) for number in range(len(session.seed_sets.sets))],
        "combinations": num_combinations(session),
        "set_ups": [data.hex() for data in dealt],
        "share": share.hex(),
        "later_task": later.encode(session).hex(),
        "later_weights_sha256": weights_sha256(later.weights),
        "held": list(_HELD),
        "messages": {name: data.hex() for name, data in encoded.items()},
        "refused": _refused(encoded),
    }


def _members(session: Session, table: MemoryTable | None = None) -> list[Client]:
    """All clients. table: where client 1 keeps its shares."""
    seeds = [SecretSeed(fixed_secret(f"masks {i}")) for i in range(len(_ROWS))]
    return [Client(session, i, seeds[i], *_rows(m), table if i == _RECEIVER else None) for i, m in enumerate(_ROWS)]


def _sharing(session: Session) -> tuple[list[Client], MemoryTable]:
    """All clients, and what client 1 was dealt."""
    table = MemoryTable(session)
    clients = _members(session, table)
    for dealer in clients:
        clients[_RECEIVER].receive(dealer.deal(_RECEIVER))
        clients[_RECEIVER].receive_set_up(dealer.index, dealer.deal_set_up([_RECEIVER])[0])
    return clients, table


def _messages(session: Session) -> tuple[bytes, SealContext, Task, Task]:
    """A Share message and its place, a Task, and the Task after that."""
    rows = slice_range(session, _DEALER, 0)
    share = _members(session)[_DEALER].deal(_RECEIVER, rows.start, len(rows)).encode(session)
    context = SealContext(session.sharing_id, _DEALER, _RECEIVER, 0, num_slices(session, _DEALER))
    weights = session.network.initial_weights(session.stream)
    task = Task(_ROUND, weights)
    later = Task(_ROUND + 1, weights + torch.arange(-7, weights.numel() - 7))
    return share, context, task, later


def _rows(count: int) -> tuple[Tensor, Tensor]:
    """Integer inputs (m,3) and targets (m,2)."""
    inputs = torch.arange(3 * count, dtype=torch.int32).view(count, 3) % 5
    return inputs, torch.nn.functional.one_hot(torch.arange(count) % 2, 2).to(torch.int32)


def _delta(base: Task, task: Task) -> messages.Delta:
    """Differences of one byte each; stored and not compressed, so that the bytes are those of every zlib."""
    raw = (task.weights - base.weights).to(torch.int8).numpy().tobytes()
    size, check = len(raw), zlib.adler32(raw)
    packed = b"\x78\x01\x01" + struct.pack("<HH", size, size ^ 0xFFFF) + raw + struct.pack(">I", check)
    digest = bytes.fromhex(weights_sha256(task.weights))
    return messages.Delta(task.round_number, base.round_number, 1, digest, packed)


def _refused(encoded: dict[str, bytes]) -> list[dict[str, str]]:
    """Messages that must be refused where the message named is expected."""
    hello, begin = encoded["Hello"], encoded["Begin"]
    version_1 = b"\x01\x01" + bytes(32 + 4 + 32 + 32 + 16)  # a Hello with the digest of an agreement
    version_3 = hello[:1] + b"\x03" + hello[2:38] + hello[70:]  # without a commitment to a coin
    cases = [
        ("Hello", "an empty message", b""),
        ("Hello", "another kind", encoded["Ready"]),
        ("Hello", "an unknown version", hello[:1] + b"\x06" + hello[2:]),
        ("Hello", "version 1", version_1),
        ("Hello", "version 3", version_3),
        ("Hello", "too short", hello[:125]),
        ("Ready", "a byte more", encoded["Ready"] + b"\x00"),
        ("Ready", "no coin", encoded["Ready"][:17]),
        ("Checked", "a hash less than it says", encoded["Checked"][: 3 + 15]),
        ("Judged", "a client less than it says", encoded["Judged"][:-2]),
        ("Judged", "a byte more", encoded["Judged"] + b"\x00"),
        ("Begin", "a client less than it says", begin[:-68]),
        ("Begin", "a client more than it says", begin + bytes(68)),
        ("Begin", "a byte less", begin[:-1]),
        ("Wait", "a text of 1,001 bytes", encoded["Wait"][:1] + b"x" * 1001),
        ("Reject", "a text of 1,001 bytes", encoded["Reject"][:7] + b"x" * 1001),
        ("Request", "a byte less", encoded["Request"][:-1]),
        ("Ack", "a byte more", encoded["Ack"] + b"\x00"),
        ("Informed", "a byte more", encoded["Informed"] + b"\x00"),
        ("Answered", "no round", encoded["Answered"][:4]),
        ("Holding", "no dealer", encoded["Holding"][:2]),
    ]
    return [{"expected": expected, "why": why, "message": data.hex()} for expected, why, data in cases]
