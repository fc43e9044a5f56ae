"""Test vectors of sealing: three participants, their cards and roster, envelopes that open and envelopes that must not.

Bytes are hexadecimal. The secret keys are hashes of published strings: for testing and for nothing else.
"""

import dataclasses
import hashlib
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from dresfl.sealing import Identity, Member, Roster, SealContext
from dresfl.sealing.envelope import envelope_key, seal_with_ephemeral

_PLAINTEXTS = (b"", b"one byte more than a block of ChaCha20, which has sixty-four....", bytes(range(256)))


def make_sealing_vectors() -> dict[str, Any]:
    """Everything about one roster of a coordinator and two clients, and envelopes from client 0 to client 1."""
    coordinator, alice, bob = (fixed_identity(name) for name in ("coordinator", "alice", "bob.example"))
    roster = Roster.create(alice, coordinator.card, [alice.card, bob.card])
    sharing_id = fixed_secret("sharing")[:16]
    contexts = [SealContext(sharing_id, 0, 1, i, len(_PLAINTEXTS)) for i in range(len(_PLAINTEXTS))]
    envelopes = [
        _envelope(alice, bob, context, plaintext) for context, plaintext in zip(contexts, _PLAINTEXTS, strict=True)
    ]
    return {
        "participants": [_participant(identity) for identity in (coordinator, alice, bob)],
        "roster": {
            "maker": "alice",
            "server": "coordinator",
            "clients": ["alice", "bob.example"],
            "digest": roster.digest,
            "fingerprint": roster.fingerprint,
            "signature": roster.signature.hex(),
        },
        "envelopes": envelopes,
        "refused": _refused(contexts, bytes.fromhex(envelopes[1]["sealed"])),
    }


def fixed_secret(what: str) -> bytes:
    """Thirty-two bytes that stand for a secret: published, hence none."""
    return hashlib.sha256(f"dresfl vectors {what}".encode()).digest()


def fixed_identity(name: str) -> Identity:
    """A participant of the vectors."""
    tls_key = ec.derive_private_key(int.from_bytes(fixed_secret(f"tls {name}"), "big"), ec.SECP256R1())
    return Identity(name, fixed_secret(f"sealing {name}"), fixed_secret(f"signing {name}"), tls_key)


def _participant(identity: Identity) -> dict[str, str]:
    member = identity.member
    return {
        "name": member.name,
        "sealing_secret": fixed_secret(f"sealing {member.name}").hex(),
        "signing_secret": fixed_secret(f"signing {member.name}").hex(),
        "tls_secret": fixed_secret(f"tls {member.name}").hex(),
        "sealing_key": member.sealing_key.hex(),
        "signing_key": member.signing_key.hex(),
        "tls_spki_sha256": member.spki_sha256.hex(),
        "public_bytes": member.encode().hex(),
        "fingerprint": member.fingerprint,
        "card_signature": identity.card.signature.hex(),
    }


def _envelope(sender: Identity, receiver: Identity, context: SealContext, plaintext: bytes) -> dict[str, Any]:
    secret = fixed_secret(f"ephemeral {context.slice_number}")
    ephemeral = X25519PrivateKey.from_private_bytes(secret)
    public = ephemeral.public_key().public_bytes_raw()
    fresh = ephemeral.exchange(X25519PublicKey.from_public_bytes(receiver.member.sealing_key))
    standing = sender.exchange(receiver.member.sealing_key)
    return {
        **_place(sender.member, receiver.member, context),
        "plaintext": plaintext.hex(),
        "ephemeral_secret": secret.hex(),
        "ephemeral_key": public.hex(),
        "fresh_secret": fresh.hex(),
        "standing_secret": standing.hex(),
        "key": envelope_key(fresh + standing, public, sender.member, receiver.member, context).hex(),
        "sealed": seal_with_ephemeral(ephemeral, sender, receiver.member, context, plaintext).hex(),
    }


def _place(sender: Member, receiver: Member, context: SealContext) -> dict[str, Any]:
    return {
        "sender": sender.name,
        "receiver": receiver.name,
        "sharing_id": context.sharing_id.hex(),
        "dealer": context.dealer,
        "receiver_number": context.receiver,
        "slice_number": context.slice_number,
        "num_slices": context.num_slices,
        "context": context.encode().hex(),
    }


def _refused(contexts: list[SealContext], sealed: bytes) -> list[dict[str, Any]]:
    """Changes of the envelope of slice 1, each with the place in which the receiver is asked to open it."""
    context = contexts[1]
    other = dataclasses.replace
    cases: list[tuple[str, SealContext, bytes]] = [
        ("another slice", contexts[2], sealed),
        ("another number of slices", other(context, num_slices=4), sealed),
        ("another dealer", other(context, dealer=2), sealed),
        ("another receiver", other(context, receiver=2), sealed),
        ("another sharing", other(context, sharing_id=bytes(16)), sealed),
        ("an altered tag", context, sealed[:-1] + bytes([sealed[-1] ^ 1])),
        ("an altered ciphertext", context, sealed[:33] + bytes([sealed[33] ^ 128]) + sealed[34:]),
        ("an altered ephemeral key", context, sealed[:1] + bytes([sealed[1] ^ 1]) + sealed[2:]),
        ("the same point spelled otherwise", context, sealed[:32] + bytes([sealed[32] ^ 128]) + sealed[33:]),
        ("an ephemeral key of low order", context, sealed[:1] + bytes(32) + sealed[33:]),
        ("an unknown version", context, b"\x02" + sealed[1:]),
        ("a byte less", context, sealed[:-1]),
        ("a byte more", context, sealed + b"\x00"),
        ("too short for a tag", context, sealed[:48]),
        ("nothing", context, b""),
    ]
    return [
        {
            "why": why,
            "sender": "alice",
            "receiver": "bob.example",
            "context": place.encode().hex(),
            "sealed": data.hex(),
        }
        for why, place, data in cases
    ]
