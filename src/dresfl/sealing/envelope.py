"""Envelopes: bytes that travel through the coordinator, which can neither read nor make, swap, replay or reorder them.

Notation: s, S the sender's sealing key (secret, public); r, R the receiver's; e, E a fresh one for this envelope.

    secret  = X25519(e, R) | X25519(s, R)             fresh for each envelope | only sender and receiver have it
    info    = "dresfl seal 1" | E | sender | receiver | context
    key     = HKDF-SHA256(secret, salt = "", info)    32 bytes
    sealed  = version u8 = 1 | E 32 bytes | ChaCha20-Poly1305(key, nonce = 0, plaintext, associated data = context)

`sender` and `receiver` are the members' public bytes (identity.py): names and all keys, as the roster has them. The
nonce may be zero since every envelope has a key of its own. The context enters the key as well, so that this stays true
for different slices even if a machine repeats its randomness.

The shape is that of HPKE's authenticated mode (RFC 9180), with its limits: who steals r can read, and can also forge
envelopes *to* the receiver; a receiver cannot prove to a third party who sealed; who steals s alone reads nothing.
"""

import struct
from dataclasses import dataclass
from typing import final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dresfl.errors import SealError, UsageError

from .identity import Identity, Member

VERSION = 1
OVERHEAD = 1 + 32 + 16  # bytes that sealing adds
_LABEL = b"dresfl seal 1"
_NONCE = bytes(12)
_CONTEXT = struct.Struct("<16sHHII")


@final
@dataclass(frozen=True)
class SealContext:
    """Which slice of whose share for whom: an envelope opens in this place and in no other.

    Bytes, little-endian: sharing_id 16 | dealer u16 | receiver u16 | slice_number u32 | num_slices u32.
    """

    sharing_id: bytes
    dealer: int
    receiver: int
    slice_number: int
    num_slices: int

    def __post_init__(self) -> None:
        if len(self.sharing_id) != 16:
            raise UsageError(f"a sharing_id has 16 bytes, not {len(self.sharing_id)}")
        if not (0 <= self.dealer < 2**16 and 0 <= self.receiver < 2**16):
            raise UsageError(f"client numbers lie in 0..65535, not {self.dealer} and {self.receiver}")
        if not 0 <= self.slice_number < self.num_slices < 2**32:
            raise UsageError(f"there is no slice {self.slice_number} of {self.num_slices}")

    def encode(self) -> bytes:
        """The bytes that are bound to the envelope."""
        return _CONTEXT.pack(self.sharing_id, self.dealer, self.receiver, self.slice_number, self.num_slices)


def seal(identity: Identity, receiver: Member, context: SealContext, plaintext: bytes) -> bytes:
    """Seal `plaintext` so that only `receiver` opens it, in this context only, and knows that `identity` sealed it."""
    return seal_with_ephemeral(X25519PrivateKey.generate(), identity, receiver, context, plaintext)


def seal_with_ephemeral(
    ephemeral: X25519PrivateKey, identity: Identity, receiver: Member, context: SealContext, plaintext: bytes
) -> bytes:
    """`seal` with a given key, for test vectors only: a key used twice gives the plaintexts away."""
    public = ephemeral.public_key().public_bytes_raw()
    peer = X25519PublicKey.from_public_bytes(receiver.sealing_key)  # sound: Member has checked it
    secret = ephemeral.exchange(peer) + identity.exchange(receiver.sealing_key)
    key = envelope_key(secret, public, identity.member, receiver, context)
    return bytes([VERSION]) + public + ChaCha20Poly1305(key).encrypt(_NONCE, plaintext, context.encode())


def open_sealed(identity: Identity, sender: Member, context: SealContext, sealed: bytes | memoryview) -> bytes:
    """The plaintext that `sender` sealed for `identity` in this context; anything else raises SealError."""
    if len(sealed) < OVERHEAD:
        raise SealError(f"an envelope of {len(sealed)} bytes is too short")
    if sealed[0] != VERSION:
        raise SealError(f"version {sealed[0]} of envelopes is not known here", f"use a dresfl that seals as {VERSION}")
    public = bytes(sealed[1:33])
    try:
        secret = identity.exchange(public) + identity.exchange(sender.sealing_key)
        key = envelope_key(secret, public, sender, identity.member, context)
        return ChaCha20Poly1305(key).decrypt(_NONCE, memoryview(sealed)[33:], context.encode())
    except (InvalidTag, ValueError):  # ValueError: a point of low order
        raise SealError(
            f"slice {context.slice_number} of {context.num_slices} by {sender.name} does not open for {identity.name}",
            "it was altered or meant for another place; if it keeps happening, compare roster digests by telephone",
        ) from None


def envelope_key(secret: bytes, ephemeral: bytes, sender: Member, receiver: Member, context: SealContext) -> bytes:
    """HKDF over both shared secrets, bound to everything public about this envelope."""
    info = _LABEL + ephemeral + sender.encode() + receiver.encode() + context.encode()
    return HKDF(SHA256(), length=32, salt=None, info=info).derive(secret)
